"""Replace media inside a record by names: bytes, `{bytes, path}` of `datasets`, base64. Pure.

{"images": ["/9j/4AAQ…"]} ──replace_media_by_names──► {"images": ["NAME/images/0"]}
images/0                  ──medium_at───► the image
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from energon_pack.samples.raw_record import without_null_fields
from energon_pack.samples.skip import Reason, Skip

_MEDIA_FIELDS = {"bytes", "path"}  # the fields of an image, a video or an audio in `datasets`
_BASE64_START = (
    r"data:[a-z]+/[\w.+-]+;base64,|(?:/9j/|iVBORw0KGgo|R0lGOD|UklGR)[A-Za-z0-9+/\s]{200}"
    r"|(?:SUQz|//[I-Po-v]|/\+[I-P]|T2dnU|ZkxhQ|GkXfo|AAAA[A-Za-z0-9+/]{2}Z0eX)[A-Za-z0-9+/]{200}"
)
#: beginnings of a data: URI, and of an image, a sound or a clip in base64
_BASE64 = re.compile(_BASE64_START)
_BASE64_IN_JSON = re.compile(rf'"(?:{_BASE64_START})'.encode())
_LIST_OF_BASE64 = re.compile(rf"\s*\[\s*['\"](?:{_BASE64_START})")


def may_have_base64(raw: bytes) -> bool:
    """Tell, without parsing the JSON, whether it may hold an image, a sound or a clip in base64."""
    return _BASE64_IN_JSON.search(raw) is not None


def parsed_base64_list(text: str) -> list[str] | None:
    """Return the texts of a list of media in base64, as JSON or Python writes it; None: the text is no such list."""
    return re.findall(r"['\"]([^'\"]*)['\"]", text) if _LIST_OF_BASE64.match(text) else None


def replace_media_by_names(value: Any, name: str) -> Any:
    """Return a JSON value with a text in place of each medium in it: `name` and the keys to it, as `NAME/images/0`."""
    if isinstance(value, dict):
        if "bytes" in value and value.keys() <= _MEDIA_FIELDS:
            return value.get("path") if value["bytes"] is None else f"{name}/bytes"
        return {key: replace_media_by_names(item, f"{name}/{quote(key, safe='')}") for key, item in value.items()}
    if isinstance(value, list):
        return [replace_media_by_names(item, f"{name}/{index}") for index, item in enumerate(value)]
    return name if isinstance(value, bytes) or (isinstance(value, str) and _BASE64.match(value)) else value


def json_with_media_names(row: Mapping[str, Any], name: str) -> bytes:
    """Return the JSON of a table's row, with names in place of media: `name` and the keys to each, as `a.csv::3/image`.

    A column has a value in each row, so none of its nulls can be told from one that an author meant: none stays but the
    text of a turn that has no other content, an empty answer.
    """
    values = without_null_fields(replace_media_by_names(row, name))
    lists = {key: items for key, items in values.items() if isinstance(items, list)}
    lists = {key: [*map(_with_null_text, items, row[key])] for key, items in lists.items()}
    return json.dumps({**values, **lists}, default=str).encode()


def _with_null_text(turn: Any, written: Any) -> Any:
    """Return a turn with the null of its text. `written`: the turn with all nulls; other values stay as they are."""
    if not isinstance(turn, dict) or turn.keys().isdisjoint(("role", "from")):
        return turn
    has_content = "content" in turn or "value" in turn or any(isinstance(item, list) for item in turn.values())
    return turn if has_content else turn | {key: None for key in ("content", "value") if key in written}


def value_at(way: Sequence[str], item: Callable[[Any, str], Any]) -> Any:
    """Return the value at a path in a record; KeyError: there is none.

    Args:
        way: the keys of the path, as `replace_media_by_names` wrote them: `("images", "0")`.
        item: called as `item(value, key)`, returns the item of a value; the first value is None: the whole record.
    """
    value: Any = None
    try:
        for step in map(unquote, way):
            value = item(value, step)
    except (IndexError, TypeError, ValueError, KeyError):
        raise KeyError("/".join(way)) from None
    return value


def get_item_of_record(record: Any, container: Any, key: str) -> Any:
    """Return an item of a list or mapping of a record, by its key; `container` None: of the record itself."""
    container = record if container is None else container
    return container[int(key) if isinstance(container, list) else key]


def decode_medium_bytes(keys: Sequence[str], medium: Any) -> bytes:
    """Return the bytes of a medium, decoded if they are base64.

    Raises:
        KeyError: it is neither bytes nor text; the error has `keys`, the path to it.
        Skip: it is a text, but no base64.
    """
    if isinstance(medium, str):
        try:
            return base64.b64decode(medium.partition("base64,")[2] or medium)
        except binascii.Error as error:
            raise Skip(Reason.UNREADABLE_MEDIA, f"{'/'.join(keys)}: {error}") from None
    if not isinstance(medium, bytes):
        raise KeyError("/".join(keys))
    return medium


def medium_at(
    way: Sequence[str], item: Callable[[Any, str], Any], plain: Callable[[Any], Any] = lambda value: value
) -> bytes:
    """Return the bytes of the medium at a path in a record; arguments and errors: `value_at`, `decode_medium_bytes`.

    `plain`: turns the value into bytes or text.
    """
    return decode_medium_bytes(way, plain(value_at(way, item)))
