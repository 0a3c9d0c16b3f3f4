"""Find the files of a source, of whatever form: what is asked of a form, and the names of files in ids of samples.

an entry ──list_folder──► files ──files_of_entry──► FoundFile ──find_source_of_format──► shards of a Source
"""

import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from energon_pack.errors import PackError, amount
from energon_pack.run.address import bucket_of, is_address, lies_in, only_local_paths
from energon_pack.sources.media_files import list_mapped_absolute_paths
from energon_pack.sources.mixture import Mixture
from energon_pack.sources.other_formats import COMPRESSED_NAME, TABLE_FILE, make_compressed_file_error
from energon_pack.sources.row_shard import RowShard
from energon_pack.sources.shard import Shard, TarShard
from energon_pack.sources.storage import (
    FileState,
    absolute,
    folder_of,
    resolve_source_entry,
    state_of,
    walk,
    walk_subfolders,
)

#: the plan of a packed dataset
_PLAN_FILE = re.compile(r"(?:^|/)pack_plan\.[^/]*$")
_SPLIT_NAME = re.compile(r"(?:^|[/_.=-])(train|training|validation|valid|val|dev|test|testing)(?=[/_.-])")
_SPLIT_ALIAS = {"training": "train", "valid": "validation", "val": "validation", "dev": "validation", "testing": "test"}


JSON_FILE = re.compile(r"(?i)\.jsonl?$")
#: what `datasets` writes about a dataset
_ABOUT_DATASET = re.compile(r"(?:^|/)(dataset_infos|dataset_dict|state)\.json$")


def make_shard_of_file(
    name_in_ids: str,
    path: str,
    shard_class: type[Shard] = TarShard,
    shard_fields: Mapping[str, Any] = MappingProxyType({}),
    state: FileState | None = None,
) -> Shard:
    """Make the shard object of a file; raises PackError if it is no regular file, or its name is not UTF-8.

    Args:
        name_in_ids: the file's name in sample ids.
        shard_fields: arguments for `shard_class` that not every kind of shard has.
        state: size and version of the file; None: they are looked up.
    """
    state = state or state_of(path)
    if state is None:
        raise PackError(f"source.path: {path} is not a regular file")
    try:
        name_in_ids = os.fsencode(name_in_ids).decode()  # undo the decoding by the locale
    except UnicodeDecodeError:
        raise PackError(
            f"source.path: the name of {path!r} is not UTF-8, and could not stand in the ledger: rename it"
        ) from None
    return shard_class(name_in_ids, absolute(path), *state, **shard_fields)


@dataclass(frozen=True)
class Source:
    """The shards that `source.path` names, and the folders in which they were found."""

    shards: list[Shard]  # in name order
    folders: frozenset[Path]  # folders that were named as a whole: nothing may be written anywhere in them
    num_left_out: int = 0  # samples that split and exclude leave out, as far as the source says
    stored_folders: frozenset[str] = frozenset()  # addresses of folders on object stores that were named as a whole
    mixture: Mixture | None = None  # None: each sample comes once, or as often as its file's `ratio` says
    #: paths that lead to what another path names, so that it is read once: both paths
    repeated: tuple[tuple[str, str], ...] = ()

    @cached_property
    def parent_folders(self) -> frozenset[Path]:
        """Return the folders of this machine in which files of the source lie."""
        paths = only_local_paths([shard.real_path for shard in self.shards])
        return frozenset(map(Path, map(os.path.dirname, paths)))

    @property
    def media_places(self) -> set[str | None]:
        """Return the folders and addresses in which media of lines lie."""
        return {shard.media_root for shard in self.shards}.union(self._mapped_places)

    @property
    def _mapped_places(self) -> set[str]:
        maps = {shard.row_settings.media_map for shard in self.shards if isinstance(shard, RowShard)}
        return {place for media_map in maps for place in list_mapped_absolute_paths(media_map)}

    @property
    def repeated_files_note(self) -> str:
        """Return a line about files that `source.path` names several times; empty: there are none."""
        if not self.repeated:
            return ""
        number, (path, first) = len(self.repeated), self.repeated[0]
        named = f"{path} twice" if path == first else f"{path}, which is {first}"
        lead = "path leads" if number == 1 else "paths lead"
        return (
            f"source.path names {named}: {number:,} {lead} to what is read already, and is read once; to train it more"
            " often, make it an entry of a mixture with epochs: 2"
        )

    @cached_property
    def root(self) -> str:
        """Return the deepest folder that holds all files and media, or raise PackError: references in packs need it."""
        roots = sorted({shard.names_folder for shard in self.shards}.union(self._mapped_places))
        if len({bucket_of(root) for root in roots}) > 1:
            raise PackError(
                f"output.media=reference: the source lies in {roots[0]} and {roots[-1]}: no folder holds all of it"
            )
        steps = zip(*(root.split("/") for root in roots), strict=False)
        return "/".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, steps)) or "/"

    def protected_folder(self, place: str) -> Path | str | None:
        """Return the source's folder that `place` lies in, where nothing may be written; None: it lies in none."""
        if bucket_of(place):
            beside = {folder_of(shard.path) for shard in self.shards if shard.is_stored}
            inside = next((folder for folder in sorted(self.stored_folders) if lies_in(place, folder)), None)
            return inside or next((folder for folder in (place, folder_of(place)) if folder in beside), None)
        path = Path(place).resolve()
        within = next((folder for folder in self.folders if path.is_relative_to(folder)), None)
        return within or next((folder for folder in (path, path.parent) if folder in self.parent_folders), None)


