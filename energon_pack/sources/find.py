"""Which files a source is: folders, tars or JSONL, globs, less what Energon's split or excludes leave out."""

import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path

from energon_pack.errors import PackError
from energon_pack.sources.selection import Selection
from energon_pack.sources.storage import expand, open_file, real_path, state_of, walk
from energon_pack.sources.tar import compression

_TARS = re.compile(r"\.(tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz|zst|zstd|lz4))$")
_LINES = re.compile(r"\.jsonl?$")
_ENDING = re.compile(r"\.(tgz|tbz2?|txz|gz|bz2|xz|zst|zstd|lz4)$")
_COMPRESSED_NAMES = re.compile(r"\.(tgz|tbz2?|txz|tar\.(gz|bz2|xz|zst|zstd|lz4))$")


@dataclass(frozen=True)
class Lines:
    """How the samples of a JSONL file are read; names are those of LLaMA-Factory's and Automodel's meta files."""

    media_root: str
    #: field → what it is called in this file
    columns: tuple[tuple[str, str], ...] = ()
    #: `role_tag`, `user_tag` … → how a message spells it
    tags: tuple[tuple[str, str], ...] = ()
    #: how often a sample is drawn
    ratio: float = 1.0


@dataclass(frozen=True)
class Shard:
    """One source file, and how to tell whether it is still the same."""

    name: str  # as `names_of` gives it, with forward slashes
    path: str
    size: int
    version: str
    lines: Lines | None = None  # None: a tar

    @cached_property
    def real_path(self) -> str:
        """Where it lies, links resolved."""
        return real_path(self.path)

    def sample_id(self, key: str) -> str:
        """`<shard>/<key>` in a tar, `<file>:<line>` in a JSONL file."""
        return f"{self.name}{':' if self.lines else '/'}{key}"


@dataclass(frozen=True)
class Source:
    """The files that `source.path` names, and what of them is left out."""

    shards: list[Shard]  # in name order
    folders: frozenset[Path]  # named as a whole: nothing may be written anywhere in them
    excluded: dict[str, frozenset[str]] = field(default_factory=dict)  # shard name → keys of the samples left out
    num_left_out: int = 0  # samples of shards left out whole, as far as the source says

    @cached_property
    def beside(self) -> frozenset[Path]:
        """The folders in which its files are."""
        return frozenset(map(Path, {os.path.dirname(shard.real_path) for shard in self.shards}))

    def around(self, place: Path) -> Path | None:
        """The folder of the source in which, or beside whose files, a place lies: nothing is written there."""
        place = place.resolve()
        inside = next((folder for folder in self.folders if place.is_relative_to(folder)), None)
        return inside or next((folder for folder in (place, place.parent) if folder in self.beside), None)


def find_shards(path: str | Sequence[str], split: str | None = None) -> Source:
    """The tars of a source.

    Args:
        path: a folder (searched recursively), a tar, a glob, or a list of these.
        split: the part of a prepared folder's `split.yaml` to take; None takes all. What it excludes is always out.

    Raises:
        PackError: nothing there, no such split, or compressed tars among it.
    """
    found: dict[str, str] = {}  # real path → path
    roots: list[str] = []
    folders: list[str] = []
    excluded: dict[str, frozenset[str]] = {}  # by real path
    selection = Selection(split)
    num_left_out = 0
    for entry in [path] if isinstance(path, str) else path:
        root, entry_folders, files = expand(os.path.expanduser(entry))
        roots.append(root)
        folders += entry_folders
        tars = list(chain(files, *(walk(folder, _TARS) for folder in entry_folders)))
        if not tars:
            has_lines = any(walk(folder, _LINES) for folder in entry_folders)
            raise PackError(f"source.path={entry}: no *.tar there" + "; source=jsonl reads JSONL" * has_lines)
        if lines := next(filter(_LINES.search, tars), None):
            raise PackError(f"source.path={entry}: {lines} is no tar; source=jsonl reads JSONL")
        for tar in tars:
            real = real_path(tar)
            if real in found:
                continue
            left_out = selection.left_out(tar)
            num_left_out += left_out.num_samples
            if left_out.keys is not None:
                found[real], excluded[real] = tar, left_out.keys
        for folder in entry_folders:
            selection.check_complete(folder, tars)
    if not found:
        raise PackError(f"source.path={path}: every tar is left out by source.split={split} or by an exclude")
    compressed = sorted(tar for tar in found.values() if _COMPRESSED_NAMES.search(tar))
    if compressed:
        raise compressed_error(compressed[0], len(compressed))
    names = dict(zip(found, names_of(roots, list(found.values())), strict=True))
    return Source(
        shards=sorted((shard_of(names[real], tar) for real, tar in found.items()), key=lambda shard: shard.name),
        folders=frozenset(Path(folder).resolve() for folder in folders),
        excluded={names[real]: keys for real, keys in excluded.items() if keys},
        num_left_out=num_left_out,
    )


def shard_of(name: str, path: str, lines: Lines | None = None) -> Shard:
    """A file as it is now.

    Raises:
        PackError: it is not a regular file, or its name can't stand in the ledger.
    """
    state = state_of(path)
    if state is None:
        raise PackError(f"source.path: {path} is not a regular file")
    try:
        name = os.fsencode(name).decode()  # whatever the locale took the bytes for
    except UnicodeDecodeError:
        raise PackError(
            f"source.path: the name of {path!r} is not UTF-8, and could not stand in the ledger: rename it"
        ) from None
    return Shard(name, os.path.abspath(path), *state, lines)


def names_of(roots: Iterable[str], files: Sequence[str]) -> list[str]:
    """What each file is called in sample ids: the same wherever its root lies.

    One root: the path from there. Several: each under the name of its root, with as many of the folders above it as
    tell the roots apart, and none above the folder that holds them all. A root inside another is no root.

    Args:
        roots: folders the files lie in, in any order; of a file that lies in none of them, its own folder is one.
    """
    paths = [os.path.abspath(file) for file in files]
    folders = _outermost(os.path.abspath(root) for root in roots)
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


def _outermost(folders: Iterable[str]) -> set[str]:
    """Folders that lie in no other of them."""
    every = set(folders)
    return {folder for folder in every if _above(folder, every) is None}


def _above(path: str, folders: Collection[str]) -> str | None:
    """The nearest of these folders that a path lies in."""
    while (above := os.path.dirname(path)) != path:
        if above in folders:
            return above
        path = above
    return None


def compressed_error(path: str, number: int = 1) -> PackError:
    """What to do about a compressed file, with a command after which the same source is read."""
    with open_file(path) as file:
        command = compression(file)
    stem = _ENDING.sub("", path)
    plain = f"{stem}.tar" if _COMPRESSED_NAMES.search(path) and not stem.endswith(".tar") else stem
    made = plain if plain != path else f"{path}.plain"
    rest = f"rm {shlex.quote(path)}" if plain != path else f"mv {shlex.quote(made)} {shlex.quote(path)}"
    unpack = f"{command} < {shlex.quote(path)} > {shlex.quote(made)} && {rest}"
    if command is None:  # only its name says so
        unpack = f"mv {shlex.quote(path)} {shlex.quote(plain)}"
    others = f" (and {number - 1} more)" if number > 1 else ""
    return PackError(f"{path}{others} is compressed, sources are read in place: replace it by what it holds: {unpack}")
