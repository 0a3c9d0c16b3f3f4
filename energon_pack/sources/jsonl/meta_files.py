"""Read meta files, which list files of samples with their format, as LLaMA-Factory's dataset_info.json.

{name: {file_name, columns, tags, formatting, media_dir, sample_ratio}}    LLaMA-Factory, Automodel
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from energon_pack.errors import PackError
from energon_pack.run.address import bucket_of
from energon_pack.run.console import say
from energon_pack.run.untrusted_input import parse_json
from energon_pack.sources.jsonl.dialects import RowSettings
from energon_pack.sources.jsonl.line_index import BYTE_ORDER_MARK
from energon_pack.sources.media_files import parse_media_map
from energon_pack.sources.mixture import MAX_META_BYTES, read_yaml
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.storage import absolute, folder_of, is_file, open_file, path_in

#: keys that say where LLaMA-Factory downloads the files of an entry
_HUB_KEYS = ("hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")
_ALPACA_COLUMNS = {
    "prompt": "instruction",
    "query": "input",
    "response": "output",
    "system": "system",
    "history": "history",
}

_Entries = dict[str, dict[str, Any]]


class MetaEntryChooser:
    """Chooses entries of meta files by the names in `source.datasets`; None: all entries that need no download."""

    def __init__(self, names: Sequence[str] | None):
        self._chosen_names, self._existing_names = names, set[str]()

    def choose(self, path: str, meta: _Entries) -> _Entries:
        """Return the chosen entries of a meta file: those that are named, or else all that need no download."""
        self._existing_names |= meta.keys()
        if self._chosen_names is not None:
            return {name: value for name, value in meta.items() if name in self._chosen_names}
        elsewhere = [name for name, item in meta.items() if "file_name" not in item and any(map(item.get, _HUB_KEYS))]
        if elsewhere:
            say(f"{path}: left out, for their files are elsewhere: {', '.join(elsewhere)}")
        return {name: value for name, value in meta.items() if name not in elsewhere}

    def check(self) -> None:
        """Raise PackError if a name is that of no entry in any meta file that `choose` was called with."""
        if missing := [name for name in self._chosen_names or () if name not in self._existing_names]:
            names = ", ".join(sorted(self._existing_names)) or "no meta file is in source.path"
            raise PackError(f"source.datasets: no {missing[0]} among {names}")


# ------------------------------------------------------------------------------------------ the files of a meta file


def listed_files(path: str, settings: SourceConfig, chosen: MetaEntryChooser) -> Iterator[tuple[str, RowSettings]]:
    """Yield each file that a meta file lists, and how it is read; a file that is no meta file is yielded itself."""
    root, folder = settings.media_root, folder_of(absolute(path))
    places = RowSettings("", remote_media=settings.remote_media, media_map=parse_media_map(settings.media_map))
    meta = read_meta_entries(path)
    if meta is None:
        yield absolute(path), replace(places, media_root=_absolute_folder(root or folder))
        return
    for name, value in sorted(chosen.choose(path, meta).items()):
        where = f"{path}: {name}"
        if not isinstance(value.get("file_name"), str):
            raise PackError(
                f"{where} has no file_name: only files that are here are read; source.datasets names others, and a"
                " mixture, as InternVL's meta is one, is the only path of source.path"
            )
        file = _resolve_named_path(where, value["file_name"], folder, settings.remote_media)
        if not is_file(file):
            raise PackError(f"{where}: no such file {file}")
        columns = _read_name_mapping(value.get("columns"), f"{where}: columns")
        if value.get("formatting") == "alpaca" or columns.keys() & {"prompt", "response"}:
            columns = _ALPACA_COLUMNS | columns
        tags = _read_name_mapping(value.get("tags"), f"{where}: tags")
        media_dir = value.get("media_dir") or ""
        if not isinstance(media_dir, str):
            raise PackError(f"{where}: media_dir is {media_dir!r}, not a folder")
        media_dir = root or _resolve_named_path(where, media_dir, folder, settings.remote_media)
        root_and_ratio = replace(places, media_root=_absolute_folder(media_dir), ratio=_sample_ratio_of(where, value))
        in_order = [tuple(sorted(names.items())) for names in (columns, tags)]
        yield absolute(file), replace(root_and_ratio, columns=in_order[0], tags=in_order[1])


def read_meta_entries(path: str) -> _Entries | None:
    """Return the entries of a meta file; None: the file holds samples."""
    if path.endswith((".yaml", ".yml")):
        try:
            read_yaml(path)
        except ValueError as error:
            raise PackError(f"{path}: {error}") from None
        raise PackError(
            f"{path}: no form of YAML that is read: a mixture has a list `mixture` of entries with a path, or is"
            " LLaVA-OneVision's or Energon's; it is the only path of source.path"
        )
    if not path.endswith(".json"):
        return None
    with open_file(path) as file:
        raw = file.read(0, file.size) if file.size <= MAX_META_BYTES else b""
    raw = raw.removeprefix(BYTE_ORDER_MARK)
    if not raw.lstrip().startswith(b"{"):
        return None
    try:
        value = parse_json(raw)
    except ValueError as error:
        if b'"annotation"' in raw and b'"repeat_time"' in raw:
            raise PackError(f"{path}: a meta of InternVL, and no JSON: {error}") from None
        return None  # lines of samples, or nothing: indexing will tell
    holds_objects = isinstance(value, dict) and bool(value) and all(isinstance(item, dict) for item in value.values())
    return value if holds_objects else None


def _read_name_mapping(value: Any, where: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value.values()):
        raise PackError(f"{where} is {str(value)[:80]}, not names by name")
    return value


def _absolute_folder(path: str) -> str:
    return absolute(os.path.expanduser(path))


def _resolve_named_path(where: str, named: str, folder: str, remote_media: bool) -> str:
    """Return the path of a file or folder that a meta file names relative to its own folder, `folder`."""
    refuse_other_object_store(where, named, folder, remote_media)
    return path_in(folder, os.path.expanduser(named))


def refuse_other_object_store(where: str, named_path: str, folder: str, remote_media: bool) -> None:
    """Raise PackError if a file in `folder` names something on another object store, and the user did not allow it."""
    if not remote_media and bucket_of(named_path) not in ("", bucket_of(folder)):
        raise PackError(
            f"{where}: {named_path} is on an object store that source.path does not name; source.remote_media=true"
            " reads it with your keys"
        )


def _sample_ratio_of(where: str, value: Mapping[str, Any]) -> float:
    """Return an entry's `sample_ratio`: draws of each sample an epoch, 1 if unset; PackError: not from 0 to 1000."""
    ratio = value.get("sample_ratio", 1.0)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio <= 1000:
        raise PackError(f"{where}: sample_ratio is {ratio!r}, not a number of draws of each sample")
    return float(ratio)
