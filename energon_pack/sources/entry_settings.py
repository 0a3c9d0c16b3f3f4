"""Read the samples of a mixture entry by the entry's own settings, which override the run's. Pure.

    {columns: {messages: chat}, labels: {train_on: last}, max_pixels: 50176}

Settings for reading a record override `source.*`. Settings for training are added to each sample, which carries them to
training: `label_settings`, and pixels in `chat_template_kwargs`. A sample's own settings override both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from energon_pack.errors import PackError
from energon_pack.run.plain_data import dataclass_from_plain
from energon_pack.samples.record import Record
from energon_pack.samples.settings import Columns, ReadSettings, Roles, Take
from energon_pack.sources.sample_ratio import TakenRows

_GROUPS = {"columns": Columns, "roles": Roles}
_TEXT_KEYS = ("messages_key", "sample_type", "caption_prompt", "take", "tools", "frames", "nulls")
_PIXEL_KEYS = ("min_pixels", "max_pixels")
_AUDIO_IN_VIDEO_KEY = "use_audio_in_video"
_OPTION_KEYS = ("labels", "chat_template_kwargs", _AUDIO_IN_VIDEO_KEY, *_PIXEL_KEYS)
#: keys of an entry that this file reads
OVERRIDE_KEYS = (*_GROUPS, *_TEXT_KEYS, *_OPTION_KEYS)
#: settings that an entry can't override, and why
RUN_ONLY_SETTINGS = {
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
    if (texts.get("take", run.take) == Take.both) != (run.take == Take.both):
        raise PackError(f"{where}: take={texts['take']}: pairs share no dataset with other samples: source.take=both")
    if not texts and not names:
        return EntrySettings(None, options)
    try:
        reading = dataclass_from_plain(
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
