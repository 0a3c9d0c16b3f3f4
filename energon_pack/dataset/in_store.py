"""A dataset on an object store, which has no rename: the dataset appears with its metadata, which are written last.

PREFIX/.staging/NAME/identity     the marker, {"identity": …, "run": …, "state": …}: names the run that writes the
                                  shards; removed when the dataset is published
PREFIX/.staging/NAME/.nv-meta/    metadata that names the shards where they are, for the check through Energon
PREFIX/.staging/NAME/<identity>/  checksums of the media of each shard, written between the shard and its .tar.idx
PREFIX/NAME/packed-000000.tar     each shard as it is written, followed by its .tar.idx
PREFIX/NAME/.nv-meta/             written after all others, dataset.yaml last: without it, nobody reads the dataset

Before a run changes the dataset, it has to win a conditional write of the marker, and it reads the marker before each
further request, but that for checksums, whose names no run of another identity reads. One gap remains: a run that is
paused between reading the marker and its request still sends that one request when it resumes. If the other run has the
same identity, a shard uploaded then has the same bytes.

A run of the same identity continues from the shards that are there; a run of another identity needs
output.overwrite=true if there are shards.
"""

import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from energon_pack.dataset.destination import concurrent_run_error
from energon_pack.dataset.energon import write_energon_files
from energon_pack.dataset.in_folder import FolderDestination
from energon_pack.dataset.manifest import MANIFEST
from energon_pack.dataset.shards import ShardJob, WrittenShard, shard_figures, write_packs
from energon_pack.dataset.tar_writer import TarWriter, size_of_finished_tar
from energon_pack.errors import PackError
from energon_pack.run import stores
from energon_pack.run.address import lies_in, parent
from energon_pack.run.files import META_FOLDER
from energon_pack.run.stores.requests import StoreError
from energon_pack.samples.flavors.base import Flavor
from energon_pack.sources.find import Source

#: the files that make it a dataset: removed first and written last
_DATASET_YAML, _MANIFEST = f"{META_FOLDER}/dataset.yaml", f"{META_FOLDER}/{MANIFEST}"


class RunState(str, Enum):
    """The state of a run that writes a dataset on a store."""

    writing = "writing"
    #: the shards belong to another run, or are wrong
    discarded = "discarded"
    publishing = "publishing"


@dataclass(frozen=True)
class RunNote:
    """The content of a `RunMarkerOnStore`: which run writes a dataset, and the run's state.

    No two runs write equal notes: by comparing notes, a run sees whether the marker is still its own.
    """

    identity: str  # hash of everything that the bytes of the shards depend on
    run: str
    state: RunState

    @classmethod
    def new(cls, identity: str, state: RunState) -> "RunNote":
        """Return the first note of a run, with a random id of the run."""
        return cls(identity, uuid.uuid4().hex, state)

    def may_keep_shards(self, identity: str) -> bool:
        """Say whether a run of this identity may keep the shards of the note's run: same identity, not discarded."""
        return self.identity == identity and self.state is not RunState.discarded


class RunMarkerOnStore:
    """The object on a store that names the one run that may change a dataset. `dataset`: the dataset's address."""

    def __init__(self, dataset: str):
        self._dataset = dataset
        self.folder = f"{parent(dataset)}/.staging/{dataset.rpartition('/')[2]}"
        self._address = f"{self.folder}/identity"

    def media_sums_address(self, identity: str | None, shard: str) -> str:
        """Return the address for the checksums of a shard's media, as a run of this identity wrote them."""
        return f"{self.folder}/{identity}/{shard}.crc32"

    def read(self) -> tuple[RunNote | None, str | None]:
        """Return the note and the object's version; (None, None): there is no marker, so no unfinished run."""
        try:
            data, version = stores.read_with_version(self._address)
        except FileNotFoundError:
            return None, None
        try:
            fields = json.loads(data)
            return RunNote(fields["identity"], fields["run"], RunState(fields["state"])), version
        except (ValueError, KeyError, TypeError):  # written by another version of this package
            return RunNote("", "", RunState.discarded), version

    def replace_note(self, note: RunNote, version: str | None) -> RunNote:
        """Write a note in place of the one with this version (None: there is none); PackError: another was faster."""
        if not stores.put_if_unchanged(self._address, json.dumps(asdict(note)).encode(), version):
            raise concurrent_run_error(self._dataset)
        return note

    def change_state(self, note: RunNote, state: RunState) -> RunNote:
        """Replace the run's note by one with another state; return it. Raises PackError if another run took over."""
        now, version = self.read()
        if now != note:
            raise concurrent_run_error(self._dataset)
        return self.replace_note(replace(note, state=state), version)

    def refuse_if_taken_over(self, note: RunNote) -> None:
        """Raise PackError unless the marker still holds this note, the last one that the run wrote."""
        if self.read()[0] != note:
            raise concurrent_run_error(self._dataset)

    def refuse_other_identity(self, identity: str | None) -> None:
        """Raise PackError unless the marker belongs to a run of this identity, whose shards were not discarded."""
        note, _ = self.read()
        if note is None or identity is None or not note.may_keep_shards(identity):
            raise concurrent_run_error(self._dataset)

    def remove_if_own(self, note: RunNote) -> None:
        """Remove the marker and all else in its folder, unless another run has replaced the note."""
        names = stores.list_recursively(self.folder)
        if self.read()[0] == note:
            stores.delete_in_profile(names)


