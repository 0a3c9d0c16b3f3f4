"""Say which part of a tar is which field of a sample, and find files whose writer meant other keys than Energon reads.

A key ends at the first dot of a name. So `scene.0001.json`, `scene.0002.json` … would be parts of one sample `scene`,
and only one of them would be read. A sample may also have a further part, such as `0001.json` and `0001.meta.json`.
To tell the two apart, `DottedKeyFinder` looks at the data of each part whose name ends like a record's. It is a sample:

    if its key has a record     and the part has the same form, or is a caption with its own medium
    if its key has no record    and another such part, and no key of its shard has the part beside a record

The `.nv-meta/dataset.yaml` of a prepared folder may say which part is which field, and `read_field_map` reads it:

    sample_type: {__module__: megatron.energon, __class__: VQASample}
    field_map: {image: jpg, context: "json[question]", answers: "json[answers]"}

The fields become the JSON of a sample. Code that such a folder names (`sample_loader`) is never run.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import yaml

from energon_pack.errors import PackError
from energon_pack.run.console import say
from energon_pack.run.files import META_FOLDER
from energon_pack.run.untrusted_input import UnparsableDataError, parse_yaml
from energon_pack.samples.media.kinds import media_kind_by_extension
from energon_pack.samples.raw_record import parse_sample_json
from energon_pack.samples.record import parse_record
from energon_pack.samples.sample import MESSAGE_KEYS
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.storage import read_whole

Member = tuple[str, int, int]  # part, offset, size

_RECORD_ENDINGS = (".json", ".txt")
_MAX_COMPARED = 16  # parts of one name that are compared; the others are assumed to be like them


class DottedFile(NamedTuple):
    """A file of a tar that is a sample of its own, but that Energon reads as a part of another sample."""

    key: str  # the key that it would be a part of
    part: str

    @property
    def name(self) -> str:
        return f"{self.key}.{self.part}"

    @property
    def detail(self) -> str:
        return f"{self.name} would be a sample of its own: a key ends at the first dot of a name"


def dotted_key_message(path: str, name: str, number: int) -> str:
    """Return the error for a tar with files that are samples of their own. `name`: the first; `number`: how many."""
    more = f" (and {number - 1:,} more like it)" if number > 1 else ""
    key, _, part = name.rpartition("/")[2].partition(".")
    return (
        f"{path}: {name}{more} can't be read as a sample: a key ends at the first dot of a name, as in"
        f" Energon, so its key is {key!r} and its part {part!r}, where a sample has {part.rpartition('.')[2]!r}."
        " If it is none, leave it out, or source.on_damaged=keep does; else write the tar anew, with no dot in its"
        " names but the last, or its texts in a N.json beside the N of the media"
    )


class DottedKeyFinder:
    """Finds the files of a tar that Energon reads as parts, but that are samples themselves. `read`: part → bytes."""

    def __init__(self, read: Callable[[Member], bytes]):
        self._read = read
        self._num_other_forms: dict[str, int] = {}  # part → how often its form differed from the record's
        self._without_record: dict[str, list[str]] = {}  # key → its parts that may be records
        self._samples: list[DottedFile] = []

    def add_sample(self, key: str, record: Member | None, parts: Collection[Member]) -> None:
        """Look for samples among the parts of a key; to be called for each group of adjacent files with one key.

        `record`: the key's JSON or text; None: it has none. `parts`: its other parts.
        """
        like_records = [part for part in parts if part[0].endswith(_RECORD_ENDINGS)]
        if record is not None:
            self._without_record.pop(key, None)
            self._samples += [
                DottedFile(key, part[0])
                for part in like_records
                if self._is_record_of_other_sample(part, record, parts)
            ]
        elif like_records:
            self._without_record.setdefault(key, []).extend(name for name, *_ in like_records)

    def files_that_are_samples(self) -> list[DottedFile]:
        """Return the files that are samples of their own; called after the last sample of the tar."""
        doubted = {
            key: [name for name in names if name not in self._num_other_forms]
            for key, names in self._without_record.items()
        }
        lost = [DottedFile(key, name) for key, names in doubted.items() if len(names) > 1 for name in names]
        return [*self._samples, *lost]

    def _is_record_of_other_sample(self, part: Member, record: Member, parts: Collection[Member]) -> bool:
        """Tell whether a part beside a record is itself the record of another sample."""
        name = part[0]
        stem, _, ending = name.rpartition(".")
        num_compared = self._num_other_forms.setdefault(name, 0)
        if record[0] == "txt" and ending == "txt":  # they may be two captions, each with its medium
            media = [name for name, *_ in parts if media_kind_by_extension(name)]
            return any("." not in other for other in media) and any(other.startswith(f"{stem}.") for other in media)
        if record[0] != "json" or ending != "json" or min(part[2], record[2]) < 0 or num_compared >= _MAX_COMPARED:
            return False
        form = _record_keys_to_compare(self._read(record))
        if form is None or form != _record_keys_to_compare(self._read(part)):
            self._num_other_forms[name] = num_compared + 1
            return False
        return True


def _record_keys_to_compare(raw: bytes) -> list[str] | None:
    """Return the keys of a record's conversation, by which two records are compared; all keys if it has none.

    A list gives the keys of its first message. None: the record is no JSON object.
    """
    try:
        value = parse_sample_json(raw)
    except Skip:
        return None
    value = value[0] if isinstance(value, list) and value else value
    if not isinstance(value, dict) or not value:
        return None
    with suppress(Skip):
        fields = parse_record(value, ReadSettings()).fields
        if conversation := [key for key in MESSAGE_KEYS if key in value and key not in fields]:
            return conversation  # whatever other fields there are
    return sorted(value)


#: Energon's types of samples: the fields that are read, and their names in this package
_FIELDS_BY_TYPE = {
    "Captioning": {"caption": "caption"},
    "VQA": {"context": "question", "answers": "answers"},
    "VidQA": {"context": "question", "answers": "answers"},
    "VQAOCR": {"context": "question", "answers": "answers"},
    "OCR": {"text": "caption"},
    "Text": {"text": "text"},
}
_PATH_TEXT = re.compile(r"([^[\]]+)((?:\[[^[\]]+\])*)")

#: a part, and the steps to a value in it
_Path = tuple[str, ...]


@dataclass(frozen=True)
class FieldMap:
    """Tells for each field of a sample in which part of the tar it lies, and by which keys of the part's JSON."""

    #: for each field its name here and the ways to it; the first way that leads to a value is taken
    fields: tuple[tuple[str, tuple[_Path, ...]], ...]
    #: the parts that are its media
    media: tuple[str, ...]
    #: why such samples are refused; None: they are read
    refusal: str | None = None

    @property
    def parts(self) -> list[str]:
        """Return the parts that hold the fields; a map that names more than one is refused."""
        return [*dict.fromkeys(way[0] for _, ways in self.fields for way in ways)]

    @property
    def record_part(self) -> str | None:
        return next(iter(self.parts), None)

    def read_fields(self, raw: bytes, part: str) -> Any:
        """Return the JSON value of a sample from the bytes of its record part; raises Skip if a field is missing."""
        if not _is_json(part):
            try:
                return {name: raw.decode("utf-8-sig").strip() for name, _ in self.fields}
            except UnicodeDecodeError as error:
                raise Skip(Reason.BAD_MESSAGE, f"the {part} is not UTF-8: {error}") from None
        value = parse_sample_json(raw)
        return {name: _first_value(value, name, ways) for name, ways in self.fields}


