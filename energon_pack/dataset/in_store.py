"""A dataset on an object store, which knows no rename: it appears as its metadata do, and these come last.

PREFIX/.staging/NAME/identity     whose shards are being written; goes when the dataset is published
PREFIX/.staging/NAME/.nv-meta/    metadata that names the shards where they are, for the check through Energon
PREFIX/NAME/packed-000000.tar     each shard as it is written, its .tar.idx after it
PREFIX/NAME/.nv-meta/             after all others, and dataset.yaml last of all: before it, nobody reads a dataset
"""

import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

from energon_pack.dataset.destination import Destination, another_run
from energon_pack.dataset.energon import write_energon
from energon_pack.dataset.in_folder import InFolder
from energon_pack.dataset.manifest import MANIFEST
from energon_pack.dataset.put_shard import is_put, put_shard
from energon_pack.dataset.shards import ShardJob, WrittenShard
from energon_pack.errors import PackError
from energon_pack.run import stores
from energon_pack.run.files import META_FOLDER
from energon_pack.run.stores import energon_address, lies_in, parent
from energon_pack.samples.flavors.base import Flavor
from energon_pack.sources.shard import Source

_CLEARING = b"objects of another run are being removed"
_DATASET = "dataset.yaml"


class InStore(Destination):
    """A prefix of a bucket.

    Args:
        address: of the dataset.
        final: a folder of this machine in its place: its staging folder holds everything but the shards.
    """

    def __init__(self, address: str, final: Path):
        self.final = final
        self.named = address
        self.for_energon = energon_address(address)
        self.address = address
        self.write_shard = partial(put_shard, address)
        self._here = InFolder(final)
        self._staging = f"{parent(address)}/.staging/{address.rpartition('/')[2]}"

    @property
    def place(self) -> str:
        return self.named

    def refuse_source(self, source: Source) -> None:
        if inside := next((shard.path for shard in source.shards if lies_in(shard.path, self.named)), None):
            raise PackError(f"the source {inside} lies in {self.named}: choose another output.dir or output.name")

    def refuse_unwritable(self) -> None:
        refuse_unwritable_address("output.dir", parent(self.named))

    def is_free(self) -> bool:
        return not self._names() or self._marker() is not None  # what a killed run left is no dataset

    def has(self, name: str) -> bool:
        return name in self._names()

    def staging(self, identity: str) -> AbstractContextManager[Path]:
        return self._here.staging(identity)

    def planned(self) -> AbstractContextManager[Path]:
        return self._here.planned()

    def begin(self, staging: Path, identity: str, num_bytes: int) -> None:
        if self._marker() != identity.encode():  # a dataset that is replaced goes now
            stores.put(self._marker_address, _CLEARING)
            self._clear()
            stores.put(self._marker_address, identity.encode())

    def has_shard(self, job: ShardJob) -> bool:
        return is_put(self.named, job)

    def for_check(self, staging: Path, shards: Sequence[WrittenShard], flavor: Flavor) -> str:
        where = f"../../{self.named.rpartition('/')[2]}"
        with tempfile.TemporaryDirectory() as temporary:
            named = [replace(shard, name=f"{where}/{shard.name}") for shard in shards]
            write_energon(Path(temporary), named, flavor, "typed")
            for path in sorted(Path(temporary, META_FOLDER).iterdir()):
                stores.put(f"{self._staging}/{META_FOLDER}/{path.name}", path.read_bytes())
        return self._staging

    def discard(self, staging: Path, identity: str) -> None:
        stores.delete(f"{self.named}/{name}" for name in self._names() if name.endswith(".tar.idx"))

    def publish(self, staging: Path, identity: str, overwrite: bool) -> None:
        if self._marker() != identity.encode():
            raise another_run(self.named)
        files = {path.relative_to(staging).as_posix(): path for path in staging.rglob("*") if path.is_file()}
        last = [f"{META_FOLDER}/{name}" for name in (MANIFEST, _DATASET)]
        for name in sorted(
            files, key=lambda name: (name in last, name == last[-1], name.startswith(META_FOLDER), name)
        ):
            if name.rpartition("/")[2] != ".identity":
                stores.put_file(f"{self.named}/{name}", files[name])
        stores.delete(stores.entries(self._staging))

    def _clear(self) -> None:
        """Remove what is there, first what makes it a dataset: nobody may read half of one."""
        names = self._names()
        first = [name for name in (f"{META_FOLDER}/{_DATASET}", f"{META_FOLDER}/{MANIFEST}") if name in names]
        for name in first:
            stores.delete([f"{self.named}/{name}"])
        stores.delete(f"{self.named}/{name}" for name in names if name not in first)

    def _names(self) -> list[str]:
        return [name[len(self.named) + 1 :] for name in stores.entries(self.named)]

    def _marker(self) -> bytes | None:
        """Of which run the shards there are; None: of none that is not published."""
        try:
            return stores.read_whole(self._marker_address)
        except FileNotFoundError:
            return None

    @property
    def _marker_address(self) -> str:
        return f"{self._staging}/identity"


def refuse_unwritable_address(knob: str, address: str) -> None:
    """Write an object and remove it.

    Raises:
        PackError: that can't be done.
    """
    probe = f"{address}/.staging/probe"
    try:
        stores.put(probe, b"energon_pack")
        stores.delete([probe])
    except (stores.StoreError, FileNotFoundError) as error:  # no such bucket
        raise PackError(f"{knob}={address} can't be written: {error}; choose another {knob}") from None