class StoreDestination(FolderDestination):
    """A dataset on an object store: its shards are uploaded as they are written, and its metadata at the end.

    Args:
        address: the address of the dataset.
        final: a folder of this machine; the staging folder beside it holds everything but the shards.
    """

    is_stored = True
    _note: RunNote  # the last note that this run wrote; set by `begin_writing`

    def __init__(self, address: str, final: Path):
        super().__init__(final)
        self.place = address
        self.write_shard = partial(upload_shard, address, None)
        self._marker = RunMarkerOnStore(address)

    def refuse_source_inside_dataset(self, source: Source) -> None:
        if inside := next((shard.path for shard in source.shards if lies_in(shard.path, self.place)), None):
            raise PackError(f"the source {inside} lies in {self.place}: choose another output.dir or output.name")

    def refuse_unwritable(self) -> None:
        refuse_unwritable_address("output.dir", parent(self.place))

    def is_free(self) -> bool:
        names = self._object_names()
        return not names or (
            _DATASET_YAML not in names and self._marker.read()[0] is not None
        )  # shards of a stopped run

    def has_file(self, name: str) -> bool:
        return name in self._object_names()

    def begin_writing(self, staging: Path, identity: str, num_bytes: int, overwrite: bool) -> None:
        note, version = self._marker.read()
        self.refuse_existing(overwrite)
        is_continued = note is not None and note.may_keep_shards(identity) and not self.has_file(_DATASET_YAML)
        if note is not None and not (is_continued or overwrite) and note.state is not RunState.discarded:
            self._refuse_shards()
        note_of_run = self._marker.replace_note(
            RunNote.new(identity, RunState.writing if is_continued else RunState.discarded), version
        )
        if not overwrite and self.has_file(_DATASET_YAML):  # another run published it before this run won the marker
            self._marker.remove_if_own(note_of_run)
            self.refuse_existing(overwrite)
        if not is_continued:  # a dataset to be replaced is removed now
            self._remove_objects(note_of_run)
            note_of_run = self._marker.change_state(note_of_run, RunState.writing)
        self._note = note_of_run
        self.write_shard = partial(upload_shard, self.place, identity)

    def _refuse_shards(self) -> None:
        """Raise PackError if the store has any shard of the dataset: another run, which may be at work, wrote it."""
        if any(name.endswith(".tar.idx") for name in self._object_names()):
            raise PackError(
                f"{self.place} has shards of another run, which is at work or was stopped: output.overwrite=true"
                " removes them, output.name=NAME writes beside them"
            )

    def has_shard(self, job: ShardJob) -> bool:
        return is_shard_uploaded(self.place, job)

    def prepare_for_check(self, staging: Path, shards: Sequence[WrittenShard], flavor: Flavor) -> str:
        where = f"../../{self.place.rpartition('/')[2]}"
        with TemporaryDirectory() as temporary:
            named = [replace(shard, name=f"{where}/{shard.name}") for shard in shards]
            write_energon_files(Path(temporary), named, flavor, "typed")
            for path in sorted(Path(temporary, META_FOLDER).iterdir()):
                self._marker.refuse_if_taken_over(self._note)
                stores.put(f"{self._marker.folder}/{META_FOLDER}/{path.name}", path.read_bytes())
        return self._marker.folder

    def mark_shards_unusable(self, staging: Path, identity: str) -> None:
        self._note = self._marker.change_state(self._note, RunState.discarded)  # the next run removes them

    def publish(self, staging: Path, identity: str, overwrite: bool) -> None:
        note_of_run = self._marker.change_state(self._note, RunState.publishing)
        files = {path.relative_to(staging).as_posix(): path for path in staging.rglob("*") if path.is_file()}
        last = (_MANIFEST, _DATASET_YAML)
        for name in sorted(
            files, key=lambda name: (name in last, name == last[-1], name.startswith(META_FOLDER), name)
        ):
            if name.rpartition("/")[2] != ".identity":
                self._marker.refuse_if_taken_over(note_of_run)
                stores.put_file(f"{self.place}/{name}", files[name])
        self._marker.remove_if_own(note_of_run)

    def remove_leftovers_of_killed_runs(self, identity: str) -> None:
        super().remove_leftovers_of_killed_runs(identity)
        note, _ = self._marker.read()
        if note is not None and (note.identity, note.state) == (identity, RunState.publishing):
            self._marker.remove_if_own(note)

    def _remove_objects(self, note_of_run: RunNote) -> None:
        """Remove all objects of the dataset, its dataset.yaml and manifest first, so that nobody reads half of it."""
        names = self._object_names()
        first = [name for name in (_DATASET_YAML, _MANIFEST) if name in names]
        rest = [name for name in names if name not in first]
        for names_at_once in [*([name] for name in first), rest]:
            self._marker.refuse_if_taken_over(note_of_run)
            stores.delete_in_profile(f"{self.place}/{name}" for name in names_at_once)

    def _object_names(self) -> list[str]:
        return [name[len(self.place) + 1 :] for name in stores.list_recursively(self.place)]


