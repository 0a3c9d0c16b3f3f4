"""Decodes images as transformers' `load_image` does: it applies the EXIF orientation, then converts to RGB."""

import io
import os
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from energon_pack.samples.media.formats import extension_of
from energon_pack.samples.skip import Reason, Skip

_ORIENTATION = 0x0112  # EXIF tag; 5..8 turn the image on its side
_PNG_ORIENTATION_CHUNKS = frozenset((b"eXIf", b"tEXt", b"zTXt", b"iTXt"))
#: EXIF orientation → the operation that turns the stored picture upright
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def probe_image(file: BinaryIO) -> tuple[int, int, str]:
    """Return the upright width and height of an image, and the usual extension of its format.

    An image without its end mark may be cut, so it is decoded to be sure. Images of formats without an end mark (GIF,
    BMP, TIFF, AVIF …) are always decoded.

    Raises:
        UnidentifiedImageError: it is no image.
        Skip: `unreadable_media`.
    """
    try:
        with Image.open(file) as image:
            chunks = png_chunks(image, file)
            if not is_whole(image, file, chunks):
                image.load()
            width, height = upright_size(image, chunks)
            extension = extension_of(image.format or "")
    except UnidentifiedImageError:
        raise
    except Exception as error:  # damaged bytes make Pillow's plugins raise anything, and each costs only its sample
        raise Skip(Reason.UNREADABLE_MEDIA, f"not a readable image: {str(error) or type(error).__name__}") from None
    if not (width and height):
        raise Skip(Reason.UNREADABLE_MEDIA, f"an image of {width}×{height} pixels")
    return width, height, extension


def open_image(data: bytes) -> Image.Image:
    """Decode an image: upright, RGB."""
    return upright(Image.open(io.BytesIO(data)))


def upright(image: Image.Image) -> Image.Image:
    """Turn an open image upright and convert it to RGB."""
    image.load()
    turn = _TURNS.get(_orientation(image))
    return (image if turn is None else image.transpose(turn)).convert("RGB")


def upright_size(image: Image.Image, png_chunks: set[bytes] | None) -> tuple[int, int]:
    """Return the upright width and height of an open image, by its header.

    Args:
        png_chunks: the chunk names of a PNG, as `png_chunks` returns them.
    """
    return image.size[::-1] if _orientation(image, png_chunks) >= 5 else image.size


def is_whole(image: Image.Image, file: BinaryIO, chunks: set[bytes] | None) -> bool:
    """Tell whether the file ends with the end mark of its format; False for formats without one."""
    if chunks is not None:
        return b"IEND" in chunks and b"acTL" not in chunks  # in an animated image, a good end tells nothing
    if image.format in ("JPEG", "MPO"):
        file.seek(-2, os.SEEK_END)
        return file.read(2) == b"\xff\xd9"
    if image.format == "WEBP":
        file.seek(4)
        claimed = int.from_bytes(file.read(4), "little") + 8
        return file.seek(0, os.SEEK_END) >= claimed
    return False


def png_chunks(image: Image.Image, file: BinaryIO) -> set[bytes] | None:
    """Return the names of a PNG's whole chunks, None for another format; keeps the file's position."""
    if image.format != "PNG":
        return None
    start, end = file.tell(), file.seek(0, os.SEEK_END)
    names: set[bytes] = set()
    position = 8
    while position + 12 <= end:
        file.seek(position)
        head = file.read(8)
        position += 12 + int.from_bytes(head[:4], "big")
        if position <= end:
            names.add(head[4:])
    file.seek(start)
    return names


def _orientation(image: Image.Image, png_chunks: set[bytes] | None = None) -> int:
    """Return the EXIF orientation, 1..8, as Pillow's `exif_transpose` finds it.

    Pillow decodes a whole PNG before it answers, because EXIF may follow the pixels; so its chunk names are read first.
    An image of a format without an end mark must be loaded before: Pillow turns a TIFF itself, and then says 1.
    """
    if png_chunks is not None and not png_chunks & _PNG_ORIENTATION_CHUNKS:
        return 1
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # Pillow raises any error on damaged EXIF: then the picture counts as it is stored
        return 1
    return value if value in range(1, 9) else 1
