"""Read meta files, which list files of samples with their format, into the form of LLaMA-Factory's dataset_info.json.

{name: {file_name, columns, tags, formatting, media_dir, sample_ratio}}    LLaMA-Factory, Automodel
{name: {root, annotation, repeat_time, data_augment, length}}              InternVL
datasets: [{json_path, sampling_strategy}]                                 LLaVA-OneVision, as YAML
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from energon_pack.errors import PackError
from energon_pack.run.console import say
from energon_pack.run.plain_data import json_value, yaml_value
from energon_pack.sources.storage import open_file

_LARGEST = 16 << 20
_SHARE = re.compile(r"random:(\d+(?:\.\d+)?)%")
#: keys of entries of InternVL and LLaVA-OneVision, under the names used here
_BLEND = {"file_name", "media_dir", "sample_ratio"}
#: keys that say where LLaMA-Factory downloads the files of an entry
_ELSEWHERE = ("hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")

_Meta = dict[str, dict[str, Any]]


def read_meta(path: str) -> _Meta | None:
    """Return the entries of a meta file; None: the file holds samples.

    Raises:
        PackError: an entry asks for an unknown way to draw samples.
    """
    is_yaml = path.endswith((".yaml", ".yml"))
    if not is_yaml and not path.endswith(".json"):
        return None
    with open_file(path) as file:
        raw = file.read(0, file.size) if file.size <= _LARGEST else b""
    if not is_yaml and not raw.lstrip().startswith(b"{"):
        return None
    try:
        value = yaml_value(raw) if is_yaml else json_value(raw)
    except ValueError as error:
        if is_yaml:
            raise PackError(f"{path} is no YAML: {str(error).splitlines()[0]}") from None
        return None  # lines of samples, or nothing: indexing will tell
    if is_yaml:
        return _of_onevision(path, value)
    if not (isinstance(value, dict) and value and all(isinstance(item, dict) for item in value.values())):
        return None
    if all("annotation" in item for item in value.values()):
        return {name: _of_internvl(path, name, item) for name, item in value.items()}
    return value


def read_blend(path: str) -> _Meta | None:
    """Return the entries of InternVL's meta file or LLaVA-OneVision's YAML; None: the file is neither.

    Raises:
        PackError: as `read_meta`.
    """
    if path.endswith((".yaml", ".yml", ".json")):
        with suppress(OSError):  # finding lines reports what is wrong
            with open_file(path) as file:
                raw = file.read(0, min(file.size, _LARGEST))
            if (b"json_path" if path.endswith("l") else b"annotation") in raw:
                meta = read_meta(path)
                return meta if meta and all(item.keys() == _BLEND for item in meta.values()) else None
    return None


def entries_here(meta: _Meta) -> tuple[_Meta, list[str]]:
    """Return the entries whose files are here, and the names of the entries that LLaMA-Factory would download."""
    elsewhere = [name for name, item in meta.items() if "file_name" not in item and any(map(item.get, _ELSEWHERE))]
    return {name: item for name, item in meta.items() if name not in elsewhere}, elsewhere


def _of_internvl(path: str, name: str, item: Mapping[str, Any]) -> dict[str, Any]:
    if item.get("data_augment"):
        say(f"{path}: {name}: data_augment is not done: images are packed as they are")
    repeats = item.get("repeat_time", 1)
    return {"file_name": item["annotation"], "media_dir": item.get("root") or "", "sample_ratio": repeats}


def _of_onevision(path: str, value: Any) -> _Meta:
    listed = value.get("datasets") if isinstance(value, dict) else None
    if not isinstance(listed, list) or not all(isinstance(item, dict) and "json_path" in item for item in listed):
        raise PackError(f"{path}: no list `datasets` of json_path and sampling_strategy: no form of YAML that is read")
    return {
        str(item["json_path"]): {"file_name": item["json_path"], "media_dir": "", "sample_ratio": _ratio(path, item)}
        for item in listed
    }


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
