"""Finds media that a sample holds where nothing reads them: under a key that is misspelt, or another tool's.

    {"imgae": "1.jpg", "messages": […]} ──refuse_unread_media──► Skip: media_unread: did you mean image?
    {"image_id": 38, "caption": "A bus."} ──refuse_unread_media──► Skip: missing_media

Trained as it is, such a sample loses its media without a word. A name that ends as the name of a medium counts; where
other things have such names, it is opened.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from energon_pack.samples.dialects.media_in_text import is_name_of_file
from energon_pack.samples.dialects.rewrite import parse_json_or_python
from energon_pack.samples.documents import is_document
from energon_pack.samples.keys import (
    CALL_PREFIX,
    is_known_sample_key,
    kind_of_media_key,
    similar_key,
    similar_key_hint,
)
from energon_pack.samples.media.kinds import KINDS, PART_TYPES, media_kind_by_extension
from energon_pack.samples.media_marks import is_empty_media_list
from energon_pack.samples.placeholders import num_text_placeholders
from energon_pack.samples.record import Record
from energon_pack.samples.sample import MESSAGE_KEYS
from energon_pack.samples.skip import Hint, Reason, Skip

_MAX_NAME_CHARACTERS = 1024  # most characters of a path
#: a part of a path that no file system takes, an end of a line, an extension alone ("to .jpg"): such a text is no name
_NEVER_IN_NAMES = re.compile(r"[^/\\]{256}|[\0-\x1f]|(^|[ /\\])\.[^.]*$| .*://")
_FOLDER_OR_NUMBER = re.compile(r"[/\\]|\d\S*( \S+)?$")
#: what stands around a name, also in Markdown
_MARKS_AROUND_NAMES = " \n\r\t\"'()!,;"
_MAX_LIST_CHARACTERS = 1 << 16  # of a list or an object that is a text
_INNER_NAME_MARK = "::"  # in the names of media inside files
#: known keys that may name a medium of a conversation
_KEYS_OF_FILE_NAMES = ("file_name", "image_id", "video_id", "url", "link")
_MEDIUM = "(?:(?P<image>image|img|photo|picture)|(?P<video>video|clip|youtube|yt)|(?P<audio>audio|sound|wav))s?"
_REFERENCE = "[ _-]?(?:id|key|name|path|file[ _-]?(?:name|path)?|ur[il]|link)s?"
#: a whole key that says which medium it is (`image_id`, `videoID`); a `profile_image_url` is of something else
_KEY_OF_MEDIUM = re.compile(f"{_MEDIUM}{_REFERENCE}", re.IGNORECASE)
#: a whole key that names a file, beside a raw text, too: `wav`, `audio_filepath`; an `og_image` belongs to a page
_KEY_OF_FILE = re.compile(f"{_MEDIUM}(?:{_REFERENCE})?|(?:file[ _-]?)?path", re.IGNORECASE)
#: a key that says where something comes from: of a caption, its medium
_KEY_OF_ORIGIN = re.compile(r"(?:^|[ _-])(?:file[ _-]?name|ur[il]|link)s?$", re.IGNORECASE)
_WEB_ADDRESS = re.compile(r"\s*https?://", re.IGNORECASE)
#: ids, in small letters, that say that there is no medium; NaN is pandas'
_NO_IDS = frozenset(("nan", "none", "null", "n/a", "-1", "{}"))

#: opens a value, or what it names; returns the kind of the medium, or None
KindOf = Callable[[Any], str | None]


class _CheckedField(NamedTuple):
    key: str
    value: Any
    kind: str | None  # of media that the key names, or one that is spelled alike
    is_decided_by_name: bool  # a name that ends as a medium's is enough
    is_raw: bool  # of a raw text, which may come from any address


def media_file_names(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts in `fields` that look like the name of a media file, except those of the conversation."""
    values = (item for key, item in fields.items() if key not in MESSAGE_KEYS)
    return (leaf for value in values for leaf in leaf_values(value) if _kind_by_name(leaf))


