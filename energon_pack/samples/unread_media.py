"""Finds media that a sample holds where nothing reads them: under a key that is misspelt, or another tool's.

    {"imgae": "1.jpg", "messages": […]} ──refuse_unread──► Skip: media_unread: did you mean image?

Trained as it is, such a sample loses its media without a word. A name that ends as the name of a medium counts; where
other things have such names, it is opened.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from energon_pack.samples.dialects.pictures import paths_in_tags
from energon_pack.samples.dialects.rewrite import parsed_text
from energon_pack.samples.documents import is_document
from energon_pack.samples.hint import Hint
from energon_pack.samples.keys import CALL_PREFIX, is_known_sample_key, is_media_key, similar_key, similar_key_hint
from energon_pack.samples.media.kinds import KINDS, kind_by_extension
from energon_pack.samples.placeholders import num_text_placeholders
from energon_pack.samples.record import Record
from energon_pack.samples.sample import MESSAGE_KEYS
from energon_pack.samples.skip import Reason, Skip

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

#: opens a value, or what it names; returns the kind of the medium, or None
KindOf = Callable[[Any], str | None]


class _CheckedField(NamedTuple):
    key: str
    value: Any
    is_near_media_key: bool  # the key is nearly one of media
    is_decided_by_name: bool  # a name that ends as a medium's is enough


def media_file_names(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts in `fields` that look like the name of a media file, except those of the conversation."""
    values = (item for key, item in fields.items() if key not in MESSAGE_KEYS)
    return (leaf for value in values for leaf in leaf_values(value) if _kind_by_name(leaf))


def refuse_unread_media(
    record: Record, read: Sequence[str], has_media: bool, kind_of: KindOf, is_tar: bool = False
) -> None:
    """Raise Skip (`media_unread`) if a sample has a medium in a field that is not read.

    `read`: names of the media that are read. `kind_of`: opens a field's value; returns its kind of media, or None.
    """
    if is_tar and has_media and record.listed_media is None:  # all media of a tar's sample are read
        return
    for path in paths_in_tags(record.messages):
        if kind := kind_of(path):
            raise unread_media_skip(f"a tag in the text has {path[:80]!r},", kind, "", None)
    for field in _fields_to_check(record, has_media):
        for leaf in leaf_values(field.value):
            kind = None if _names_read_medium(leaf, read) else _kind_of_value(leaf, field, kind_of)
            if kind is not None:
                is_top = "[]" not in field.key and not is_tar
                columns = f"columns.{KINDS[kind].plural}"
                is_listing = is_top and _value_may_list_media(field.value)
                reads = Hint(columns, field.key, "reads it;", keeps=tuple(read)) if is_listing else None
                raise unread_media_skip(
                    f"{field.key} has {str(leaf)[:80]!r},", kind, similar_key_hint(field.key), reads
                )


def _value_may_list_media(value: Any) -> bool:
    """Tell whether a field's value may be read as media: a name, an object with its path, or a list of these."""
    if isinstance(value, Mapping):
        return not {"path", "url"}.isdisjoint(value)
    return all(map(_value_may_list_media, value)) if isinstance(value, list | tuple) else True


def unread_media_skip(place: str, kind: str, meant: str, reads: Hint | str | None) -> Skip:
    """Return the Skip for a sample with a medium that nothing reads.

    `place`: where the medium is. `meant`: `: did you mean …?` or empty. `reads`: what reads it, if anything does.
    """
    ways = f"{reads or ''} source.media=ignore packs the text alone"
    hint = reads if isinstance(reads, Hint) else None
    skip = Skip(Reason.MEDIA_UNREAD, f"{place} {KINDS[kind].noun}, and nothing reads it{meant or ':'} {ways}", hint)
    skip.media_type = kind
    return skip


def _fields_to_check(record: Record, has_media: bool) -> Iterator[_CheckedField]:
    """Yield the fields of a record, of its turns and of its content parts in which a medium counts.

    If a sample has media, other fields may name them again, or their masks: then only nearly known keys count. If it
    has none, but placeholders, every field counts. A raw text may come from a file with the name of a medium.
    """
    if has_media and not record.unknown:
        return
    is_raw, has_places = is_document(record.messages), num_text_placeholders(record.messages) > 0
    for key, value in record.unknown.items():
        if is_known_sample_key(key) or key.startswith(
            CALL_PREFIX
        ):  # another text of the conversation; a file that is called
            continue
        is_near_media_key = is_media_key(similar_key(key) or key)
        if is_near_media_key or not has_media:
            yield _CheckedField(key, value, is_near_media_key, is_near_media_key or has_places or not is_raw)
    for key, value in () if has_media else record.fields.items():
        is_near_media_key = is_media_key(key)
        if (
            is_known_sample_key(key)
            and key not in MESSAGE_KEYS
            and (has_places or is_near_media_key or (key in _KEYS_OF_FILE_NAMES and not is_raw))
        ):
            yield _CheckedField(key, value, is_near_media_key, True)


def _kind_of_value(leaf: Any, field: _CheckedField, kind_of: KindOf) -> str | None:
    named = _kind_by_name(leaf)
    if named and field.is_decided_by_name:
        return named
    if isinstance(leaf, str):
        may_be = named or field.is_near_media_key or _INNER_NAME_MARK in leaf or kind_by_extension(leaf) is not None
        return kind_of(leaf) if may_be and len(leaf) <= _MAX_NAME_CHARACTERS and "\n" not in leaf else None
    return kind_of(leaf)


def _names_read_medium(leaf: Any, read: Sequence[str]) -> bool:
    """Tell whether a value names a medium that is read, perhaps by a longer or a shorter path."""
    path = f"/{leaf.removeprefix('./')}" if isinstance(leaf, str) else ""
    return bool(path) and any(path.endswith(f"/{name}") or f"/{name}".endswith(path) for name in read)


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
        return next(filter(None, map(_kind_by_name, leaf_values(parsed_text(name)))), None)
    if "://" in name:
        head, _, query = name.partition("#")[0].partition("?")
        name = name if " " in query else head
    if "." not in name or len(name) > _MAX_NAME_CHARACTERS or _NEVER_IN_NAMES.search(name) or name.endswith(".ts"):
        return None
    is_remark = name.count(" ") > 1 and not _FOLDER_OR_NUMBER.search(name)
    return None if is_remark else kind_by_extension(name)
