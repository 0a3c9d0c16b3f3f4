"""Finds the pictures of a document, and takes out the places of those that are missing (`source.missing_media`). Pure.

    A cat.<a.jpg>A dog.<gone.jpg>Both.  ──find_document_pictures──►  A cat.<a.jpg>A dog.⏎⏎Both.   removed: gone.jpg

A picture is missing if no file, member or cell has its name, or if it has no bytes. One that is damaged is not missing.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from energon_pack.samples.dialects.pictures import REMOVE_ADVICE
from energon_pack.samples.documents import is_document, with_joined_texts
from energon_pack.samples.record import Record
from energon_pack.samples.sample import Message
from energon_pack.samples.settings import MissingMedia
from energon_pack.samples.skip import Reason, Skip

Found = TypeVar("Found")
#: the reasons of pictures that are missing; nothing is downloaded, so an address is one
_REASONS = (Reason.MISSING_MEDIA, Reason.UNSUPPORTED_MEDIA)


def is_document_with_named_pictures(record: Record) -> bool:
    """Tell whether a record is a document whose pictures are named where they stand."""
    content = record.messages[0]["content"]
    names = [part.get("name") for part in content if part["type"] != "text"] if isinstance(content, list) else []
    return is_document(record.messages) and bool(names) and None not in names and len(names) == len(_listed(record))


def find_document_pictures(
    record: Record, setting: MissingMedia, find: Callable[[str], Found]
) -> tuple[Record, list[Found]]:
    """Return a document without the places of pictures that are missing, and what `find` returned for the others.

    Args:
        record: one of `is_document_with_named_pictures`.
        find: returns a picture by its name; Skip: it is missing, or can't be read.

    Raises:
        Skip: a picture is missing, and `setting` is not `remove`; or it can't be read.
    """
    [message], names = record.messages, iter(_listed(record))
    pictures, kept, removed = list[Found](), list[Message](), list[str]()
    for part in message["content"]:
        if part["type"] == "text":
            kept.append(part)
            continue
        name = next(names)
        try:
            if not name:
                raise Skip(Reason.MISSING_MEDIA, "a place of the document has no text, and no picture either")
            pictures.append(find(name))
            kept.append(part)
        except Skip as skip:
            if skip.reason not in _REASONS:
                raise
            if setting is not MissingMedia.remove:
                raise Skip(skip.reason, f"{skip.detail}; {REMOVE_ADVICE}") from None
            removed.append(name)
    if removed:
        kept, gone = [*with_joined_texts(kept)], {*removed}
        names_left = [name for name in _listed(record) if name not in gone]
        text = "".join(part.get("text", "") for part in kept)
        if not names_left and not text.strip():
            raise Skip(Reason.NO_MESSAGES, "it has no text, and its pictures are missing")
        message = {**message, "content": kept if names_left else text}
        record = replace(record, messages=[message], listed_media=names_left, removed=removed)
    return record, pictures


def _listed(record: Record) -> list[str]:
    return record.listed_media or []