class FoundFile(NamedTuple):
    """A file that was found for a source, and the class and fields of its shard."""

    path: str
    #: its path with links resolved: a file that is found twice is read once
    real_path: str
    shard_class: type[Shard]
    #: further arguments of the class
    shard_fields: Mapping[str, Any]


class FileFinder(ABC):
    """Finds the files of one format, such as tars; one object serves one search, and remembers the files it found."""

    #: samples that a split or an exclude leaves out, as far as the source says
    num_left_out = 0

    @abstractmethod
    def files_in(self, folder: str) -> list[str]:
        """Return the paths of the files of this format in a folder and its subfolders."""

    @abstractmethod
    def files_of_entry(self, entry: str, folders: Sequence[str], files: Sequence[str]) -> Iterator[FoundFile]:
        """Yield the files to read for an entry of `source.path`; raises PackError if there are none.

        `folders`: those that the entry names; `files`: those that it names, and those found in its folders.
        """

    def complete_shards(self, path: Sequence[str], shards: list[Shard]) -> list[Shard]:
        """Return all shards, with what only their content tells: whether tars hold packs, where media of lines lie."""
        return shards


def find_source_of_format(form: FileFinder, path: Sequence[str]) -> Source:
    """Find the files of one format. `path`: folders, which are searched recursively, files and globs."""
    roots, folders = list[str](), list[str]()
    leaf_of = dict[str, FoundFile]()  # by real path
    repeated: list[tuple[str, str]] = []
    for entry in path:
        root, inside, files = resolve_source_entry(os.path.expanduser(entry))
        roots.append(root)
        folders += inside
        repeated += chain.from_iterable(map(_links_between_subfolders, inside))
        of_entry = set[str]()  # a glob may match a folder and the files in it
        for leaf in form.files_of_entry(entry, inside, [*files, *chain.from_iterable(map(form.files_in, inside))]):
            first = leaf_of.setdefault(leaf.real_path, leaf)
            if first is not leaf and absolute(leaf.path) not in of_entry:
                repeated.append((leaf.path, first.path))
            of_entry.add(absolute(leaf.path))
    leaves = [*leaf_of.values()]
    if compressed := sorted(leaf.path for leaf in leaves if COMPRESSED_NAME.search(leaf.path)):
        raise make_compressed_file_error(compressed[0], len(compressed))
    shards = [
        make_shard_of_file(name, leaf.path, leaf.shard_class, leaf.shard_fields)
        for name, leaf in zip(name_files_for_ids(roots, [leaf.path for leaf in leaves]), leaves, strict=True)
    ]
    local = only_local_paths(folders)
    return Source(
        shards=sorted(form.complete_shards(path, shards), key=lambda shard: shard.name),
        folders=frozenset(Path(folder).resolve() for folder in local),
        stored_folders=frozenset(folders) - local,
        num_left_out=form.num_left_out,
        repeated=tuple(repeated),
    )


