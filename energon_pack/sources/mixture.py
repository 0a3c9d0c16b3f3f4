"""Read a mixture: sources with the share of each, and each entry's own settings, which override the run's.

A mixture is a YAML file:

    mixture:
      - {name: charts, path: /data/charts, weight: 40}
      - {path: chat.jsonl, weight: 60, max_samples: 100000, labels: {train_on: last}}

`weight` is a share of the trained tokens, or of the samples if `weights: samples` stands beside `mixture`. In place of
it, `epochs` says how often each sample comes. Phases of entries come one after another.

An entry may have settings for reading and training its samples:

    {columns: {messages: chat}, labels: {train_on: last}, max_pixels: 50176}

Settings for reading a record override `source.*`. Settings for training are added to each sample, which carries them to
training: `label_settings`, and pixels in `chat_template_kwargs`. A sample's own settings override both.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from energon_pack.errors import PackError
from energon_pack.run.untrusted_input import dataclass_from_dict, parse_yaml
from energon_pack.samples.record import Record
from energon_pack.samples.settings import Columns, PreferenceTake, ReadSettings, Roles
from energon_pack.sources.sample_ratio import TakenRows
from energon_pack.sources.storage import absolute, folder_of, open_file, path_in

_GROUPS = {"columns": Columns, "roles": Roles}
_TEXT_KEYS = ("messages_key", "sample_type", "caption_prompt", "take", "tools", "frames", "nulls")
_PIXEL_KEYS = ("min_pixels", "max_pixels")
_AUDIO_IN_VIDEO_KEY = "use_audio_in_video"
_OPTION_KEYS = ("labels", "chat_template_kwargs", _AUDIO_IN_VIDEO_KEY, *_PIXEL_KEYS)
#: keys of an entry that override settings of the run
_OVERRIDE_KEYS = (*_GROUPS, *_TEXT_KEYS, *_OPTION_KEYS)
#: settings that an entry can't override, and why
_RUN_ONLY_SETTINGS = {
    "map": "source.map is code, which the run names",
    "control_tokens": "source.control_tokens is a rule of the model's text, and packs mix entries",
    "missing_media": "source.missing_media is about documents alone, and one for the run",
    "media": "the run prepares all media in one way; max_pixels and min_pixels may differ",
    "model": "packs are for one model",
    "packing": "a pack holds samples of several entries",
}


@dataclass(frozen=True)
class EntrySettings:
    """The settings of a mixture entry that override the run's for the samples of its files."""

    #: settings for reading its records; None: the run's
    reading: ReadSettings | None = None
    #: fields that each sample gets
    options: Mapping[str, Any] = field(default_factory=dict)
    #: which rows of its file are taken; None: all
    taken: TakenRows | None = None

    @property
    def identity(self) -> list[Any]:
        """Return the settings as JSON values, a part of the key of cached token lengths; []: nothing is overridden."""
        if self.reading is None and not self.options:
            return []
        return [None if self.reading is None else self.reading.identity, dict(self.options)]

    def add_options_to_record(self, record: Record) -> Record:
        """Return a record with `options` added to its fields; the record's own fields override them."""
        if not self.options:
            return record
        fields = {key: _merge(item, record.fields.get(key)) for key, item in self.options.items()}
        return replace(record, fields={**record.fields, **fields})


NO_SETTINGS = EntrySettings()


def _merge(settings: Mapping[str, Any], value: Any) -> Any:
    return {**settings, **value} if isinstance(value, Mapping) else settings if value is None else value


def read_entry_settings(where: str, item: Mapping[str, Any], run: ReadSettings) -> EntrySettings:
    """Read the settings of a mixture entry, `item`, that override the run's. `where`: the place that errors name."""
    texts = {key: item[key] for key in _TEXT_KEYS if item.get(key) is not None}
    if wrong := next((key for key, value in texts.items() if not isinstance(value, str)), None):
        raise PackError(f"{where}: {wrong} is {texts[wrong]!r}, no text")
    names = {
        key: _read_name_mapping(f"{where}: {key}", item[key], kind) for key, kind in _GROUPS.items() if item.get(key)
    }
    options: dict[str, Any] = {}
    if labels := item.get("labels"):
        options["label_settings"] = _read_object(f"{where}: labels", labels)
    variables = _read_object(f"{where}: chat_template_kwargs", item.get("chat_template_kwargs") or {})
    if variables := {**variables, **_read_pixels(where, item)}:
        options["chat_template_kwargs"] = variables
    if (heard := item.get(_AUDIO_IN_VIDEO_KEY)) is not None:
        if not isinstance(heard, bool):
            raise PackError(f"{where}: {_AUDIO_IN_VIDEO_KEY} is {heard!r}, not true or false")
        options[_AUDIO_IN_VIDEO_KEY] = heard
    if (texts.get("take", run.take) == PreferenceTake.both) != (run.take == PreferenceTake.both):
        raise PackError(f"{where}: take={texts['take']}: pairs share no dataset with other samples: source.take=both")
    if not texts and not names:
        return EntrySettings(None, options)
    try:
        reading = dataclass_from_dict(
            ReadSettings, {**{each.name: getattr(run, each.name) for each in fields(run)}, **texts, **names}
        )
    except ValueError as error:
        raise PackError(f"{where}: {error}") from None
    return EntrySettings(reading, options)


