"""Put names in the place of media in memory, so that an item is read as a line of JSON is, and put the media back.

{"images": [PIL image]} ──name_and_hold_media──► {"images": ["␦0"]}, [PIL image] ──with_media_back──► the item
"""

import base64
import os
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from energon_pack.samples.dialects.media_in_text import find_interleaved_texts_field
from energon_pack.samples.media.kinds import MEDIA_KEYS, PART_TYPES
from energon_pack.samples.settings import PreferenceTake, ReadSettings
from energon_pack.samples.skip import Reason, Skip

#: names of media in memory begin with it: half a character, which no text holds
MEMORY_MARK = "\udfff"


def swap_media_for_names(item: Any, removed_media: list[Any], settings: ReadSettings) -> Any:
    """Return an item with a name for each medium in memory; `removed_media` gets the media. Raises Skip."""
    if not isinstance(item, Mapping):
        return _with_named_value(item, removed_media)
    media_keys = (*MEDIA_KEYS, settings.columns.images, settings.columns.videos, settings.columns.audios)
    media_keys = () if find_interleaved_texts_field(item) else media_keys  # None stands where a text stands
    row = {key: _with_named_value(value, removed_media, key in media_keys) for key, value in item.items()}
    # two whole conversations: each side of a pair holds the media of the prompt
    return put_back_named_media(row, _first_names(removed_media)) if settings.take == PreferenceTake.both else row


def _with_named_value(value: Any, held: list[Any], is_medium: bool = False) -> Any:
    """Do `swap_media_for_names` on a value of an item; base64 is a medium only if the value `is_medium`."""
    if isinstance(value, Mapping):
        is_part = str(value.get("type")) in PART_TYPES
        if isinstance(value.get("bytes"), bytes) and is_part:
            value = {**value, value["type"]: value["bytes"], "bytes": None}
        elif isinstance(value.get("bytes"), bytes):
            value = value["bytes"]
        elif is_medium and _is_base64_medium(value):
            value = _decoded_base64(value["data"])
    if isinstance(value, Mapping):
        return {key: _with_named_value(item, held, is_medium or is_part) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        if is_medium and any(item is None or item == "" for item in value if not hasattr(item, "shape")):
            raise Skip(Reason.UNSUPPORTED_MEDIA, "a list of media has None, or an empty name, in the place of a medium")
        return [_with_named_value(item, held, is_medium) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, str) and MEMORY_MARK in value:
        raise Skip(Reason.BAD_MESSAGE, "a text holds U+DFFF, which is half a character")
    if not isinstance(value, (bytes, Image.Image)) and not getattr(value, "shape", ()):
        return value
    held.append(value)
    return f"{MEMORY_MARK}{len(held) - 1}"


def put_back_named_media(named_value: Any, by_name: Mapping[str, Any]) -> Any:
    """Put media back in place of the names that `swap_media_for_names` gave them."""
    if isinstance(named_value, Mapping):
        return {key: put_back_named_media(item, by_name) for key, item in named_value.items()}
    if isinstance(named_value, list):
        return [put_back_named_media(item, by_name) for item in named_value]
    return by_name.get(named_value, named_value) if isinstance(named_value, str) else named_value


def map_names_to_media(removed_media: Sequence[Any]) -> dict[str, Any]:
    """Return the media that `swap_media_for_names` put into `removed_media`, by their names."""
    return {f"{MEMORY_MARK}{number}": medium for number, medium in enumerate(removed_media)}


def _first_names(held: Sequence[Any]) -> dict[str, str]:
    """Return the name of each medium in `held` that an earlier one equals, with the name of the earlier one."""
    names = [*map_names_to_media(held)]
    first = [next(n for n, one in enumerate(held) if _are_equal(one, medium)) for medium in held]
    return {name: names[number] for name, number in zip(names, first, strict=True) if name != names[number]}


def _are_equal(one: Any, other: Any) -> bool:
    if one is other or not (isinstance(one, (bytes, Image.Image)) and isinstance(other, (bytes, Image.Image))):
        return one is other  # an array is no medium
    try:
        return bool(one == other)
    except Exception:  # a damaged image, which is named when it is encoded; decoders raise anything
        return False


def _is_base64_medium(value: Mapping[str, Any]) -> bool:
    """Tell whether an object is OpenAI's `input_audio`, or Anthropic's `source`."""
    is_one = value.keys() == {"data", "format"} or str(value.get("type")) == "base64"
    return is_one and isinstance(value.get("data"), str)


def _decoded_base64(data: str) -> bytes:
    try:
        return base64.b64decode(data)
    except ValueError as error:  # binascii's, and another for letters beyond ASCII
        raise Skip(Reason.UNREADABLE_MEDIA, f"{data[:40]!r} is no base64: {error}") from None
