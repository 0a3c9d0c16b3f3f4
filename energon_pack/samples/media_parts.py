"""Finds the media of a sample: among its parts, or the pictures of a document where it names them. Pure.

Its media are the parts that its JSON lists, or all that look like media. In a document, the places of pictures that are
missing are taken out (`source.missing_media`):

    A cat.<a.jpg>A dog.<gone.jpg>Both.  ──find_document_pictures──►  A cat.<a.jpg>A dog.⏎⏎Both.   removed: gone.jpg

A picture is missing if no file, member or cell has its name, or if it has no bytes. One that is damaged is not missing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from energon_pack.samples.dialects.media_in_text import DOWNLOAD_ADVICE, REMOVE_ADVICE
from energon_pack.samples.documents import is_document, with_joined_texts
from energon_pack.samples.media.kinds import IMAGE, KIND_OF_MEDIA_KEY, KINDS, MEDIA_KEYS, VIDEO, media_kind_by_extension
from energon_pack.samples.media.medium import Media
from energon_pack.samples.placeholders import num_text_placeholders
from energon_pack.samples.record import Record
from energon_pack.samples.sample import Message, Part
from energon_pack.samples.settings import MissingMediaPolicy
from energon_pack.samples.skip import Reason, Skip

#: the kind of media that a key of a record, or a content part, lists
_KIND_OF_KEY = {**KIND_OF_MEDIA_KEY, **{f"content[].{kind}": kind for kind in KINDS}}
#: extensions of pictures that do not move; a picture in memory may have none
_STILL_EXTENSIONS = ("", "jpg", "jpeg", "png", "bmp", "tif", "tiff")
#: the reasons of pictures that are missing; nothing is downloaded, so an address is one
_REASONS_OF_MISSING = (Reason.MISSING_MEDIA, Reason.UNSUPPORTED_MEDIA)

Found = TypeVar("Found")


def find_media_parts(record: Record, sample_key: str, parts: Sequence[Part]) -> list[Part]:
    """Return a sample's media: the parts that its record lists, in that order; without a list all, in the tar's order.

    A listed name is a part (`0.jpg`), a whole member name (`00012.0.jpg`), or the extension of the only part that
    has it (`jpg`).
    """
    chosen = find_listed_parts(record.listed_media, sample_key, parts) if record.listed_media is not None else None
    if chosen is None:
        chosen = [part for part in parts if media_kind_by_extension(part.name)]
        if not chosen and record.declared not in (None, "text"):
            raise Skip(Reason.MISSING_MEDIA, f"declared as {record.declared}, but there are no media")
        if not chosen and parts and num_text_placeholders(record.messages):
            names = ", ".join(part.name for part in parts)
            raise Skip(Reason.MISSING_MEDIA, f"placeholders, but no medium by its name: {names} (`name` lists media)")
    return _refuse_tar_links(chosen)


def find_listed_parts(listed_media: Sequence[str], sample_key: str, parts: Sequence[Part]) -> list[Part]:
    """Return the part for each listed name: a part, a whole member name, or an extension; raises Skip if none fits."""
    by_name = {part.name: part for part in parts}
    chosen = []
    for listed in listed_media:
        part = by_name.get(listed)
        if part is None:
            whole = listed.removeprefix("./")
            prefix = next(
                (p for p in (f"{sample_key}.", f"{sample_key.rpartition('/')[2]}.") if whole.startswith(p)), None
            )
            part = by_name.get(whole[len(prefix) :]) if prefix else None
        if part is None:
            same = [p for p in parts if p.name.rpartition(".")[2] == listed]
            part = same[0] if len(same) == 1 else None
        if part is None:
            if "://" in listed:
                raise Skip(Reason.UNSUPPORTED_MEDIA, f"{listed[:80]!r} is listed: {DOWNLOAD_ADVICE}")
            raise Skip(Reason.MISSING_MEDIA, f"{listed!r} is listed, the parts are {sorted(by_name)[:8]}")
        chosen.append(part)
    return _refuse_tar_links(chosen)


def refuse_other_kinds(record: Record, key: str, parts: Sequence[Part], media: Sequence[Media]) -> None:
    """Raise Skip (`placeholder_mismatch`) if a medium is of another kind than the key, or content part, that lists it.

    Keys of images list any medium: LLaVA's `image` may be a video, and ImageFolder's `file_name` becomes an `image`.
    Stills under a key of videos are its frames: they stay images.

    `key`: of the sample. `parts`: its media; `media`: kind and extension of each, by its content.
    """
    contents = (message["content"] for message in record.messages if isinstance(message["content"], list))
    in_content = ((f"content[].{part['type']}", part["name"]) for c in contents for part in c if "name" in part)
    for listed_by, name in (*record.listed_by_kind, *in_content, *_listings_in_fields(record.fields)):
        meant = _KIND_OF_KEY[listed_by]
        found = [] if meant == IMAGE.kind else _media_of_name(name, key, parts, media)
        are_frames = meant == VIDEO.kind and all(_is_still(medium) for medium in found)
        if found and not are_frames and all(medium.kind != meant for medium in found):
            right = listed_by.replace(meant, found[0].kind)
            detail = f"{listed_by} lists {name[:80]}, which is {KINDS[found[0].kind].noun}"
            ways = f"convert it to {KINDS[meant].formats[0].extension}, or list it under {right}"
            raise Skip(Reason.PLACEHOLDER_MISMATCH, f"{detail}: {ways}")


def _is_still(medium: Media) -> bool:
    return medium.kind == IMAGE.kind and medium.extension in _STILL_EXTENSIONS


def _listings_in_fields(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield key and name of the media that fields of a tar's sample list; of a name under several keys, the first."""
    seen = set[str]()
    for key in MEDIA_KEYS:
        for entry in items if isinstance(items := fields.get(key), list) else [items]:
            name = entry.get("path") if isinstance(entry, Mapping) else entry
            if isinstance(name, str) and name not in seen:
                seen.add(name)
                yield key, name


def _media_of_name(name: str, key: str, parts: Sequence[Part], media: Sequence[Media]) -> list[Media]:
    """Return the medium that a sample names; those with its extension, if none has the name."""
    with suppress(Skip):
        return [media[parts.index(find_listed_parts([name], key, parts)[0])]]
    extension = extension_of(name)
    return [medium for part, medium in zip(parts, media, strict=True) if extension_of(part.name) == extension]


def extension_of(name: str) -> str:
    """Return what follows the last dot of a name, in small letters; a name without a dot is one itself."""
    return name.rpartition(".")[2].lower()


def _refuse_tar_links(parts: list[Part]) -> list[Part]:
    if link := next((part for part in parts if part.size < 0), None):
        raise Skip(Reason.MISSING_MEDIA, f"{link.name} is a link or the like, without bytes in the tar")
    return parts


def is_document_with_named_pictures(record: Record) -> bool:
    """Tell whether a record is a document whose pictures are named where they stand."""
    content = record.messages[0]["content"]
    names = [part.get("name") for part in content if part["type"] != "text"] if isinstance(content, list) else []
    return is_document(record.messages) and bool(names) and None not in names and len(names) == len(_listed(record))


def find_document_pictures(
    record: Record, setting: MissingMediaPolicy, find: Callable[[str], Found]
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
            if skip.reason not in _REASONS_OF_MISSING:
                raise
            if setting is not MissingMediaPolicy.remove:
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
