"""Find the tables of a folder: files of one kind, those that a saved dataset names, and of one split.

A folder that `datasets.save_to_disk` wrote has a state.json, which names its files; others are caches of `map` and
`filter`. A DatasetDict has a dataset_dict.json, and a subfolder for each split.
"""

import re
from collections.abc import Collection
from typing import Any

from energon_pack.errors import PackError, amount
from energon_pack.run.console import say
from energon_pack.run.plain_data import parse_json
from energon_pack.sources.find import files_of_split, without_plans
from energon_pack.sources.jsonl.row_files import RowFileFinder, without_extensions, without_ledgers_and_sidecars
from energon_pack.sources.other_formats import PARQUET_SUFFIX, TABLE_FILE
from energon_pack.sources.storage import folder_of, path_in, read_whole, walk

#: kinds of tables: a folder's tables are those of the first kind that it has, for the others may be about these
_KINDS = (re.compile(r"(?i)\.parquet$"), re.compile(r"(?i)\.arrow$"), re.compile(r""))
#: what `datasets` writes beside tables while it works on them
_CACHE_FILE = re.compile(r"(?:^|/)(cache-|tmp)[^/]*\.arrow$")
_STATE = re.compile(r"(?:^|/)state\.json$")
_SPLITS = re.compile(r"(?:^|/)dataset_dict\.json$")


class TableFinder(RowFileFinder):
    """Finds tables."""

    def files_in(self, folder: str) -> list[str]:
        files, unread = tables_in(folder, self._stems or ())
        say_left_out(folder, unread if self._stems is None else ())
        return files_of_split(folder, files, self._settings.split, folders_of_splits(folder))


def say_left_out(entry: str, unread: Collection[str]) -> None:
    """Print which tables of an entry of `source.path` are not read."""
    if unread:
        named = f"{amount(len(unread), 'table')} ({', '.join(sorted(unread)[:3])}{', …' * (len(unread) > 3)})"
        say(f"{entry}: left out, for they may be about the other files: {named}; a glob names them")


def is_parquet(file: str) -> bool:
    """Tell whether a file is called Parquet."""
    return file.lower().endswith(PARQUET_SUFFIX)


def tables_in(folder: str, stems: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the tables of a folder that hold samples, and those of other kinds, which may be about the samples.

    `stems`: paths of tars without extensions; tables of these names are about the tars.
    """
    candidates = without_plans(without_ledgers_and_sidecars(stems, walk(folder, TABLE_FILE)))
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


def folders_of_splits(folder: str) -> dict[str, str]:
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
