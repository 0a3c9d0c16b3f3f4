"""Opens images, and decodes them as transformers' `load_image` does: by the EXIF orientation, and converted to RGB."""

import io
import os
from functools import cache
from typing import BinaryIO, NamedTuple

from PIL import Image, UnidentifiedImageError

from energon_pack.samples.media.formats import extension_of
from energon_pack.samples.media.headers import is_about_else
from energon_pack.samples.media.medium import Media
from energon_pack.samples.skip import Reason, Skip

#: Pillow's readers that only read the file; of the others, some start programs (EPS), or open any image (IPTC)
_FORMATS = (
    *("JPEG", "PNG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "AVIF", "JPEG2000", "PPM", "ICO", "CUR", "ICNS", "TGA"),
    *("PCX", "SGI", "QOI", "DDS", "PSD", "XBM", "XPM"),
)
_ORIENTATION = 0x0112  # EXIF tag; 5..8 turn the image on its side
_PNG_ORIENTATION_CHUNKS = frozenset((b"eXIf", b"tEXt", b"zTXt", b"iTXt"))
#: chunks that Pillow reads without fail behind the pixels
_PNG_HARMLESS = frozenset((b"eXIf", b"tIME", b"IEND"))
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


class Look(NamedTuple):
    """How a stored picture becomes RGB."""

    #: the colour behind transparent pixels; empty: the colours that are stored there
    background: str = ""
    #: the only mode of images that get the background; empty: any
    only: str = ""
    #: whether the EXIF orientation is applied
    is_upright: bool = True


#: as transformers' `load_image`
PLAIN = Look()


def opened(file: BinaryIO) -> Image.Image:
    """Open an image and read its header.

    Raises:
        UnidentifiedImageError: it is no image.
    """
    return Image.open(file, formats=_formats())


@cache
def _formats() -> list[str]:
    Image.init()
    return [name for name in _FORMATS if name in Image.OPEN]


def probe_image(file: BinaryIO) -> Media:
    """Return an image with its upright width and height, and the usual extension of its format.

    An image without its end mark may be cut, so it is decoded to be sure. Images of formats without an end mark (GIF,
    BMP, TIFF, AVIF …) are always decoded.

    Raises:
        UnidentifiedImageError: it is no image.
        Skip: `unreadable_media`.
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


def open_image(data: bytes) -> Image.Image:
    """Decode an image: upright, RGB."""
    return to_rgb(opened(io.BytesIO(data)))


def to_rgb(image: Image.Image, look: Look = PLAIN) -> Image.Image:
    """Convert an open image to RGB, and turn it upright."""
    image.load()
    turn = _TURNS.get(_orientation(image)) if look.is_upright else None
    image = image if turn is None else image.transpose(turn)
    if not look.background or look.only not in ("", image.mode) or not image.has_transparency_data:
        return image.convert("RGB")
    pixels, behind = image.convert("RGBA"), Image.new("RGB", image.size, look.background)
    behind.paste(pixels, mask=pixels.getchannel("A"))
    return behind


def medium_of(image: Image.Image, png_chunks: list[bytes] | None = None) -> Media:
    """Return an open image as a medium, by its header.

    Args:
        png_chunks: the names of a PNG's chunks, as `png_chunks` returns them.

    Raises:
        Exception: it can't be decoded, and only then would its orientation be known.
    """
    is_turned = _orientation(image, png_chunks) >= 5
    width, height = image.size[::-1] if is_turned else image.size
    mode = image.mode if image.mode.startswith(("I", "F")) else ""
    return Media("image", width, height, extension_of(image.format or ""), is_turned=is_turned, mode=mode)


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


def _orientation(image: Image.Image, png_chunks: list[bytes] | None = None) -> int:
    """Return the EXIF orientation, 1..8, as Pillow's `exif_transpose` finds it.

    Pillow decodes a whole PNG before it answers, because EXIF may follow the pixels; so its chunk names are read first.
    An image of a format without an end mark must be loaded before: Pillow turns a TIFF itself, and then says 1.
    """
    if png_chunks is not None:
        if _PNG_ORIENTATION_CHUNKS.isdisjoint(png_chunks):
            return 1
        if "exif" not in image.info:
            image.load()  # here, so that its errors cost the sample
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # Pillow raises any error on damaged EXIF: then the picture counts as it is stored
        return 1
    return value if value in range(1, 9) else 1
