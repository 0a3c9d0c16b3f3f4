"""Find the packs in a shard, and read the parts of any pack of a dataset by its number, in two steps:

number ──counts of the shards──► shard ──.tar.idx──► the pack's bytes
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from energon_pack.dataset.folder import DatasetFolder
from energon_pack.errors import PackError
from energon_pack.run.files import META_FOLDER
from energon_pack.run.untrusted_input import parse_json
from energon_pack.samples.bytes import ByteRange, Bytes
from energon_pack.samples.member import MemberInput
from energon_pack.samples.pack_reader import READABLE_FLAVORS, PackMembers
from energon_pack.samples.sample import Part, Parts, ReadMedia
from energon_pack.sources.storage import File, read_ahead
from energon_pack.sources.tar import BLOCK, TarScan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from energon_pack.dataset.source_media import ReferencedMediaReader
    from energon_pack.samples.sample import Reference


class PackFiles(NamedTuple):
    """The files of one pack in a shard, and where they lie, in bytes."""

    key: str
    start: int  # place of its first header
    end: int  # place after its last block
    parts: list[Part]  # in the tar's order


def group_files_by_pack(scan: TarScan) -> Iterator[PackFiles]:
    """Yield the files of each pack in a shard: neighbouring files with the same key."""
    key, start, end = "", 0, 0
    parts: list[Part] = []
    for name, offset, size in scan:
        its_key, _, part = name.partition(".")
        if parts and its_key != key:
            yield PackFiles(key, start, end, parts)
            start, parts = end, []
        key = its_key
        parts.append(Part(part, offset, size))
        end = offset - -max(size, 0) // BLOCK * BLOCK
    if parts:
        yield PackFiles(key, start, end, parts)


def read_first_json_of_shard(shard_file: File) -> Any:
    """Parse the first file of a shard, which is the JSON of its first pack."""
    _, offset, size = next(iter(TarScan(shard_file)))
    return parse_json(shard_file.read(offset, size))


def members_of_pack(parts: Parts, flavor: str, read: ReadMedia) -> Iterable[MemberInput]:
    """Return the members of a pack. `parts`: part name → bytes; `read`: reads media that the pack only refers to."""
    if flavor in READABLE_FLAVORS:
        return PackMembers(parts, read)
    from energon_pack.samples.flavors import load_pack_members, packed_flavor_or_default  # of another package

    return load_pack_members(parts, packed_flavor_or_default(flavor), read)


_Self = TypeVar("_Self", bound="PackPartReader")


class PackPartReader:
    """Reads the parts of any pack of a dataset by its number in the order of the plan."""

    def __init__(self, folder: DatasetFolder, shards: DatasetFolder | None = None):
        """Take the dataset's folder, and that of its shards if they lie elsewhere."""
        self.folder, self._shards = folder, shards or folder
        self._opened: dict[str, File] = {}
        self._indexes: dict[str, bytes] = {}

    @cached_property
    def media_reader(self) -> "ReferencedMediaReader":
        """Return the media that packs refer to."""
        from energon_pack.dataset.source_media import ReferencedMediaReader  # packs of copies do without

        return ReferencedMediaReader(self.folder.path)

    def read_media(self, references: "Sequence[Reference]", parts: object = None) -> list[bytes]:
        """Return the bytes of each medium that a pack refers to; `parts` is not used."""
        return self.media_reader.read(references)

    @cached_property
    def shard_counts(self) -> dict[str, int]:
        """Return the number of packs of each shard, in order: from `.info.json`, else from the index or the tar."""
        stated: object = None
        with suppress(OSError, ValueError):
            stated = self.folder.read_json_object(f"{META_FOLDER}/.info.json").get("shard_counts")
        known = stated if isinstance(stated, dict) else {}
        return {
            name: known[name] if _is_count(known.get(name)) else self._count_packs(name) for name in self._shards.shards
        }

    @cached_property
    def _pack_ends(self) -> list[int]:
        return list(accumulate(self.shard_counts.values()))

    def __len__(self) -> int:
        return self._pack_ends[-1] if self._pack_ends else 0

    def parts(self, number: int) -> dict[str, Any]:
        """Return the files of a pack as Energon's sample loaders get them: part name → bytes, and `__key__`."""
        name, file, files = self._find(number)
        try:
            parts = {part.name: file.read(part.offset, part.size) for part in files.parts if part.size >= 0}
        except OSError as error:
            raise self._read_error(name, error) from None
        return {"__key__": files.key, **parts}

    def _find(self, number: int) -> tuple[str, Bytes, PackFiles]:
        """Return the shard of a pack, the file in which the pack's parts lie at their offsets, and the pack's files."""
        if not 0 <= number < len(self):
            raise PackError(f"pack {number} of {self.folder}: there are {len(self):,}, from 0 on")
        index = int(np.searchsorted(self._pack_ends, number, side="right"))
        name = list(self.shard_counts)[index]
        try:
            return name, *self._files_of_pack(name, number - (self._pack_ends[index] - self.shard_counts[name]))
        except OSError as error:
            raise self._read_error(name, error) from None

    def _read_error(self, name: str, error: OSError) -> PackError:
        return PackError(f"{self._shards.path_of(name)} can't be read: {error.strerror or error}")

    def _files_of_pack(self, name: str, place: int) -> tuple[Bytes, PackFiles]:
        """Return the file that holds the pack `place` of a shard, and its parts, found by the index or a scan."""
        file = self._open_shard(name)
        with suppress(OSError):
            if name not in self._indexes:
                with self._shards.open(f"{name}.idx") as index:
                    self._indexes[name] = index.read(0, index.size)
            data = self._indexes[name][8 * place : 8 * place + 16]
            ends = np.frombuffer(data[: len(data) // 8 * 8], "<u8")
            if len(ends) == 2 and ends[0] < ends[1] <= file.size:
                its_bytes = ByteRange(file, int(ends[0]), int(ends[1] - ends[0]))
                read_ahead([(file, [(int(ends[0]), its_bytes.size)])])  # of an object, read only these bytes
                packs = list(group_files_by_pack(TarScan(its_bytes)))
                if len(packs) == 1 and packs[0].end == its_bytes.size:
                    return its_bytes, packs[0]
        for number, files in enumerate(group_files_by_pack(TarScan(file))):
            if number == place:
                return file, files
        raise PackError(
            f"{self._shards.path_of(name)} has no pack {place}: python -m energon_pack.verify says what is wrong"
        )

    def _open_shard(self, name: str) -> File:
        if name not in self._opened:
            self._opened[name] = self._shards.open(name)
        return self._opened[name]

    def _count_packs(self, name: str) -> int:
        index = self._shards.state(f"{name}.idx")
        if index is not None:
            return max(0, index.size // 8 - 1)
        with suppress(OSError):
            return sum(1 for _ in group_files_by_pack(TarScan(self._open_shard(name))))
        return 0

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without open files."""
        return {n: value for n, value in vars(self).items() if n != "media_reader"} | {"_opened": {}, "_indexes": {}}

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._opened:
            self._opened.popitem()[1].close()


def _is_count(value: object) -> bool:
    """Say whether a value may be a number of packs: `len` must be able to return the sum over all shards."""
    return type(value) is int and 0 <= value < 1 << 40