def refuse_unread_media(
    record: Record, read: Sequence[str], kinds: Collection[str], kind_of: KindOf, is_tar: bool = False
) -> None:
    """Raise Skip (`media_unread`, `missing_media`) if a sample has a medium in a field that is not read.

    `read`: names of the media that are read. `kinds`: their kinds. `kind_of`: opens a field's value; returns its kind
    of media, or None.
    """
    if is_tar and kinds and record.listed_media is None:  # all media of a tar's sample are read
        return
    for field in _fields_to_check(record, kinds):
        for leaf in leaf_values(field.value):
            kind = None if _names_read_medium(leaf, read) else _kind_of_value(leaf, field, kind_of)
            if kind is not None:
                is_top = "[]" not in field.key and not is_tar
                columns = f"columns.{KINDS[kind].plural}"
                is_listing = is_top and _value_may_list_media(field.value)
                reads = Hint(columns, field.key, "reads it;", keeps=tuple(read)) if is_listing else None
                place = f"{field.key} has {str(leaf)[:80]!r},"
                rest = "the rest" if kinds else "the text alone"
                raise unread_media_skip(place, kind, similar_key_hint(field.key), reads, rest)
    if not kinds:
        _refuse_medium_without_file(record)


def _refuse_medium_without_file(record: Record) -> None:
    """Raise Skip (`missing_media`) if a caption or a question names its medium, and the medium has no file.

    The key of an id or an address says so (`image_id`). A caption describes what its `url` names; a question need not.
    """
    if not (record.is_caption or record.is_question):
        return
    for key, value in record.fields.items():
        named = _KEY_OF_MEDIUM.fullmatch(str(key)) or (record.is_caption and _KEY_OF_ORIGIN.search(str(key)))
        is_none = isinstance(value, bool) or is_empty_media_list(value) or str(value).lower() in _NO_IDS
        if named and not is_none:
            detail = f"{key} has {str(value)[:80]!r}, which is no file: its medium is lost"
            advice = "(source.map can name one, source.media=ignore packs the text)"
            skip = Skip(Reason.MISSING_MEDIA, f"{detail} {advice}")
            skip.media_type = named.lastgroup
            raise skip


def _value_may_list_media(value: Any) -> bool:
    """Tell whether a field's value may be read as media: a name, an object with its path, or a list of these."""
    if isinstance(value, Mapping):
        return not {"path", "url"}.isdisjoint(value)
    return all(map(_value_may_list_media, value)) if isinstance(value, list | tuple) else True


def unread_media_skip(
    place: str, kind: str, meant: str, reads: Hint | str | None, rest: str = "the text alone"
) -> Skip:
    """Return the Skip for a sample with a medium that nothing reads.

    `place`: where the medium is. `meant`: `: did you mean …?` or empty. `reads`: what reads it, if anything does.
    `rest`: what is packed without it.
    """
    ways = f"{reads or ''} source.media=ignore packs {rest}"
    hint = reads if isinstance(reads, Hint) else None
    skip = Skip(Reason.MEDIA_UNREAD, f"{place} {KINDS[kind].noun}, and nothing reads it{meant or ':'} {ways}", hint)
    skip.media_type = kind
    return skip


