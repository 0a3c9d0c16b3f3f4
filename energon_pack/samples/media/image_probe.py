"""Reads the size of an image from its header, as Pillow would, and tells whether its file is whole."""

import os
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from energon_pack.samples.media.headers import is_about_else
from energon_pack.samples.media.image import opened, orientation
from energon_pack.samples.media.medium import Media
from energon_pack.samples.skip import Reason, Skip

#: chunks that Pillow reads without fail behind the pixels
_PNG_HARMLESS = frozenset((b"eXIf", b"tIME", b"IEND"))
#: Pillow's names of formats → their usual extensions, where these are others
_EXTENSIONS = {"JPEG": "jpg", "MPO": "jpg", "TIFF": "tif"}


def probe_image(file: BinaryIO) -> Media:
    """Return an image with its upright width and height, and the usual extension of its format.

    An image without its end mark may be cut, so it is decoded to be sure. Images of formats without an end mark (GIF,
    BMP, TIFF, AVIF …) are always decoded.
    """
    try:
        with opened(file) as image:
            chunks = png_chunks(image, file)
            if not is_whole(image, file, chunks):
                image.load()
            medium = medium_of(image, chunks)
    except UnidentifiedImageError:
        raise
    except Exception as error:  # damaged bytes make Pillow's plugins raise anything, and each costs only its sample
        raise Skip(Reason.UNREADABLE_MEDIA, f"not a readable image: {str(error) or type(error).__name__}") from None
    if not (medium.width and medium.height):
        raise Skip(Reason.UNREADABLE_MEDIA, f"an image of {medium.width}×{medium.height} pixels")
    return medium


def medium_of(image: Image.Image, png_chunks: list[bytes] | None = None) -> Media:
    """Return an open image as a medium, by its header."""
    is_turned = orientation(image, png_chunks) >= 5
    width, height = image.size[::-1] if is_turned else image.size
    mode = image.mode if image.mode.startswith(("I", "F")) else ""
    return Media("image", width, height, _extension(image.format or ""), is_turned=is_turned, mode=mode)


def is_whole(image: Image.Image, file: BinaryIO, chunks: list[bytes] | None) -> bool:
    """Tell whether the file ends with the end mark of its format; False for formats without one."""
    if chunks is not None:  # in an animated image, a good end tells nothing; texts behind the pixels may be too large
        behind = chunks[len(chunks) - chunks[::-1].index(b"IDAT") :] if b"IDAT" in chunks else []
        return b"IEND" in behind and b"acTL" not in chunks and _PNG_HARMLESS.issuperset(behind)
    if image.format in ("JPEG", "MPO"):
        file.seek(-2, os.SEEK_END)
        return file.read(2) == b"\xff\xd9"
    if image.format == "WEBP":
        file.seek(4)
        claimed = int.from_bytes(file.read(4), "little") + 8
        return file.seek(0, os.SEEK_END) >= claimed
    return False


def png_chunks(image: Image.Image, file: BinaryIO) -> list[bytes] | None:
    """Return the names of a PNG's whole chunks, None for another format; keeps the file's position.

    Texts that surely say nothing of the orientation are left out.
    """
    if image.format != "PNG":
        return None
    start, end = file.tell(), file.seek(0, os.SEEK_END)
    names: list[bytes] = []
    position = 8
    while position + 12 <= end:
        file.seek(position)
        head = file.read(8)
        length, name = int.from_bytes(head[:4], "big"), head[4:]
        position += 12 + length
        if position <= end and not (name == b"tEXt" and is_about_else(file.read(80), length)):
            names.append(name)
    file.seek(start)
    return names


def _extension(format_name: str) -> str:
    return _EXTENSIONS.get(format_name, format_name.lower())
