"""Find the files of rows of a source: JSONL, tables of a folder, and what meta files list.

`datasets.save_to_disk` writes tables into a folder with a state.json, which names its files; others are caches of `map`
and `filter`. A DatasetDict has a dataset_dict.json, and a subfolder for each split.
"""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

from energon_pack.errors import PackError, amount
from energon_pack.run.address import bucket_of
from energon_pack.run.console import say
from energon_pack.run.untrusted_input import parse_json
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.sources.find import (
    FileFinder,
    FoundFile,
    files_of_split,
    json_files,
    split_in_path,
    table_hint,
    without_plan_files,
)
from energon_pack.sources.jsonl.dialects import RowSettings
from energon_pack.sources.jsonl.line_index import ROW_PART
from energon_pack.sources.jsonl.meta_files import MetaEntryChooser, listed_files
from energon_pack.sources.media_files import open_medium, path_in_archive, replace_mapped_prefix, split_file_and_key
from energon_pack.sources.other_formats import PARQUET_SUFFIX, TABLE_FILE
from energon_pack.sources.row_shard import RowShard
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.shard import JsonlShard, Shard
from energon_pack.sources.storage import folder_of, names_in, path_in, read_whole, real_path, walk

_NUM_PROBED_SAMPLES = 16
_MAX_PROBED_MEDIA, _MAX_PROBED_MEDIA_STORED = 8, 2  # names of media that are looked up in each place
_MAX_FOLDERS = 64  # subfolders of one folder: if there are more, each probably holds one sample's media
_LEDGER_NAME = "skipped.jsonl"  # the ledger that packing and converting write beside their output


class RowFileFinder(FileFinder):
    """Finds the files that one subclass of `RowShard` reads: JSONL, tables, or files of another package's class.

    `stems`: paths of tars without extensions; files with these names describe the tars, and are left out.
    """

    def __init__(self, settings: SourceConfig, kind: type[RowShard], stems: Collection[str] | None = None):
        root = settings.media_root
        if root is not None and not _can_hold_media(os.path.expanduser(root)):
            raise PackError(f"source.media_root={root}: no such folder or zip archive")
        self._settings, self._kind, self._stems = settings, kind, stems
        self._entries = MetaEntryChooser(settings.datasets)
        self._settings_of_file = dict[str, RowSettings]()  # by real path

    def files_in(self, folder: str) -> list[str]:
        files = walk(folder, self._kind.names)
        files = files if self._stems is None else without_ledgers_and_sidecars(self._stems, files)
        lone = [] if files or self._kind.names is not JsonlShard.names else json_files(folder)
        files = lone if len(lone) == 1 else files
        split = self._settings.split  # lines without a split in their names are read as they are
        has_splits = self._kind.has_splits or (split and any(split_in_path(file[len(folder) :]) for file in files))
        return files_of_split(folder, files, split) if has_splits else files

    def files_of_entry(self, entry: str, folders: Sequence[str], files: Sequence[str]) -> Iterator[FoundFile]:
        if not files and self._kind.names is not JsonlShard.names:
            raise PackError(f"source.path={entry}: no file there is called {self._kind.names.pattern}")
        if not files:
            several = sorted(file for folder in folders for file in json_files(folder))
            named = f", and several *.json ({', '.join(several[:3])}{', …' * (len(several) > 3)}): name the one to read"
            raise PackError(f"source.path={entry}: no *.jsonl there{named * (len(several) > 1)}{table_hint(folders)}")
        for file in files:
            for listed, rows in listed_files(file, self._settings, self._entries):
                real = real_path(listed)
                if self._settings_of_file.setdefault(real, rows) != rows:
                    raise PackError(f"source.path={entry}: {listed} is there twice, to be read in two ways")
                yield FoundFile(listed, real, self._kind, {"row_settings": rows})

    def complete_shards(self, path: Sequence[str], shards: list[Shard]) -> list[Shard]:
        self._entries.check()
        if self._settings.media_root is not None:
            return shards
        return [_with_media_root(shard, self._settings) for shard in shards]


