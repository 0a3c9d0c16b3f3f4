"""Reads kind and size of media, from headers where headers tell them."""

from typing import BinaryIO

from PIL import UnidentifiedImageError

from energon_pack.errors import PackError
from energon_pack.samples.bytes import ByteRange, Bytes, as_file
from energon_pack.samples.media.image_probe import probe_without_pillow
from energon_pack.samples.media.kinds import IMAGE, KINDS, format_of
from energon_pack.samples.media.medium import Media
from energon_pack.samples.sample import AnyPart
from energon_pack.samples.skip import Reason, Skip

#: what is there instead, by its first bytes; no other bytes are shown: a record may name any file of this machine
_NON_MEDIA = {
    b"<!doctype": "it is an HTML page",
    b"<html": "it is an HTML page",
    b"version https://": "it is a pointer of Git LFS: git lfs pull gets the file",
    b"pk\x03\x04": "it is a zip archive",
    b"\x1f\x8b": "it is compressed by gzip",
    b"%pdf": "it is a PDF",
}


def probe_part(file: Bytes, part: AnyPart) -> Media:
    """Read kind and size of the medium in a part of a file, as `probe` does; an error names the part."""
    plain = probe_without_pillow(file, part.offset, part.size)
    if plain is not None:
        return plain
    try:
        return probe(as_file(ByteRange(file, part.offset, part.size)))
    except Skip as skip:
        raise Skip(skip.reason, f"{part.name}: {skip.detail}") from None


def probe(file: BinaryIO) -> Media:
    """Read kind and size of a medium; the content decides its kind, not the name.

    Raises:
        Skip: `unreadable_media`, or `unsupported_media` without PyAV.
    """
    head = file.read(16)
    container = format_of(head)
    try:
        if container is not None and container.kind != IMAGE.kind:
            return KINDS[container.kind].probe(file, container)
        file.seek(0)
        return IMAGE.probe(file)  # Pillow tries all of its formats, which takes as long as the header of a sound
    except UnidentifiedImageError:
        what = next((f"; {what}" for magic, what in _NON_MEDIA.items() if head.lower().startswith(magic)), "")
        raise Skip(Reason.UNREADABLE_MEDIA, f"no known image or video{what}") from None
    except (Skip, PackError):
        raise
    except Exception as error:  # a class of another package may raise anything, and it costs only its sample
        raise Skip(Reason.UNREADABLE_MEDIA, str(error)[:200] or type(error).__name__) from None