def refuse_unwritable_address(setting_name: str, address: str) -> None:
    """Raise PackError if no object can be written below an address and removed again."""
    probe = f"{address}/.staging/probe"
    try:
        stores.put(probe, b"energon_pack")
        stores.delete_in_profile([probe])
    except (StoreError, FileNotFoundError) as error:  # no such bucket
        raise PackError(f"{setting_name}={address} can't be written: {error}; choose another {setting_name}") from None


def upload_shard(dataset_address: str, identity: str | None, job: ShardJob) -> WrittenShard:
    """Write one shard as `write_shard` does, but onto an object store: upload it in parts, then its index.

    The marker is read before each of the two uploads. A process that is paused after that may still upload this one
    object when it resumes, over that of another run.

    Args:
        dataset_address: the address of the dataset.
        identity: the run's identity; None: `job.identity` is.
    """
    marker = RunMarkerOnStore(dataset_address)
    table = pq.ParquetFile(job.plan).read_row_group(job.row_group)
    address = f"{dataset_address}/{job.path.name}"
    num_packs = _num_packs(table)
    marker.refuse_other_identity(identity or job.identity)
    sums_address = marker.media_sums_address(identity or job.identity, job.path.name)
    if (uploaded := _size_and_sums_if_uploaded(address, sums_address, num_packs)) is not None:
        return shard_figures(job, table, num_packs, *uploaded, was_there=True)
    with TemporaryDirectory(prefix="energon_pack-") as temporary:
        path = Path(temporary, job.path.name)
        with open(path, "wb", buffering=0) as file:
            written = write_packs(TarWriter(file.fileno()), job, table)
        marker.refuse_other_identity(identity or job.identity)
        stores.put_file(address, path)
        size = path.stat().st_size
    stores.put(sums_address, written.media_sums)  # its name holds the identity: no other run reads it
    marker.refuse_other_identity(identity or job.identity)
    stores.put(f"{address}.idx", written.tar_index)
    return shard_figures(job, table, num_packs, size, written.media_sums, was_there=False)


def is_shard_uploaded(dataset_address: str, job: ShardJob) -> bool:
    """Say whether a run of the job's identity has uploaded this shard and its index."""
    marker = RunMarkerOnStore(dataset_address)
    note, _ = marker.read()
    if note is None or job.identity is None or not note.may_keep_shards(job.identity):
        return False
    table = pq.ParquetFile(job.plan).read_row_group(job.row_group)
    sums_address = marker.media_sums_address(job.identity, job.path.name)
    return _size_and_sums_if_uploaded(f"{dataset_address}/{job.path.name}", sums_address, _num_packs(table)) is not None


def _num_packs(table: pa.Table) -> int:
    return int(pc.count_distinct(table["pack"]).as_py())


def _size_and_sums_if_uploaded(address: str, sums_address: str, num_packs: int) -> tuple[int, bytes] | None:
    """Return the size of a shard that is uploaded, with an index of `num_packs` packs, and the checksums of its media;
    None if it is not, or without its checksums.
    """
    try:
        ends, size = stores.read_whole(f"{address}.idx"), stores.find(address).size
        sums = stores.read_whole(sums_address)
    except FileNotFoundError:
        return None
    is_whole = len(ends) == 8 * (num_packs + 1) and size == size_of_finished_tar(int(np.frombuffer(ends, "<u8")[-1]))
    return (size, sums) if is_whole else None
