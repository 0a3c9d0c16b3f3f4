"""Read meta files, which list files of samples with their format, into the form of LLaMA-Factory's dataset_info.json.

{name: {file_name, columns, tags, formatting, media_dir, sample_ratio}}    LLaMA-Factory, Automodel
{name: {root, annotation, repeat_time, data_augment, length}}              InternVL
datasets: [{json_path, sampling_strategy}]                                 LLaVA-OneVision, as YAML

The last two are mixtures, and files with a `sample_ratio` where there is no mixture: in a stream, or in a list.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from energon_pack.errors import PackError
from energon_pack.run.console import say
from energon_pack.run.plain_data import json_value, yaml_value
from energon_pack.run.stores import bucket_of, is_address, joined
from energon_pack.sources.inside import media_in
from energon_pack.sources.jsonl.dialects import Lines
from energon_pack.sources.mixture import LARGEST, Entry, object_in, stem_of, with_own_names
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.storage import absolute, folder_of, is_file, open_file

_SHARE = re.compile(r"random:(\d+(?:\.\d+)?)%")
#: keys that say where LLaMA-Factory downloads the files of an entry
_ELSEWHERE = ("hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")
_ALPACA = {
    "prompt": "instruction",
    "query": "input",
    "response": "output",
    "system": "system",
    "history": "history",
}

_Meta = dict[str, dict[str, Any]]


class Wanted:
    """The entries of meta files that `source.datasets` names, and the entries that exist; None: it names none."""

    def __init__(self, names: Sequence[str] | None):
        self._names, self._there = names, set[str]()

    def of(self, path: str, meta: _Meta) -> _Meta:
        """Return the named entries; if none is named, those whose files LLaMA-Factory would not download."""
        self._there |= meta.keys()
        if self._names is not None:
            return {name: value for name, value in meta.items() if name in self._names}
        elsewhere = [name for name, item in meta.items() if "file_name" not in item and any(map(item.get, _ELSEWHERE))]
        if elsewhere:
            say(f"{path}: left out, for their files are elsewhere: {', '.join(elsewhere)}")
        return {name: value for name, value in meta.items() if name not in elsewhere}

    def check(self) -> None:
        """Raise PackError if a named entry is in no meta file."""
        if missing := [name for name in self._names or () if name not in self._there]:
            there = ", ".join(sorted(self._there)) or "no meta file is in source.path"
            raise PackError(f"source.datasets: no {missing[0]} among {there}")


# ------------------------------------------------------------------------------------------ the files of a meta file


def files_in(path: str, settings: SourceConfig, wanted: Wanted) -> Iterator[tuple[str, Lines]]:
    """Yield the file itself, or the files that a meta file lists, each with how it is read."""
    root, folder = settings.media_root, folder_of(absolute(path))
    meta = _read(path)
    if meta is None:
        yield absolute(path), Lines(_folder(root or folder), remote_media=settings.remote_media)
        return
    for name, value in sorted(wanted.of(path, meta).items()):
        where = f"{path}: {name}"
        if not isinstance(value.get("file_name"), str):
            raise PackError(
                f"{where} has no file_name: only files that are here are read; source.datasets names others"
            )
        file = _local(where, value["file_name"], folder, settings.remote_media)
        if not is_file(file):
            raise PackError(f"{where}: no such file {file}")
        columns = _names(value.get("columns"), f"{where}: columns")
        if value.get("formatting") == "alpaca" or columns.keys() & {"prompt", "response"}:
            columns = _ALPACA | columns
        tags = _names(value.get("tags"), f"{where}: tags")
        media_dir = value.get("media_dir") or ""
        if not isinstance(media_dir, str):
            raise PackError(f"{where}: media_dir is {media_dir!r}, not a folder")
        media_dir = root or _local(where, media_dir, folder, settings.remote_media)
        ratio, in_order = _ratio_of(where, value), [tuple(sorted(names.items())) for names in (columns, tags)]
        yield absolute(file), Lines(_folder(media_dir), in_order[0], in_order[1], ratio, settings.remote_media)


def _read(path: str) -> _Meta | None:
    """Return the entries of a meta file; None: the file holds samples."""
    is_yaml = path.endswith((".yaml", ".yml"))
    if not is_yaml and not path.endswith(".json"):
        return None
    with open_file(path) as file:
        raw = file.read(0, file.size) if file.size <= LARGEST else b""
    if not is_yaml and not raw.lstrip().startswith(b"{"):
        return None
    try:
        value = yaml_value(raw) if is_yaml else json_value(raw)
    except ValueError as error:
        if is_yaml:
            raise PackError(f"{path} is no YAML: {str(error).splitlines()[0]}") from None
        return None  # lines of samples, or nothing: indexing will tell
    if (blend := _blend(path, value)) is not None:
        return blend
    if is_yaml:
        raise PackError(f"{path}: no list `datasets` of json_path and sampling_strategy: no form of YAML that is read")
    return value if _holds_objects(value) else None


def _holds_objects(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(item, dict) for item in value.values())


def _names(value: Any, where: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value.values()):
        raise PackError(f"{where} is {str(value)[:80]}, not names by name")
    return value


def _folder(path: str) -> str:
    return absolute(os.path.expanduser(path))


def _local(where: str, named: str, folder: str, remote_media: bool) -> str:
    """Return the path of a file or folder that a meta file names."""
    if is_address(named) and not remote_media and bucket_of(named) != bucket_of(folder):
        raise PackError(
            f"{where}: {named} is on an object store that source.path does not name; source.remote_media=true"
            " reads it with your keys"
        )
    if is_address(folder) or is_address(named):
        return joined(folder, named)
    return os.path.join(folder, os.path.expanduser(named))


def _ratio_of(where: str, value: Mapping[str, Any]) -> float:
    """Return how often a meta file draws each sample of an entry; raises PackError if that is no number."""
    ratio = value.get("sample_ratio", 1.0)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio <= 1000:
        raise PackError(f"{where}: sample_ratio is {ratio!r}, not a number of draws of each sample")
    return float(ratio)


# ---------------------------------------------------------------------------- InternVL's and LLaVA-OneVision's mixtures


def meta_entries(path: str, value: Any, settings: SourceConfig) -> list[Entry] | None:
    """Read InternVL's meta file or LLaVA-OneVision's YAML as a mixture with epochs; None: the value is of neither."""
    if (blend := _blend(path, value)) is None:
        return None
    wanted, folder, entries = Wanted(settings.datasets), folder_of(absolute(path)), list[Entry]()
    for name, item in sorted(wanted.of(path, blend).items()):
        where, given = f"{path}: {name}", settings.media_root
        file = _local(where, str(item["file_name"]), folder, settings.remote_media)
        root = given or _local(where, str(item["media_dir"]), folder, settings.remote_media)
        own: dict[str, Any] = {"datasets": None}
        if has_media(root):  # otherwise media are searched around the file
            own["media_root"] = root
        called = stem_of(name) if name.endswith((".json", ".jsonl")) else name.replace("/", "_").lstrip(".")
        entries.append(Entry(called or "source", file, None, _ratio_of(where, item), settings=own))
    wanted.check()
    return with_own_names(entries)


def is_drawn_by_file(path: str) -> bool:
    """Tell whether a meta file is a mixture, and says how often samples come of each file in a stream, too."""
    return _blend(path, object_in(path)) is not None


def has_media(root: str) -> bool:
    """Tell whether there is a folder, or a zip archive, of this path; an address counts as one."""
    return is_address(root) or os.path.isdir(root) or (media_in(root, "") is not None and os.path.isfile(root))


def _blend(path: str, value: Any) -> _Meta | None:
    listed = value.get("datasets") if isinstance(value, dict) else None
    if listed and isinstance(listed, list) and all(isinstance(item, dict) and "json_path" in item for item in listed):
        return {str(item["json_path"]): _of_onevision(path, item) for item in listed}
    if _holds_objects(value) and all("annotation" in item for item in value.values()):
        return {name: _of_internvl(path, name, item) for name, item in value.items()}
    return None


def _of_internvl(path: str, name: str, item: Mapping[str, Any]) -> dict[str, Any]:
    if item.get("data_augment"):
        say(f"{path}: {name}: data_augment is not done: images are packed as they are")
    repeats = item.get("repeat_time", 1)
    return {"file_name": item["annotation"], "media_dir": item.get("root") or "", "sample_ratio": repeats}


def _of_onevision(path: str, item: Mapping[str, Any]) -> dict[str, Any]:
    return {"file_name": item["json_path"], "media_dir": "", "sample_ratio": _ratio(path, item)}


def _ratio(path: str, item: Mapping[str, Any]) -> float:
    """Return how often a sample is drawn."""
    strategy = str(item.get("sampling_strategy", "all"))
    if strategy == "all":
        return 1.0
    if share := _SHARE.fullmatch(strategy):
        return float(share[1]) / 100
    raise PackError(
        f"{path}: {item['json_path']}: sampling_strategy={strategy}: `all` and `random:N%` are read; for others cut the"
        " file, or leave the entry out by source.datasets"
    )