def _fields_to_check(record: Record, kinds: Collection[str]) -> Iterator[_CheckedField]:
    """Yield the fields of a record, of its turns and of its content parts in which a medium counts.

    If a sample has media (`kinds`), other fields may name them again, or their masks: then only nearly known keys
    count, and an address (`image_url`) is where they come from, unless it names a file of another kind. If it has none,
    but placeholders, every field counts. A raw text may come from a file with the name of a medium, unless the key says
    that it has one (`audio_filepath`), and no setting that it is a text.
    """
    if kinds and not record.unknown:
        return
    has_places = num_text_placeholders(record.messages) > 0
    is_raw = is_document(record.messages) and not has_places
    for key, value in record.unknown.items():
        # another text of the conversation; a file that a call names
        if is_known_sample_key(key) or key.startswith(CALL_PREFIX):
            continue
        kind = kind_of_media_key(similar_key(key) or key)
        is_address = _holds_addresses(value)
        is_origin = is_address and key in PART_TYPES and {*map(_kind_by_name, leaf_values(value))} <= {None, *kinds}
        if (kind and not is_origin) or not kinds:
            is_path = not is_address and _is_key_of_file(record, key)
            yield _CheckedField(key, value, kind, is_path or kind is not None or not is_raw, is_raw)
    for key, value in () if kinds else record.fields.items():
        kind = kind_of_media_key(key)
        is_name = key in _KEYS_OF_FILE_NAMES and (not is_raw or _is_key_of_file(record, key))
        if is_known_sample_key(key) and key not in MESSAGE_KEYS and (has_places or kind or is_name):
            yield _CheckedField(key, value, kind, True, is_raw)


def _is_key_of_file(record: Record, key: str) -> bool:
    """Tell whether the key of a raw text says that it has a medium's file, and no setting says that it is a text."""
    return not record.is_declared_document and _KEY_OF_FILE.fullmatch(key) is not None


def _kind_of_value(leaf: Any, field: _CheckedField, kind_of: KindOf) -> str | None:
    named = _kind_by_name(leaf)
    if named and field.is_decided_by_name:
        return named
    if not isinstance(leaf, str):
        return kind_of(leaf)
    if field.kind and not field.is_raw and _WEB_ADDRESS.match(leaf):
        return field.kind
    may_be = named or field.kind or _INNER_NAME_MARK in leaf or media_kind_by_extension(leaf) is not None
    return kind_of(leaf) if may_be and len(leaf) <= _MAX_NAME_CHARACTERS and "\n" not in leaf else None


def _holds_addresses(value: Any) -> bool:
    """Tell whether all texts in a value are addresses of the web."""
    return all(isinstance(leaf, str) and _WEB_ADDRESS.match(leaf) for leaf in leaf_values(value))


def _names_read_medium(leaf: Any, read: Sequence[str]) -> bool:
    """Tell whether a value names a medium that is read, perhaps by a longer or a shorter path."""
    return isinstance(leaf, str) and any(is_name_of_file(leaf.removeprefix("./"), path) for path in read)


def leaf_values(value: Any) -> Iterator[Any]:
    """Yield the values in nested mappings and lists, except numbers and None."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            waiting += item.values()
        elif isinstance(item, list | tuple):
            waiting += reversed(item)
        elif item is not None and not isinstance(item, bool | int | float):
            yield item


def _kind_by_name(value: Any) -> str | None:
    """Return the kind of medium by the name of a file; None: it is another text, or a `.ts`, which may be TypeScript.

    A name may be an address with a query, or stand in a list or an object that is a text. With several blanks it is a
    name if it has a folder, or a number near its end ("Photo 3 of 7.jpg"): "Save it as plot.png" is a remark.
    """
    if not isinstance(value, str) or "." not in value or len(value) > _MAX_LIST_CHARACTERS:
        return None
    name = value.strip(_MARKS_AROUND_NAMES)
    if name[:1] in ("[", "{"):
        return next(filter(None, map(_kind_by_name, leaf_values(parse_json_or_python(name)))), None)
    if "://" in name:
        head, _, query = name.partition("#")[0].partition("?")
        name = name if " " in query else head
    if "." not in name or len(name) > _MAX_NAME_CHARACTERS or _NEVER_IN_NAMES.search(name) or name.endswith(".ts"):
        return None
    is_remark = name.count(" ") > 1 and not _FOLDER_OR_NUMBER.search(name)
    return None if is_remark else media_kind_by_extension(name)
