"""Opens images, and decodes them as transformers' `load_image` does: by the EXIF orientation, and converted to RGB."""

import io
from functools import cache
from typing import BinaryIO, NamedTuple

from PIL import Image

#: Pillow's readers that only read the file; of the others, some start programs (EPS), or open any image (IPTC)
_ALLOWED_FORMATS = (
    *("JPEG", "PNG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "AVIF", "JPEG2000", "PPM", "ICO", "CUR", "ICNS", "TGA"),
    *("PCX", "SGI", "QOI", "DDS", "PSD", "XBM", "XPM"),
)
_ORIENTATION_TAG = 0x0112  # EXIF tag; 5..8 turn the image on its side
_PNG_ORIENTATION_CHUNKS = frozenset((b"eXIf", b"tEXt", b"zTXt", b"iTXt"))
#: EXIF orientation → the operation that turns the stored picture upright
_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class RgbConversion(NamedTuple):
    """How a stored picture is converted to RGB: its background behind transparent pixels, and its orientation."""

    #: the colour behind transparent pixels; empty: the colours that are stored there
    background: str = ""
    #: the only mode of images that get the background; empty: any
    only: str = ""
    #: whether the EXIF orientation is applied
    is_upright: bool = True


#: as transformers' `load_image`
PLAIN_LOOK = RgbConversion()


def opened_image(file: BinaryIO) -> Image.Image:
    """Open an image and read its header."""
    return Image.open(file, formats=_formats())


@cache
def _formats() -> list[str]:
    Image.init()
    return [name for name in _ALLOWED_FORMATS if name in Image.OPEN]


def decode_image(data: bytes) -> Image.Image:
    """Decode an image: upright, RGB."""
    return to_rgb(opened_image(io.BytesIO(data)), is_own=True)


def to_rgb(image: Image.Image, look: RgbConversion = PLAIN_LOOK, is_own: bool = False) -> Image.Image:
    """Convert an open image to RGB as `look` says: upright by its EXIF orientation, on a background.

    `is_own`: nobody else has the image, so that one in RGB may be returned as it is.
    """
    image.load()
    method = _TRANSPOSES.get(exif_orientation(image)) if look.is_upright else None
    image = image if method is None else image.transpose(method)
    if not look.background or look.only not in ("", image.mode) or not image.has_transparency_data:
        if image.mode == "RGB" and is_own:
            return image._new(image.im)  # as convert("RGB") makes it, without a copy of the pixels
        return image.convert("RGB")
    pixels, behind = image.convert("RGBA"), Image.new("RGB", image.size, look.background)
    behind.paste(pixels, mask=pixels.getchannel("A"))
    return behind


def exif_orientation(image: Image.Image, png_chunk_names: list[bytes] | None = None) -> int:
    """Return the EXIF orientation, 1..8, as Pillow's `exif_transpose` finds it.

    `png_chunk_names`: the chunk names of a PNG, from `image_probe.png_chunk_names`; None: another format.

    Pillow decodes a whole PNG before it answers, because EXIF may follow the pixels; so its chunk names are read first.
    An image of a format without an end mark must be loaded before: Pillow turns a TIFF itself, and then says 1.
    """
    if png_chunk_names is not None:
        if _PNG_ORIENTATION_CHUNKS.isdisjoint(png_chunk_names):
            return 1
        if "exif" not in image.info:
            image.load()  # here, so that its errors cost the sample
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # Pillow raises any error on damaged EXIF: then the picture counts as it is stored
        return 1
    return value if value in range(1, 9) else 1
