"""Where a dataset appears: a folder, or an object store. A run knows this face alone."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from energon_pack.dataset.finished import published_report
from energon_pack.dataset.manifest import MANIFEST
from energon_pack.dataset.shards import ShardJob, WrittenShard
from energon_pack.errors import PackError
from energon_pack.run.files import META_FOLDER
from energon_pack.run.stores import StoreError
from energon_pack.samples.flavors.base import Flavor
from energon_pack.sources.shard import Source


class PlanMissing(PackError):
    """`stage=plan` has left no plan that `stage=write` could write."""


class Destination(ABC):
    """The place of one dataset. What a run writes lies in a staging folder, and appears at the end, whole.

    Attributes:
        final: the folder of the dataset; of one on an object store, a folder of this machine in its place. Pages and
            ledgers of runs that publish nothing lie beside it.
        named: the dataset as the user named it.
        for_energon: the dataset as Energon names it.
        address: of the dataset, where its shards are written to an object store, and not into the staging folder.
        write_shard: the job that writes a shard.
    """

    final: Path
    named: str
    for_energon: str
    address: str | None
    write_shard: Callable[[ShardJob], WrittenShard]

    @abstractmethod
    def refuse_source(self, source: Source) -> None:
        """Keep a run from reading what it writes; raises PackError where the source lies in the dataset."""

    @abstractmethod
    def refuse_unwritable(self) -> None:
        """Write something and remove it: now, not after hours of measuring; raises PackError where that fails."""

    @abstractmethod
    def is_free(self) -> bool:
        """Whether nothing is there that a run could overwrite."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether a file of the dataset is there."""

    def refuse_existing(self, overwrite: bool) -> None:
        """Refuse to replace what is there already.

        Raises:
            PackError: a dataset is there and `overwrite` is off; or something that is no dataset, whatever `overwrite`.
        """
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
        """report.json of a whole dataset that is there; None: there is none."""
        return published_report(self.place)

    @property
    @abstractmethod
    def place(self) -> Path | str:
        """The folder of the dataset, or its address."""

    @abstractmethod
    def staging(self, identity: str) -> AbstractContextManager[Path]:
        """A folder for this run alone, with what an earlier run of the same identity left finished.

        It goes once the dataset is published, or when nothing in it is of use; after a kill or an error it stays, for
        the next run of the same command.

        Args:
            identity: a hash of everything that the bytes of the shards depend on.

        Raises:
            PackError: another run is at work on the same dataset.
        """

    @abstractmethod
    def planned(self) -> AbstractContextManager[Path]:
        """The staging folder that `stage=plan` left, for one of several processes that write its shards.

        Raises:
            PlanMissing: there is none.
            PackError: another run is at work on the same dataset.
        """

    @abstractmethod
    def begin(self, staging: Path, identity: str, num_bytes: int, overwrite: bool) -> None:
        """Make room for the shards.

        Args:
            num_bytes: of all of them, about; 0: not known.
            overwrite: a dataset that is there may go now, and shards of a run of another identity.

        Raises:
            PackError: there is less room, or another run writes there.
        """

    @abstractmethod
    def has_shard(self, job: ShardJob) -> bool:
        """Whether a process of the same run has finished a shard; it is looked at, and not read."""

    @abstractmethod
    def for_check(self, staging: Path, shards: Sequence[WrittenShard], flavor: Flavor) -> Path | str:
        """What Energon reads the dataset from before it is published: a folder, or an address."""

    @abstractmethod
    def discard(self, staging: Path, identity: str) -> None:
        """Leave no shard for the next run to go on from; raises PackError where another run writes them meanwhile."""

    @abstractmethod
    def publish(self, staging: Path, identity: str, overwrite: bool) -> None:
        """Have the dataset appear under its name.

        Raises:
            PackError: another run wrote or published there meanwhile.
        """

    @contextmanager
    def discarding(self, staging: Path, identity: str) -> Iterator[None]:
        """Discard the shards where an error says that they are wrong; a store that does not answer says nothing."""
        try:
            yield
        except StoreError:
            raise
        except Exception:
            self.discard(staging, identity)
            raise


def another_run(named: str) -> PackError:
    """Two runs want one place."""
    return PackError(f"another run is writing {named}")
