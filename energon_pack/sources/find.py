"""Find the tars of a source from folders, files and globs, without those that Energon's split or excludes leave out."""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from pathlib import Path

from energon_pack.errors import PackError
from energon_pack.run.stores import on_this_machine
from energon_pack.sources.compressed import COMPRESSED_NAMES, compressed_error, plain_copies, plain_name
from energon_pack.sources.field_map import read_field_map
from energon_pack.sources.other_formats import PARQUET
from energon_pack.sources.prepared import LeftOut, Selection
from energon_pack.sources.shard import Source, shard_of
from energon_pack.sources.storage import absolute, expand, real_path, walk

TARS = re.compile(r"(?i)\.(tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz|zst|zstd|lz4))$")
LINES = re.compile(r"(?i)\.jsonl?$")
_PARQUET = re.compile(r"(?i)\.parquet$")


def find_shards(path: str | Sequence[str], split: str | None = None, copies: Path | None = None) -> Source:
    """Find the tars of a source.

    Args:
        path: a folder (searched recursively), a tar, a glob, or a list of these.
        split: the part of a prepared folder's `split.yaml` to take; None: all parts. Excluded samples are always left
            out.
        copies: where uncompressed copies of compressed tars are kept; None: compressed tars are refused.

    Raises:
        PackError: there are no tars, no such split, or compressed tars.
    """
    found: dict[str, str] = {}  # real path → path
    roots: list[str] = []
    folders: list[str] = []
    left_out: dict[str, LeftOut] = {}  # by real path
    selection = Selection(split)
    for entry in [path] if isinstance(path, str) else path:
        root, entry_folders, files = expand(os.path.expanduser(entry))
        roots.append(root)
        folders += entry_folders
        tars = list(chain(files, *(walk(folder, TARS) for folder in entry_folders)))
        if not tars:
            if any(walk(folder, LINES) for folder in entry_folders):
                raise PackError(f"source.path={entry}: no *.tar there; source=jsonl reads JSONL")
            raise PackError(f"source.path={entry}: no *.tar there{but_parquet(entry_folders)}")
        if lines := next(filter(LINES.search, tars), None):
            raise PackError(f"source.path={entry}: {lines} is no tar; source=jsonl reads JSONL")
        for tar in tars:
            real = real_path(tar)
            if real in found:
                continue
            left_out[real] = selection.left_out(tar)
            if left_out[real].keys is not None:
                found[real] = tar
        for folder in entry_folders:
            selection.check_complete(folder, tars)
    if not found:
        raise PackError(f"source.path={path}: every tar is left out by source.split={split} or by an exclude")
    compressed = sorted(tar for tar in found.values() if COMPRESSED_NAMES.search(tar))
    if compressed and copies is None:
        raise compressed_error(compressed[0], len(compressed))
    plain = plain_copies(compressed, copies) if copies else {}
    called = [plain_name(tar) if tar in plain else tar for tar in found.values()]
    if twice := [tar for tar, times in Counter(called).items() if times > 1]:
        raise PackError(f"source.path: {twice[0]} is there compressed, too: leave one of them out")
    names = dict(zip(found, names_of(roots, called), strict=True))
    prepared = {real: selection.prepared_folder(tar) or "" for real, tar in found.items()}
    maps = {folder: read_field_map(folder) if folder else None for folder in sorted({*prepared.values()})}
    shards = (shard_of(names[real], plain.get(tar, tar), field_map=maps[prepared[real]]) for real, tar in found.items())
    return Source(
        shards=sorted(shards, key=lambda shard: shard.name),
        folders=local_folders(folders),
        stored=frozenset(folders) - on_this_machine(folders),
        excluded={names[real]: keys for real in found if (keys := left_out[real].keys)},
        num_left_out=sum(item.num_samples for item in left_out.values()),
    )


def names_of(roots: Iterable[str], files: Sequence[str]) -> list[str]:
    """Name each file for sample ids; the names do not depend on where the roots lie.

    With one root, a name is the path from there. With several, it begins with the name of the file's root, and with as
    many folders above the root as are needed to tell roots apart, but none above the folder that holds all roots. A
    root inside another does not count.

    Args:
        roots: folders with the files, in any order; for a file outside of them, its own folder is a root.
    """
    paths = list(map(_as_path, files))
    folders = _outermost(map(_as_path, roots))
    outside = {os.path.dirname(path) for path in paths if _above(path, folders) is None}
    folders = _outermost([*folders, *outside])
    root_of = [_above(path, folders) or "/" for path in paths]
    in_root = [path[len(root) :].lstrip("/") for path, root in zip(paths, root_of, strict=True)]
    if len(folders) == 1:
        return in_root
    common = os.path.commonpath(folders)
    depths = dict.fromkeys(folders, 1)
    while True:
        tails = {root: "/".join(root[len(common) :].strip("/").split("/")[-depth:]) for root, depth in depths.items()}
        names = [f"{tails[root]}/{rest}" for root, rest in zip(root_of, in_root, strict=True)]
        times, times_of_tails = Counter(names), Counter(tails.values())
        unclear = {root for root, tail in tails.items() if times_of_tails[tail] > 1}
        unclear |= {root for root, name in zip(root_of, names, strict=True) if times[name] > 1}
        if not unclear:
            return names
        for root in unclear:
            depths[root] += 1


def but_parquet(folders: Sequence[str]) -> str:
    """Return a remark if folders have Parquet; else an empty text."""
    return f" but {PARQUET}" if any(walk(folder, _PARQUET) for folder in folders) else ""


def local_folders(folders: Iterable[str]) -> frozenset[Path]:
    """Return the folders that are on this machine, with links resolved."""
    return frozenset(Path(folder).resolve() for folder in on_this_machine(folders))


def _as_path(path: str) -> str:
    """Return the path that names are cut from; an address becomes a path below the root folder."""
    return os.path.join("/", absolute(path).replace("://", ":/", 1))


def _outermost(folders: Iterable[str]) -> set[str]:
    """Return the folders that lie in no other of them."""
    every = set(folders)
    return {folder for folder in every if _above(folder, every) is None}


def _above(path: str, folders: Collection[str]) -> str | None:
    """Return the nearest of these folders that a path lies in."""
    while (above := os.path.dirname(path)) != path:
        if above in folders:
            return above
        path = above
    return None
