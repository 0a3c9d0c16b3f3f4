"""Read a mixture: sources with the share of each in the training, as a YAML file or as entries in `source.path`.

    mixture:
      - {name: charts, path: /data/charts, weight: 40}
      - {path: chat.jsonl, weight: 60, max_samples: 100000, labels: {train_on: last}}

`weight` is a share of the trained tokens, or of the samples if `weights: samples` stands beside `mixture`. In place of
it, `epochs` says how often each sample comes. Phases of entries come one after another. An entry may override the
run's settings for reading and training its samples.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from energon_pack.errors import PackError
from energon_pack.run.plain_data import parse_yaml
from energon_pack.sources.entry_settings import OVERRIDE_KEYS, RUN_ONLY_SETTINGS
from energon_pack.sources.sample_ratio import TakenRows
from energon_pack.sources.storage import absolute, folder_of, open_file, path_in

#: bytes of a file that names others
MAX_META_BYTES = 16 << 20
_MAX_PHASES = 100
WeightOf = Literal["tokens", "samples"]
_SOURCE_SETTINGS = ("media_root", "media_map", "split", "datasets")
_ENTRY_KEYS = ("name", "path", "weight", "epochs", "max_samples", "phase", *_SOURCE_SETTINGS, *OVERRIDE_KEYS)


@dataclass(frozen=True)
class Entry:
    """One source of a mixture, with its share in the training."""

    name: str
    path: str | list[str]
    #: share of the trained tokens or of the samples, relative to the other entries; None: `epochs` is set
    weight: float | None
    #: how often each sample comes; None: `weight` is set
    epochs: float | None
    #: take only so many of its samples, drawn at random; None: all
    max_samples: int | None = None
    #: settings of `source` for this entry
    settings: dict[str, Any] = field(default_factory=dict)
    #: from 1: its packs come after the packs of all earlier phases
    phase: int = 1
    #: settings of its samples, as `own.read_entry_settings` reads them
    own: dict[str, Any] = field(default_factory=dict)
    #: whether `weight` is a share of trained tokens or of samples
    weight_of: WeightOf = "tokens"
    #: which rows of its file are taken; None: all
    taken: TakenRows | None = None
    #: the most tiles of an image that it is meant for; None: not said
    max_tiles: int | None = None
    #: whether other entries may read the same rows, as the loader of another tool lets them
    may_repeat: bool = False


def read_yaml(path: str) -> Any:
    """Return the value of a YAML file; None: it is empty, or has more than 16 MiB, which no person wrote."""
    with open_file(path) as file:
        return parse_yaml(file.read(0, file.size) if file.size <= MAX_META_BYTES else b"")


def read_yaml_object(path: str) -> dict[str, Any] | None:
    """Return the YAML mapping that a file holds; None: its name is no YAML file's, it can't be read, or holds none."""
    if not path.endswith((".yaml", ".yml")):
        return None
    try:
        value = read_yaml(path)
    except (OSError, ValueError):
        return None  # finding lines reports what is wrong
    return value if isinstance(value, dict) else None


def mixture_entries(path: str, value: Mapping[str, Any]) -> list[Entry]:
    """Read the entries of a mixture from a YAML file: its path and content."""
    listed = value["mixture"]
    if not isinstance(listed, list) or not listed:
        raise PackError(f"{path}: mixture is no list of entries: {str(listed)[:80]}")
    weight_of = value.get("weights", "tokens")
    if weight_of not in get_args(WeightOf):
        raise PackError(f"{path}: weights={weight_of!r}: shares of {' or of '.join(get_args(WeightOf))}")
    folder = folder_of(absolute(path))
    entries = [read_entry(f"{path}: entry {number}", item, folder) for number, item in enumerate(listed, 1)]
    return [replace(entry, weight_of=weight_of) for entry in entries]


def read_entries_of_config(items: Mapping[str, Any]) -> list[Entry]:
    """Read the entries of a mixture in the config, name → settings; raises PackError if one is not valid."""
    if not items or not all(isinstance(item, Mapping) for item in items.values()):
        raise PackError(f"source.path: no entries by name, as {{charts: {{path: …, weight: …}}}}: {str(items)[:80]}")
    return [read_entry(f"source.path.{name}", {**item, "name": name}, os.getcwd()) for name, item in items.items()]


def check_entries(path: str, entries: list[Entry]) -> list[Entry]:
    """Return the entries; PackError: two have the same name, or not all have a weight. `path`: errors begin with it."""
    if twice := [name for name, times in Counter(entry.name for entry in entries).items() if times > 1]:
        raise PackError(f"{path}: two entries are called {twice[0]}: give each a name")
    weighted = [entry for entry in entries if entry.weight is not None]
    if weighted and len(weighted) < len(entries):
        other = next(entry.name for entry in entries if entry.weight is None)
        raise PackError(f"{path}: {weighted[0].name} has a weight and {other} has none: all entries have one, or none")
    if weighted and not sum(entry.weight or 0 for entry in weighted):
        raise PackError(f"{path}: the weights of all entries are 0")
    return entries


def read_entry(where: str, item: Any, folder: str = "") -> Entry:
    """Read an entry; PackError: it is not valid. `where`: begins errors; `folder`: paths are relative to it."""
    if not isinstance(item, dict) or not item.get("path"):
        raise PackError(f"{where} has no path: {str(item)[:80]}")
    if common := next((key for key in item if key in RUN_ONLY_SETTINGS), None):
        raise PackError(f"{where}: {common} is no setting of an entry: {RUN_ONLY_SETTINGS[common]}")
    if unknown := [key for key in item if key not in _ENTRY_KEYS]:
        raise PackError(f"{where}: {unknown[0]!r} is no setting of an entry; there are {', '.join(_ENTRY_KEYS)}")
    paths = item["path"] if isinstance(item["path"], list) else [item["path"]]
    if not all(isinstance(path, str) and path for path in paths):
        raise PackError(f"{where}: path is {str(item['path'])[:80]}: a folder, a file, a glob, or a list of these")
    paths = [absolute_in(folder, path) for path in paths]
    weight, epochs = (read_number(where, item, key) for key in ("weight", "epochs"))
    if weight is not None and epochs is not None:
        raise PackError(f"{where} has a weight and epochs: one of them says how often its samples come")
    most = item.get("max_samples")
    if most is not None and (type(most) is not int or most < 1):
        raise PackError(f"{where}: max_samples is {most!r}, not a number of samples")
    phase = item.get("phase", 1)
    if type(phase) is not int or not 1 <= phase <= _MAX_PHASES:
        raise PackError(f"{where}: phase is {phase!r}, not a number from 1 to {_MAX_PHASES}")
    name = item.get("name") or default_name(paths[0])
    if not isinstance(name, str) or "/" in name or name.startswith("."):
        raise PackError(f"{where}: the name {name!r} can't begin the ids of samples")
    settings = {key: item[key] for key in _SOURCE_SETTINGS if item.get(key) is not None}
    if isinstance(settings.get("media_root"), str):
        settings["media_root"] = absolute_in(folder, settings["media_root"])
    epochs = 1.0 if weight is None and epochs is None else epochs
    of_samples = {key: item[key] for key in OVERRIDE_KEYS if key in item}
    return Entry(name, paths[0] if len(paths) == 1 else paths, weight, epochs, most, settings, phase, of_samples)


def read_number(where: str, item: Mapping[str, Any], key: str) -> float | None:
    """Read a number from 0 on; None: there is none; raises PackError if the value is something else."""
    value = item.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
        raise PackError(f"{where}: {key} is {value!r}, not a number from 0")
    return float(value)


def absolute_in(folder: str, path: str) -> str:
    return absolute(path_in(folder, os.path.expanduser(path)))


def default_name(path: str) -> str:
    fixed = path.rstrip("/*?[]").rpartition("/")[2]
    return fixed.partition(".")[0] or "source"


@dataclass(frozen=True)
class Mixture:
    """The entries of a mixture, and the files of each."""

    entries: tuple[Entry, ...]
    #: name of a file → index of its entry
    entry_of: dict[str, int]