def _read_name_mapping(where: str, value: Any, kind: type[Columns] | type[Roles]) -> dict[str, str]:
    known = [each.name for each in fields(kind)]
    names = _read_object(where, value)
    if unknown := next((key for key in names if key not in known), None):
        raise PackError(f"{where}.{unknown}: there are {', '.join(known)}")
    if wrong := next((key for key, name in names.items() if not isinstance(name, str)), None):
        raise PackError(f"{where}.{wrong} is {names[wrong]!r}, no name")
    return names


def _read_object(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise PackError(f"{where} is {str(value)[:80]}, no values by name")
    return dict(value)


def _int_if_whole(number: Any) -> Any:
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _read_pixels(where: str, item: Mapping[str, Any]) -> dict[str, int]:
    pixels = {key: _int_if_whole(item[key]) for key in _PIXEL_KEYS if item.get(key) is not None}
    if wrong := next((key for key, number in pixels.items() if type(number) is not int or number < 1), None):
        raise PackError(f"{where}: {wrong} is {pixels[wrong]!r}, not a number of pixels")
    if pixels.get("min_pixels", 1) > pixels.get("max_pixels", pixels.get("min_pixels", 1)):
        raise PackError(f"{where}: min_pixels={pixels['min_pixels']} is more than max_pixels={pixels['max_pixels']}")
    return pixels


#: bytes of a file that names others
MAX_META_BYTES = 16 << 20
_MAX_PHASES = 100
WeightOf = Literal["tokens", "samples"]
_SOURCE_SETTINGS = ("media_root", "media_map", "split", "datasets")
_ENTRY_KEYS = ("name", "path", "weight", "epochs", "max_samples", "phase", *_SOURCE_SETTINGS, *_OVERRIDE_KEYS)


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
    #: settings of its samples, as `read_entry_settings` reads them
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


def parse_mixture_entries(path: str, content: Mapping[str, Any]) -> list[Entry]:
    """Read the entries of a mixture from a YAML file: its path and content."""
    listed = content["mixture"]
    if not isinstance(listed, list) or not listed:
        raise PackError(f"{path}: mixture is no list of entries: {str(listed)[:80]}")
    weight_of = content.get("weights", "tokens")
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
    if common := next((key for key in item if key in _RUN_ONLY_SETTINGS), None):
        raise PackError(f"{where}: {common} is no setting of an entry: {_RUN_ONLY_SETTINGS[common]}")
    if unknown := [key for key in item if key not in _ENTRY_KEYS]:
        raise PackError(f"{where}: {unknown[0]!r} is no setting of an entry; there are {', '.join(_ENTRY_KEYS)}")
    paths = item["path"] if isinstance(item["path"], list) else [item["path"]]
    if not all(isinstance(path, str) and path for path in paths):
        raise PackError(f"{where}: path is {str(item['path'])[:80]}: a folder, a file, a glob, or a list of these")
    paths = [absolute_in(folder, path) for path in paths]
    weight, epochs = (read_nonnegative_number(where, item, key) for key in ("weight", "epochs"))
    if weight is not None and epochs is not None:
        raise PackError(f"{where} has a weight and epochs: one of them says how often its samples come")
    most = item.get("max_samples")
    if most is not None and (type(most) is not int or most < 1):
        raise PackError(f"{where}: max_samples is {most!r}, not a number of samples")
    phase = item.get("phase", 1)
    if type(phase) is not int or not 1 <= phase <= _MAX_PHASES:
        raise PackError(f"{where}: phase is {phase!r}, not a number from 1 to {_MAX_PHASES}")
    name = item.get("name") or make_default_entry_name(paths[0])
    if not isinstance(name, str) or "/" in name or name.startswith("."):
        raise PackError(f"{where}: the name {name!r} can't begin the ids of samples")
    settings = {key: item[key] for key in _SOURCE_SETTINGS if item.get(key) is not None}
    if isinstance(settings.get("media_root"), str):
        settings["media_root"] = absolute_in(folder, settings["media_root"])
    epochs = 1.0 if weight is None and epochs is None else epochs
    of_samples = {key: item[key] for key in _OVERRIDE_KEYS if key in item}
    return Entry(name, paths[0] if len(paths) == 1 else paths, weight, epochs, most, settings, phase, of_samples)


def read_nonnegative_number(where: str, entry: Mapping[str, Any], key: str) -> float | None:
    """Read a number from 0 on; None: there is none; raises PackError if the value is something else."""
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
        raise PackError(f"{where}: {key} is {value!r}, not a number from 0")
    return float(value)


def absolute_in(folder: str, path: str) -> str:
    return absolute(path_in(folder, os.path.expanduser(path)))


def make_default_entry_name(path: str) -> str:
    fixed = path.rstrip("/*?[]").rpartition("/")[2]
    return fixed.partition(".")[0] or "source"


@dataclass(frozen=True)
class Mixture:
    """The entries of a mixture, and the files of each."""

    entries: tuple[Entry, ...]
    #: name of a file → index of its entry
    entry_of: dict[str, int]