def without_ledgers_and_sidecars(stems: Collection[str], files: Sequence[str]) -> list[str]:
    """Return the files except ledgers (skipped.jsonl) and those named like a tar. `stems`: tars without extensions."""
    return [file for file in files if not file.endswith(_LEDGER_NAME) and without_extensions(file) not in stems]


def without_extensions(file: str) -> str:
    """Return the path of a JSONL or a table without its extensions: `a.jsonl.gz` → `a`."""
    return re.sub(r"(?i)\.(parquet|arrow|(csv|tsv|jsonl)(\.\w+)?)$", "", file)


def _with_media_root(shard: Shard, settings: ReadSettings) -> Shard:
    """Return the shard with the `media_root` in which its media were found; unchanged if they lie beside it."""
    if not isinstance(shard, RowShard) or shard.media_root != folder_of(shard.path):
        return shard  # a meta file names it
    root = _find_media_root(shard, settings)
    return shard if root is None else replace(shard, row_settings=replace(shard.row_settings, media_root=root))


def _find_media_root(shard: RowShard, settings: ReadSettings) -> str | None:
    """Find the folder near a file that holds most of the media of its first samples; PackError: two hold as many.

    None: the media lie beside the file, or in no folder near it, or the samples name none.
    """
    folder = folder_of(shard.path)
    most_names = _MAX_PROBED_MEDIA_STORED if shard.is_stored else _MAX_PROBED_MEDIA
    names = [*dict.fromkeys(_first_media_names(shard, settings))][:most_names]
    if not names or any(_has_medium(folder, name) for name in names):
        return None
    num_in = {root: sum(_has_medium(root, name) for name in names) for root in _candidate_media_roots(shard.path)}
    most = max(num_in.values(), default=0)
    best = [root for root, number in num_in.items() if number == most]
    if most and len(best) > 1:
        raise PackError(
            f"{shard.path}: {names[0]} is in {best[0]} and in {best[1]}: source.media_root=FOLDER says which is meant"
        )
    return best[0] if most else None


def _first_media_names(shard: RowShard, settings: ReadSettings) -> Iterator[str]:
    for raw in shard.first(_NUM_PROBED_SAMPLES):
        with suppress(Skip):
            for name in shard.record(raw, ROW_PART, False, settings).listed_media or ():
                name = replace_mapped_prefix(name, shard.row_settings.media_map)
                if "://" not in name and not os.path.isabs(name) and split_file_and_key(name)[1] is None:
                    yield name


def _can_hold_media(root: str) -> bool:
    """Tell whether there is a folder, or a zip archive, of this path; an address counts as one."""
    return (
        bool(bucket_of(root)) or os.path.isdir(root) or (path_in_archive(root, "") is not None and os.path.isfile(root))
    )


def _candidate_media_roots(path: str) -> Iterator[str]:
    folder = folder_of(path)
    above = folder_of(folder)
    stem = os.path.basename(path).partition(".")[0]
    yield above
    for place in (*_folders_and_zips_in(folder), *(place for place in _folders_and_zips_in(above) if place != folder)):
        yield from (place, path_in(place, stem))


def _folders_and_zips_in(folder: str) -> list[str]:
    names = [name for name in names_in(folder) if not name.startswith(".")]
    folders = [name.rstrip("/") for name in names if name.endswith("/")]
    archives = [name for name in names if name.endswith(".zip")]
    groups = [group for group in (folders, archives) if len(group) <= _MAX_FOLDERS]
    return sorted(path_in(folder, name) for name in chain.from_iterable(groups))


def _has_medium(root: str, name: str) -> bool:
    try:
        with open_medium(path_in_archive(root, name) or path_in(root, name)):
            return True
    except (OSError, KeyError, ValueError, Skip):
        return False


