"""Find the files of a source, of whatever form: what is asked of a form, and the names of files in ids of samples.

an entry of source.path ──Form.in_folder──► files ──Form.leaves──► Leaf ──find_files──► the shards of a Source
"""

import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from energon_pack.errors import PackError, amount
from energon_pack.run.address import on_this_machine
from energon_pack.sources.compressed import COMPRESSED, compressed_error
from energon_pack.sources.foreign_formats import PARQUET
from energon_pack.sources.shard import Shard, Source, shard_of
from energon_pack.sources.storage import absolute, expand, walk

#: the plan of a packed dataset
_NO_SAMPLES = re.compile(r"(?:^|/)pack_plan\.[^/]*$")
_NAMED = re.compile(r"(?:^|[/_.-])(train|training|validation|valid|val|dev|test|testing)(?=[/_.-])")
_ALIKE = {"training": "train", "valid": "validation", "val": "validation", "dev": "validation", "testing": "test"}


LINES = re.compile(r"(?i)\.jsonl?$")
_PARQUET = re.compile(r"(?i)\.parquet$")


class Leaf(NamedTuple):
    """A file of a source that was found."""

    path: str
    #: its path with links resolved: a file that is found twice is read once
    real_path: str
    kind: type[Shard]
    #: the fields of its class
    fields: Mapping[str, Any]


class Form(ABC):
    """How the files of one form are found; each source has an object of its own."""

    #: samples that a split or an exclude leaves out, as far as the source says
    num_left_out = 0

    @abstractmethod
    def in_folder(self, folder: str) -> list[str]:
        """Return the files of this form in a folder and its subfolders."""

    @abstractmethod
    def leaves(self, entry: str, folders: Sequence[str], files: Sequence[str]) -> Iterator[Leaf]:
        """Yield the files of an entry of `source.path` that are read."""

    def finished(self, path: Sequence[str], shards: list[Shard]) -> list[Shard]:
        """Return the files of all entries with what only the files themselves tell."""
        return shards


def find_files(form: Form, path: Sequence[str]) -> Source:
    """Find the files of one form in folders (searched recursively), files and globs."""
    roots, folders = list[str](), list[str]()
    found = dict[str, Leaf]()  # by real path
    for entry in path:
        root, inside, files = expand(os.path.expanduser(entry))
        roots.append(root)
        folders += inside
        for leaf in form.leaves(entry, inside, [*files, *chain.from_iterable(map(form.in_folder, inside))]):
            found.setdefault(leaf.real_path, leaf)
    leaves = [*found.values()]
    if compressed := sorted(leaf.path for leaf in leaves if COMPRESSED.search(leaf.path)):
        raise compressed_error(compressed[0], len(compressed))
    shards = [
        shard_of(name, leaf.path, leaf.kind, leaf.fields)
        for name, leaf in zip(names_of(roots, [leaf.path for leaf in leaves]), leaves, strict=True)
    ]
    local = on_this_machine(folders)
    return Source(
        shards=sorted(form.finished(path, shards), key=lambda shard: shard.name),
        folders=frozenset(Path(folder).resolve() for folder in local),
        stored=frozenset(folders) - local,
        num_left_out=form.num_left_out,
    )


def names_of(roots: Iterable[str], files: Sequence[str]) -> list[str]:
    """Name each file for sample ids; the names do not depend on where the roots lie.

    With one root, a name is the path from there. With several, it begins with the name of the file's root, and with as
    many folders above the root as are needed to tell roots apart, but none above the folder that holds all roots. A
    root inside another does not count.

    `roots`: folders with the files, in any order; for a file outside of them, its own folder is a root.
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


def of_split(folder: str, files: Sequence[str], split: str | None) -> list[str]:
    """Return the files of a split that hold samples. `split`: its name; None: there is only one."""
    found = {file: split_of(file.removeprefix(folder).lstrip("/")) for file in with_samples(files)}
    counts = Counter(found.values())
    seen = ", ".join(f"{name or 'of no split'}: {amount(number, 'file')}" for name, number in counts.items())
    if split is None:
        if len(counts) > 1:
            raise PackError(
                f"source.path={folder}: {seen}; source.split=train takes one split, a list of globs several"
            )
        return list(found)
    taken = [file for file, name in found.items() if name == _ALIKE.get(split, split)]
    if found and not taken:
        raise PackError(f"source.split={split}: {folder} has {seen}")
    return taken


def with_samples(files: Sequence[str]) -> list[str]:
    """Leave out tables that hold no samples."""
    return [file for file in files if not _NO_SAMPLES.search(file)]


def split_of(name: str) -> str | None:
    """Return the last split that a path below its folder names; None: it names none."""
    named = _NAMED.findall(name)
    return _ALIKE.get(named[-1], named[-1]) if named else None
