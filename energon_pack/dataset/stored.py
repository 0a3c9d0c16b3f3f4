"""A dataset on an object store, which knows no rename: it appears as its metadata do, and these come last.

PREFIX/.staging/NAME/identity     whose shards are being written; goes when the dataset is published
PREFIX/.staging/NAME/.nv-meta/    metadata that names the shards where they are, for the check through Energon
PREFIX/NAME/packed-000000.tar     each shard as it is written, its .tar.idx after it
PREFIX/NAME/.nv-meta/             after all others, and dataset.yaml last of all: before it, nobody reads a dataset
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from energon_pack.dataset.energon import write_energon
from energon_pack.dataset.manifest import MANIFEST
from energon_pack.dataset.shards import WrittenShard
from energon_pack.errors import PackError
from energon_pack.run import stores
from energon_pack.run.files import META_FOLDER
from energon_pack.samples.flavors.base import Flavor

_IDENTITY = "identity"
_CLEARING = b"objects of another run are being removed"
_DATASET = "dataset.yaml"


def refuse_existing_there(address: str, overwrite: bool) -> None:
    """Keep what is there already; what a killed run left is no dataset, and nothing to keep.

    Raises:
        PackError: a dataset without `overwrite`, or anything else at all.
    """
    names = _names(address)
    if not names or _marker(address) is not None:
        return
    if not overwrite:
        raise PackError(f"{address} exists; output.overwrite=true replaces it, output.name=NAME writes beside it")
    if f"{META_FOLDER}/{MANIFEST}" not in names:
        raise PackError(f"{address} is not a packed dataset, output.overwrite does not replace it: choose another name")


def refuse_unwritable_there(knob: str, address: str) -> None:
    """Write an object and remove it: now, not after hours of measuring.

    Raises:
        PackError: that can't be done.
    """
    probe = f"{address}/.staging/probe"
    try:
        stores.put(probe, b"energon_pack")
        stores.delete([probe])
    except (stores.StoreError, FileNotFoundError) as error:  # no such bucket
        raise PackError(f"{knob}={address} can't be written: {error}; choose another {knob}") from None


def begin_there(address: str, identity: str) -> None:
    """Have nothing there but what a killed run of the same identity finished: a dataset that is replaced goes now."""
    if _marker(address) != identity.encode():
        stores.put(_marker_of(address), _CLEARING)
        _clear(address)
        stores.put(_marker_of(address), identity.encode())


def discard_shards(address: str) -> None:
    """Leave nothing for the next run to go on from: shards without their indices are none."""
    stores.delete(f"{address}/{name}" for name in _names(address) if name.endswith(".tar.idx"))


def put_for_check(address: str, shards: Sequence[WrittenShard], flavor: Flavor) -> str:
    """Write metadata beside with which Energon reads the shards where they are; where that dataset is."""
    staging = _staging(address)
    where = f"../../{address.rpartition('/')[2]}"
    with tempfile.TemporaryDirectory() as temporary:
        named = [replace(shard, name=f"{where}/{shard.name}") for shard in shards]
        write_energon(Path(temporary), named, flavor, "typed")
        for path in sorted(Path(temporary, META_FOLDER).iterdir()):
            stores.put(f"{staging}/{META_FOLDER}/{path.name}", path.read_bytes())
    return staging


def publish_there(staging: Path, address: str, identity: str) -> None:
    """Write all but the shards, metadata last, and of these what makes it a dataset.

    Args:
        staging: folder of this machine with these files.

    Raises:
        PackError: another run has written there meanwhile.
    """
    if _marker(address) != identity.encode():
        raise PackError(f"another run is writing {address}: not published")
    files = {path.relative_to(staging).as_posix(): path for path in staging.rglob("*") if path.is_file()}
    last = [f"{META_FOLDER}/{name}" for name in (MANIFEST, _DATASET)]
    for name in sorted(files, key=lambda name: (name in last, name == last[-1], name.startswith(META_FOLDER), name)):
        if name.rpartition("/")[2] != ".identity":
            stores.put_file(f"{address}/{name}", files[name])
    stores.delete(stores.entries(_staging(address)))


def _clear(address: str) -> None:
    """Remove what is there, first what makes it a dataset: nobody may read half of one."""
    names = _names(address)
    first = [name for name in (f"{META_FOLDER}/{_DATASET}", f"{META_FOLDER}/{MANIFEST}") if name in names]
    for name in first:
        stores.delete([f"{address}/{name}"])
    stores.delete(f"{address}/{name}" for name in names if name not in first)


def _names(address: str) -> list[str]:
    return [name[len(address) + 1 :] for name in stores.entries(address)]


def _marker(address: str) -> bytes | None:
    """Of which run the shards there are; None: of none that is not published."""
    try:
        return stores.read_whole(_marker_of(address))
    except FileNotFoundError:
        return None


def _marker_of(address: str) -> str:
    return f"{_staging(address)}/{_IDENTITY}"


def _staging(address: str) -> str:
    return f"{stores.parent(address)}/.staging/{address.rpartition('/')[2]}"