#: kinds of tables: a folder's tables are those of the first kind that it has, for the others may be about these
_KINDS = (re.compile(r"(?i)\.parquet$"), re.compile(r"(?i)\.arrow$"), re.compile(r""))
#: what `datasets` writes beside tables while it works on them
_CACHE_FILE = re.compile(r"(?:^|/)(cache-|tmp)[^/]*\.arrow$")
_STATE = re.compile(r"(?:^|/)state\.json$")
_SPLITS = re.compile(r"(?:^|/)dataset_dict\.json$")


class TableFinder(RowFileFinder):
    """Finds tables."""

    def files_in(self, folder: str) -> list[str]:
        files, unread = find_sample_tables_and_others(folder, self._stems or ())
        print_unread_tables(folder, unread if self._stems is None else ())
        return files_of_split(folder, files, self._settings.split, _folders_of_splits(folder))


def print_unread_tables(entry: str, tables: Collection[str]) -> None:
    """Print which tables of an entry of `source.path` are not read."""
    if tables:
        named = f"{amount(len(tables), 'table')} ({', '.join(sorted(tables)[:3])}{', …' * (len(tables) > 3)})"
        say(f"{entry}: left out, for they may be about the other files: {named}; a glob names them")


def is_parquet(file: str) -> bool:
    """Tell whether a file is called Parquet."""
    return file.lower().endswith(PARQUET_SUFFIX)


def find_sample_tables_and_others(folder: str, tar_stems: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the tables of a folder that hold samples, and those of other kinds, which may be about the samples.

    `tar_stems`: paths of tars without extensions; tables of these names are about the tars.
    """
    candidates = without_plan_files(without_ledgers_and_sidecars(tar_stems, walk(folder, TABLE_FILE)))
    files = _without_caches(folder, candidates)
    kind = next((kind for kind in _KINDS if any(map(kind.search, files))), _KINDS[-1])
    chosen = list(filter(kind.search, files))
    first_of_name: dict[str, str] = {}
    for file in chosen:
        if (first := first_of_name.setdefault(without_extensions(file), file)) is not file:
            raise PackError(f"source.path={folder}: {first} and {file} may be the same rows: a glob names one of them")
    return chosen, [file for file in files if not kind.search(file)]


def _without_caches(folder: str, files: Collection[str]) -> list[str]:
    """Leave out the Arrow files of saved datasets that their state.json does not name, and caches elsewhere."""
    if not any(map(_KINDS[1].search, files)):
        return [*files]
    states = {folder_of(state): _saved_files(state) for state in walk(folder, _STATE)}
    named = {beside: names for beside, names in states.items() if names is not None}
    present = {*files}
    for beside, names in named.items():
        if lost := min(names - present, default=None):
            raise PackError(f"{path_in(beside, 'state.json')} names {lost}, which is not there: get it again")

    def is_cache(file: str) -> bool:
        is_named = file in named.get(folder_of(file), {file})
        return bool(_KINDS[1].search(file)) and (not is_named or bool(_CACHE_FILE.search(file)))

    return [file for file in files if not is_cache(file)]


def _saved_files(state: str) -> set[str] | None:
    """Return the files that a state.json of `datasets` names; None: another tool wrote it."""
    value = _read_object(state)
    if value.get("_indices_data_files"):
        raise PackError(f"{state}: chosen rows of files, by an old version of datasets: save it again by a new one")
    items = value.get("_data_files")
    if not isinstance(items, list):
        return None
    names = [item.get("filename") for item in items if isinstance(item, dict)]
    return {path_in(folder_of(state), name) for name in names if isinstance(name, str)}


def _folders_of_splits(folder: str) -> dict[str, str]:
    """Return the folders in a folder that are splits of a saved DatasetDict, each with the name of its split."""
    folders: dict[str, str] = {}
    for file in walk(folder, _SPLITS):
        names = _read_object(file).get("splits")
        folders |= {path_in(folder_of(file), name): name for name in names or () if isinstance(name, str)}
    return folders


def _read_object(path: str) -> dict[str, Any]:
    try:
        value = parse_json(read_whole(path) or b"")
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}