def name_files_for_ids(roots: Iterable[str], files: Sequence[str]) -> list[str]:
    """Name each file for sample ids; the names do not depend on where the roots lie.

    With one root, a name is the path from there. With several, it begins with the name of the file's root, and with as
    many folders above the root as are needed to tell roots apart, but none above the folder that holds all roots. A
    root inside another does not count.

    `roots`: folders with the files, in any order; for a file outside of them, its own folder is a root.
    """
    paths = list(map(_as_absolute_path, files))
    folders = _outermost_folders(map(_as_absolute_path, roots))
    outside = {os.path.dirname(path) for path in paths if _deepest_folder_around(path, folders) is None}
    folders = _outermost_folders([*folders, *outside])
    root_of = [_deepest_folder_around(path, folders) or "/" for path in paths]
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


def json_files(folder: str) -> list[str]:
    """Return the *.json of a folder, without those that `datasets` writes about a dataset."""
    files = [file for file in walk(folder, re.compile(r"(?i)\.json$")) if not _ABOUT_DATASET.search(file)]
    infos = [file for file in files if os.path.basename(file) == "dataset_info.json"]  # or LLaMA-Factory's
    saved = (
        {folder_of(file) for file in walk(folder, re.compile(r"(?i)\.arrow$|(^|/)state\.json$"))} if infos else set()
    )
    return [file for file in files if file not in infos or folder_of(file) not in saved]


def table_hint(folders: Sequence[str]) -> str:
    """Return advice to read tables, to put at the end of an error; "" if the folders have none."""
    first = next((file for folder in folders for file in without_plan_files(walk(folder, TABLE_FILE))), None)
    return "" if first is None else f"; source=table reads {first}"


def _as_absolute_path(path: str) -> str:
    """Return the path that names are cut from; an address becomes a path below the root folder."""
    return os.path.join("/", absolute(path).replace("://", ":/", 1))


def _outermost_folders(folders: Iterable[str]) -> set[str]:
    """Return the folders that lie in none of the other folders."""
    every = set(folders)
    return {folder for folder in every if _deepest_folder_around(folder, every) is None}


def _deepest_folder_around(path: str, folders: Collection[str]) -> str | None:
    """Return the deepest of these folders that a path lies in; None: it lies in none."""
    while (above := os.path.dirname(path)) != path:
        if above in folders:
            return above
        path = above
    return None


def files_of_split(
    folder: str, files: Sequence[str], split: str | None, split_of_folder: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Return the files whose paths name this split, as `train` or `validation`; plans of packed datasets are left out.

    Args:
        split: None: all files are returned; raises PackError if their paths name several splits.
        split_of_folder: folders whose split is known.
    """
    split_of_file = {
        file: split_of_folder.get(folder_of(file)) or split_in_path(file.removeprefix(folder).lstrip("/"))
        for file in without_plan_files(files)
    }
    counts = Counter(split_of_file.values())
    seen = ", ".join(f"{name or 'of no split'}: {amount(number, 'file')}" for name, number in counts.items())
    if split is None:
        if len(counts) > 1:
            raise PackError(
                f"source.path={folder}: {seen}; source.split=train takes one split, a list of globs several"
            )
        return list(split_of_file)
    taken = [file for file, name in split_of_file.items() if name in (split, _SPLIT_ALIAS.get(split, split))]
    if split_of_file and not taken:
        raise PackError(f"source.split={split}: {folder} has {seen}")
    return taken


def without_plan_files(files: Sequence[str]) -> list[str]:
    """Return the files that are no plans of packed datasets: plans are Parquet files like the tables of a source."""
    return [file for file in files if not _PLAN_FILE.search(file)]


def split_in_path(name: str) -> str | None:
    """Return the split that a path names last, as `train` or `validation`; None: it names none."""
    named = _SPLIT_NAME.findall(name.lower())
    return _SPLIT_ALIAS.get(named[-1], named[-1]) if named else None


def _links_between_subfolders(folder: str) -> list[tuple[str, str]]:
    """Return the subfolders that are links to others of the same folder, which are walked once, and these others."""
    if is_address(folder):
        return []
    links = [(here, first) for here, _, first in walk_subfolders(folder) if first is not None]
    return [(here, first) for here, first in links if not _lies_within(here, first)]


def _lies_within(path: str, folder: str) -> bool:
    """Tell whether a path is a link back up, to a folder that it lies in."""
    return path.startswith(f"{folder.rstrip('/')}/")
