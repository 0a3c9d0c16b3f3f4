"""The place of a dataset: a folder, or an object store. A run uses only this interface."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from energon_pack.dataset.energon import changed_keys
from energon_pack.dataset.files import NEEDED, PlanFile, at
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.manifest import MANIFEST, REPORT
from energon_pack.dataset.shards import ShardJob, WrittenShard
from energon_pack.errors import PackError
from energon_pack.run.files import META_FOLDER
from energon_pack.run.plain_data import yaml_value
from energon_pack.run.stores.requests import StoreError
from energon_pack.samples.flavors.base import Flavor
from energon_pack.sources.find import Source

_INDEX_ENTRY = 8  # bytes: the place where a pack starts; the last entry is the end of the shard


class PlanMissing(PackError):
    """There is no plan from `stage=plan` that `stage=write` could write."""


class Destination(ABC):
    """The place of one dataset. A run writes into a staging folder, and the dataset appears at the end, complete.

    Attributes:
        final: the folder of the dataset; for a dataset on an object store, a folder of this machine in its place. Pages
            and ledgers of runs that publish nothing lie beside it.
        named: the dataset as the user named it: a folder, or an address.
        is_stored: its shards are written to an object store.
        write_shard: the job that writes a shard.
    """

    final: Path
    named: str
    is_stored: bool
    write_shard: Callable[[ShardJob], WrittenShard]

    @abstractmethod
    def refuse_source(self, source: Source) -> None:
        """Raise PackError if the source lies in the dataset: a run must not read its own output."""

    @abstractmethod
    def refuse_unwritable(self) -> None:
        """Try to write, now and not after hours of measuring; raise PackError if that fails."""

    @abstractmethod
    def is_free(self) -> bool:
        """Say whether a run would overwrite nothing there."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Say whether a file of the dataset is there."""

    def refuse_existing(self, overwrite: bool) -> None:
        """Refuse to replace an existing dataset."""
        if self.is_free():
            return
        if not overwrite:
            raise PackError(
                f"{self.named} exists; output.overwrite=true replaces it, output.name=NAME writes beside it"
            )
        if not self.has(f"{META_FOLDER}/{MANIFEST}"):
            raise PackError(
                f"{self.named} is not a packed dataset, output.overwrite does not replace it: choose another name"
            )

    def published_report(self) -> dict[str, Any] | None:
        """Return report.json of a complete dataset that is there; None: there is none."""
        return published_report(self.named)

    @abstractmethod
    def staging(self, identity: str, check: Callable[[], None] = lambda: None) -> AbstractContextManager[Path]:
        """Open a folder for only this run, with the finished shards of an earlier run of the same identity.

        It is removed once the dataset is published, or when nothing in it is useful. After a kill or an error it stays,
        for the next run of the same command.

        Args:
            identity: a hash of everything that the bytes of the shards depend on.
            check: raises an error if a plan that is there may not be removed; no other run makes one meanwhile.
        """

    @abstractmethod
    def plan(self) -> Path | None:
        """Return the staging folder with the whole plan that `stage=plan` left; None: there is none."""

    @abstractmethod
    def planned(self) -> AbstractContextManager[Path]:
        """Open the folder that `plan` returns, for one of several processes that write its shards.

        Raises:
            PlanMissing: there is none.
        """

    @abstractmethod
    def begin(self, staging: Path, identity: str, num_bytes: int, overwrite: bool) -> None:
        """Make room for the shards.

        Args:
            num_bytes: approximate bytes of all shards; 0: not known.
            overwrite: whether an existing dataset, and shards of a run of another identity, may be removed now.
        """

    @abstractmethod
    def has_shard(self, job: ShardJob) -> bool:
        """Say whether a process of the same run has finished a shard; its bytes are not read."""

    @abstractmethod
    def for_check(self, staging: Path, shards: Sequence[WrittenShard], flavor: Flavor) -> Path | str:
        """Return the folder or address from which Energon reads the dataset before it is published."""

    @abstractmethod
    def discard(self, staging: Path, identity: str) -> None:
        """Remove all shards, so that no run continues from them; raises PackError if another run writes them
        meanwhile.
        """

    @abstractmethod
    def publish(self, staging: Path, identity: str, overwrite: bool) -> None:
        """Make the dataset appear under its name."""

    @contextmanager
    def discarding(self, staging: Path, identity: str) -> Iterator[None]:
        """Discard the shards if an error means that they are wrong; a store that does not answer is no such error."""
        try:
            yield
        except StoreError:
            raise
        except Exception:
            self.discard(staging, identity)
            raise


def another_run(named: str) -> PackError:
    """Return the error for two runs with the same output."""
    return PackError(f"another run is writing {named}")


def published_report(place: str) -> dict[str, Any] | None:
    """Return report.json of a whole dataset, whose shards and indexes have their written sizes; None: it is not whole.

    An object store is asked once for the list of its objects; no shard is read.
    """
    folder = DatasetFolder(place)
    if not all(map(folder.has, NEEDED)):
        return None
    try:
        report = folder.read_object(REPORT)
        counts = at(folder.read_object(f"{META_FOLDER}/.info.json"), "shard_counts")
        folder.read_object(f"{META_FOLDER}/{MANIFEST}")
        PlanFile(folder).check()
    except (OSError, ValueError):  # somebody else changed a file
        return None
    if "identity" not in report or not isinstance(counts, dict) or sorted(counts) != folder.shards:
        return None
    if any(_size(folder, f"{name}.idx") != (packs + 1) * _INDEX_ENTRY for name, packs in counts.items()):
        return None
    return report if sum(_size(folder, name) for name in counts) == report.get("bytes_written") else None


def refuse_changed(named: str, yamls: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise PackError if Energon would not read a dataset as it was packed."""
    folder = DatasetFolder(named)
    for name, wanted in yamls.items():
        try:
            is_changed = any(changed_keys(yaml_value(folder.read(f"{META_FOLDER}/{name}")), wanted))
        except (OSError, ValueError):
            is_changed = True
        if is_changed:
            raise PackError(
                f"{named} exists, and its {META_FOLDER}/{name} is damaged or was changed: output.overwrite=true"
                " replaces the dataset, output.name=NAME writes beside it"
            )


def _size(folder: DatasetFolder, name: str) -> int:
    state = folder.state(name)
    return -1 if state is None else state.size


def refuse_another(report: dict[str, Any], identity: str, named: str) -> None:
    """Refuse to replace a dataset that a run with the same settings would write differently."""
    if report["identity"] != identity:
        raise PackError(
            f"{named} exists, packed of another source or processor, or by another version:"
            " output.overwrite=true replaces it, output.name=NAME writes beside it"
        )