def _first_value(value: Any, name: str, ways: Sequence[_Path]) -> Any:
    for way in ways:
        item = value
        try:
            for step in way[1:]:
                item = item[int(step) if isinstance(item, list) else step]
        except (LookupError, TypeError, ValueError):
            continue
        return item
    place = " or ".join(f"{way[0]}[{']['.join(way[1:])}]" for way in ways)
    raise Skip(Reason.BAD_MESSAGE, f"{place}, its {name} by {META_FOLDER}/dataset.yaml, is not there")


def read_field_map(folder: str) -> FieldMap | None:
    """Read the field map of a prepared folder; None: it has none, and samples are read as in any tar."""
    path = os.path.join(folder, META_FOLDER, "dataset.yaml")
    try:
        value = parse_yaml(read_whole(path) or b"", _TaglessLoader)
    except (OSError, UnparsableDataError) as error:
        raise PackError(f"{path} can't be read: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(value, dict):
        return None
    named = value.get("field_map")
    if not isinstance(named, dict):
        _log_unused_sample_loader(path, value)
        return None
    stated = value.get("sample_type")
    about = stated if isinstance(stated, dict) else value
    kind = re.sub("(Sample|Webdataset)$", "", str(about.get("__class__")))
    is_known = kind in _FIELDS_BY_TYPE or not str(about.get("__module__")).startswith("megatron.energon")
    names = _FIELDS_BY_TYPE.get(kind) or {str(name): str(name) for name in named}
    ways = {name: list(_parse_paths(str(text))) for name, text in named.items()}
    media = [way[0] for options in ways.values() for way in options if media_kind_by_extension(way[0])]
    fields = {ours: tuple(ways[name]) for name, ours in names.items() if name in ways and not _is_media(ways[name])}
    field_map = FieldMap(tuple(fields.items()), tuple(dict.fromkeys(media)))
    why = _refusal(field_map) if is_known else f"a {about.get('__class__')} has no question and answer, caption or text"
    remedy = "source.map or source.columns.* says what is read of the JSON in its place"
    return replace(field_map, refusal=f"{path}: {why}: {remedy}" if why else None)


def _refusal(field_map: FieldMap) -> str | None:
    parts = field_map.parts
    if len(parts) == 1 and (_is_json(parts[0]) or all(ways == ((parts[0],),) for _, ways in field_map.fields)):
        return None
    return f"field_map takes texts from {', '.join(parts) or 'no part'}: one part is read"


def _is_json(part: str) -> bool:
    return part == "json" or part.endswith(".json")


def _parse_paths(text: str) -> Iterator[_Path]:
    for option in text.split(","):
        matched = _PATH_TEXT.fullmatch(option)
        yield (matched[1], *re.findall(r"\[([^[\]]+)\]", matched[2])) if matched else (option,)


def _is_media(ways: Sequence[_Path]) -> bool:
    return all(media_kind_by_extension(way[0]) for way in ways)


def _log_unused_sample_loader(path: str, value: Mapping[str, Any]) -> None:
    """Log that the `sample_loader` of dataset.yaml is not run, so that samples may differ from those that it makes."""
    loader = value.get("sample_loader")
    if loader and not (isinstance(loader, dict) and str(loader.get("__module__")).startswith("energon_pack")):
        say(f"{path}: its sample_loader is not run: samples are read by their JSON or text")


class _TaglessLoader(yaml.SafeLoader):
    """Reads Python tags (`!!python/name:…`), by which YAML names code, as null."""


_TaglessLoader.add_multi_constructor("", lambda loader, suffix, node: None)
