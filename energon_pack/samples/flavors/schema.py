"""The types that fields of the packs' JSON must have, each in words and with a function that checks it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from energon_pack.errors import quote
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.samples.tokens_part import CHECKSUM_FIELD, PACK_FORMAT

#: The field with the conversations; `output.messages=false` leaves it out.
MESSAGES_FIELD = "messages"

Schema = Mapping[str, tuple[str, Callable[[Any], bool]]]


def wrong_fields(value: Any, where: str, schema: Schema) -> Iterator[str]:
    """Yield a message for each field that an object lacks or has in another type; `where`: their prefix (`_meta.`)."""
    if not isinstance(value, dict):
        yield f"{where.rstrip('.')} is {quote(value)}, not an object"
        return
    for name, (kind, is_it) in schema.items():
        if name not in value:
            yield f"no {where}{name}"
        elif not is_it(value[name]):
            yield f"{where}{name} is {quote(value[name])}, not {kind}"


def list_checker(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(type(item) is kind for item in value)


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


def _is_lists_of_strings(value: Any) -> bool:
    return isinstance(value, list) and all(map(list_checker(str), value))


LIST_TYPE = ("a list", lambda value: isinstance(value, list))
NAMES_TYPE = ("a list of lists of names", _is_lists_of_strings)
TEXTS_TYPE = ("a list of lists of texts", _is_lists_of_strings)
OBJECTS_TYPE = ("a list of objects", list_checker(dict))
COUNT_TYPE = ("a count", is_count)
COUNTS_TYPE = ("a list of counts", lambda value: isinstance(value, list) and all(map(is_count, value)))
_STRING_TYPE = ("a string", lambda value: isinstance(value, str))

#: The fields of `_meta` in every pack that this package writes.
META_SCHEMA: Schema = {
    "format": (str(PACK_FORMAT), lambda value: type(value) is int and value == PACK_FORMAT),
    "pack_id": _STRING_TYPE,
    "sample_ids": ("a list of strings", list_checker(str)),
    "token_lens": COUNTS_TYPE,
    "num_supervised": COUNTS_TYPE,
    "total_token_len": COUNT_TYPE,
    "fingerprint": _STRING_TYPE,
    "source_parts": NAMES_TYPE,
    CHECKSUM_FIELD: COUNT_TYPE,
}
#: Fields of `_meta` in packs that name the media of each member.
MEDIA_SCHEMA: Schema = {
    "media_files": NAMES_TYPE,
    "media_type": (", ".join(MEDIA_TYPES), lambda value: value in MEDIA_TYPES),
}
