"""Read the field map of a folder that Energon has prepared: which part of a tar is which field of a sample.

.nv-meta/dataset.yaml
    sample_type: {__module__: megatron.energon, __class__: VQASample}
    field_map: {image: jpg, context: "json[question]", answers: "json[answers]"}

The fields become the JSON of a sample. Code that such a folder names (`sample_loader`) is never run.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from energon_pack.errors import PackError
from energon_pack.run.console import say
from energon_pack.run.files import META_FOLDER
from energon_pack.run.plain_data import NotPlain, parse_yaml
from energon_pack.samples.media.kinds import kind_by_extension
from energon_pack.samples.raw_json import load_json
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.storage import read_whole

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
        value = load_json(raw)
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
    except (OSError, NotPlain) as error:
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
    media = [way[0] for options in ways.values() for way in options if kind_by_extension(way[0])]
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
    return all(kind_by_extension(way[0]) for way in ways)


def _log_unused_sample_loader(path: str, value: Mapping[str, Any]) -> None:
    """Log that the `sample_loader` of dataset.yaml is not run, so that samples may differ from those that it makes."""
    loader = value.get("sample_loader")
    if loader and not (isinstance(loader, dict) and str(loader.get("__module__")).startswith("energon_pack")):
        say(f"{path}: its sample_loader is not run: samples are read by their JSON or text")


class _TaglessLoader(yaml.SafeLoader):
    """Reads Python tags (`!!python/name:…`), by which YAML names code, as null."""


_TaglessLoader.add_multi_constructor("", lambda loader, suffix, node: None)
