"""Reads the size of an image from its header, as Pillow would, and tells whether its file is whole.

Plain JPEG, PNG and WebP files are read without Pillow, many times faster: undamaged, whole, of one frame, and without
metadata that could turn the picture (EXIF, XMP).
"""

import os
from typing import BinaryIO
from zlib import crc32

from PIL import Image, UnidentifiedImageError, WebPImagePlugin

from energon_pack.samples.bytes import ByteRange, Bytes
from energon_pack.samples.media.image import exif_orientation, opened_image
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
        with opened_image(file) as image:
            chunks = png_chunk_names(image, file)
            if not ends_with_end_mark(image, file, chunks):
                image.load()
            medium = medium_of(image, chunks)
    except UnidentifiedImageError:
        raise
    except Exception as error:  # damaged bytes make Pillow's plugins raise anything, and each costs only its sample
        raise unreadable_image_skip(error) from None
    if not (medium.width and medium.height):
        raise Skip(Reason.UNREADABLE_MEDIA, f"an image of {medium.width}×{medium.height} pixels")
    return medium


def unreadable_image_skip(error: Exception) -> Skip:
    """Return the Skip of an image at which Pillow raises `error`."""
    return Skip(Reason.UNREADABLE_MEDIA, f"not a readable image: {str(error) or type(error).__name__}")


def medium_of(image: Image.Image, png_chunks: list[bytes] | None = None) -> Media:
    """Return the size, extension and mode of an open image by its header; `png_chunks`: from `png_chunk_names`.

    A TIFF is decoded, too, and may raise what Pillow raises: Pillow turns it then, and no header says whether it has.
    """
    if image.format == "TIFF":
        image.load()
    is_turned = exif_orientation(image, png_chunks) >= 5
    width, height = image.size[::-1] if is_turned else image.size
    mode = image.mode if image.mode.startswith(("I", "F")) else ""
    return Media("image", width, height, _extension(image.format or ""), is_turned=is_turned, mode=mode)


def ends_with_end_mark(image: Image.Image, file: BinaryIO, chunks: list[bytes] | None) -> bool:
    """Tell whether a file ends with its format's end mark; False: it does not, or the format has no end mark.

    `chunks`: the names of a PNG's chunks, from `png_chunk_names`; None: another format.
    """
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


def png_chunk_names(image: Image.Image, file: BinaryIO) -> list[bytes] | None:
    """Return the names of the chunks that a PNG holds whole; None: another format. Keeps the file's position.

    Text chunks that surely hold no orientation are left out.
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
        if position <= end and not (name == b"tEXt" and is_png_text_without_orientation(file.read(80), length)):
            names.append(name)
    file.seek(start)
    return names


def _extension(format_name: str) -> str:
    return _EXTENSIONS.get(format_name, format_name.lower())


_TAIL_BYTES = 1024  # bytes at each end; the checksum covers the same bytes, so they are read once
#: bytes; in most files the pixels begin within the first, in nearly all within the second
_HEAD_BYTES = _TAIL_BYTES, 4096
_int = int.from_bytes

_JPEG_FRAME_MARKERS = frozenset((0xC0, 0xC1, 0xC2))  # baseline, extended and progressive
_JPEG_SCAN, _JPEG_QUANTIZATION, _JPEG_PROFILE = 0xDA, 0xDB, 0xE2
#: Other segments to skip, each with the least length that Pillow can read.
_JPEG_SKIPPED = {
    **{marker: 2 for marker in (0xC4, 0xDD, 0xFE, *range(0xE3, 0xED), 0xEF)},  # not 0xED, Photoshop's
    0xE0: 16,  # JFIF
    0xEE: 14,  # Adobe
}

_PNG_BEGIN = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_PNG_GREY_16 = b"\x10\0"  # 16 bits of grey; Pillow reads the other 16 bits as 8
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}  # channels of each colour type
_PNG_CHUNK_BYTES = {b"gAMA": 4, b"sRGB": 1, b"pHYs": 9, b"cHRM": 32}
_PNG_SKIPPED_CHUNKS = frozenset((*_PNG_CHUNK_BYTES, b"PLTE", b"tRNS", b"bKGD", b"sBIT", b"tIME", b"hIST", b"tEXt"))
_PNG_ORIENTATION_CHUNKS = frozenset((b"eXIf", b"zTXt", b"iTXt"))
_PNG_AFTER_PIXELS = frozenset((b"tEXt", b"tIME"))
_MAX_TEXT_BYTES = 1 << 20  # bytes: Pillow refuses 64 of this
#: Keywords of text chunks that surely hold no EXIF.
_PNG_HARMLESS_KEYWORDS = frozenset(
    topic.encode()
    for topic in (
        *("Software", "Title", "Author", "Description", "Copyright", "Creation Time", "Comment", "Source"),
        *("Disclaimer", "Warning", "date:create", "date:modify", "date:timestamp"),
    )
)


def probe_without_pillow(file: Bytes, offset: int, size: int) -> Media | None:
    """Read the size of a simple JPEG, PNG or WebP in a range of a file, without Pillow; None: only Pillow can tell."""
    for most in _HEAD_BYTES:
        medium = _plain_image_by_head(file, offset, size, file.read(offset, min(size, most)))
        if medium is not None or size <= most:
            return medium
    return None


def _plain_image_by_head(file: Bytes, offset: int, size: int, head: bytes) -> Media | None:
    if head.startswith(b"\xff\xd8\xff"):
        sides, extension = _jpeg_size(head), "jpg"
        end = min(size, _TAIL_BYTES)
        if sides and not file.read(offset + size - end, end).endswith(b"\xff\xd9"):
            return None
    elif head.startswith(_PNG_BEGIN):
        sides, extension = _png_size(ByteRange(file, offset, size), head), "png"
    elif head.startswith(b"RIFF") and head[8:15] == b"WEBPVP8":
        sides, extension = _webp_size(head, size), "webp"
    else:
        return None
    if sides is None or not all(sides) or sides[0] * sides[1] > (Image.MAX_IMAGE_PIXELS or 0):
        return None
    is_deep = extension == "png" and head[24:26] == _PNG_GREY_16
    return Media("image", *sides, extension, mode="I;16" if is_deep else "")


def _jpeg_size(head: bytes) -> tuple[int, int] | None:
    sides = None
    position, end = 2, len(head) - 4
    while position <= end and head[position] == 0xFF:
        marker, start = head[position + 1], position + 4
        length = head[position + 2] << 8 | head[position + 3]
        position += 2 + length
        if position > len(head):
            return None
        if marker in _JPEG_SKIPPED:
            if length < _JPEG_SKIPPED[marker]:
                return None
        elif marker == _JPEG_QUANTIZATION:
            while start < position:
                start += 65 if head[start] < 16 else 129
            if start != position:
                return None
        elif marker in _JPEG_FRAME_MARKERS:
            layers = head[start + 5] if length > 7 else 0
            if sides or layers not in (1, 3, 4) or length != 8 + 3 * layers or head[start] != 8:
                return None
            sides = _int(head[start + 3 : start + 5], "big"), _int(head[start + 1 : start + 3], "big")
        elif marker == _JPEG_PROFILE:
            if length < 16 or head[start : start + 12] != b"ICC_PROFILE\0":
                return None
        else:
            return sides if marker == _JPEG_SCAN and length > 1 else None
    return None


def _png_size(data: Bytes, head: bytes) -> tuple[int, int] | None:
    if len(head) < 33:
        return None
    depth, color = head[24], head[25]
    if depth not in _PNG_DEPTHS.get(color, ()) or head[26:28] != b"\0\0" or head[28] > 1:
        return None
    if crc32(head[12:29]) != _int(head[29:33], "big"):
        return None
    size, position, has_pixels = data.size, 33, False
    while position + 12 <= size:
        chunk = position
        begin = head[chunk : chunk + 8]
        if len(begin) < 8:
            begin = data.read(chunk, 8)
        length, kind = _int(begin[:4], "big"), begin[4:]
        position += 12 + length
        if kind == b"IDAT" and position <= size:
            has_pixels = True
        elif kind in _PNG_ORIENTATION_CHUNKS or (
            kind == b"tEXt" and not is_png_text_without_orientation(data.read(chunk + 8, 80), length)
        ):
            return None
        elif not has_pixels:  # Pillow reads and checks the chunks before the pixels
            if kind not in _PNG_SKIPPED_CHUNKS or position > len(head) or length != _PNG_CHUNK_BYTES.get(kind, length):
                return None
            if kind == b"tRNS" and length < {0: 2, 2: 6}.get(color, 0):
                return None
            if crc32(head[chunk + 4 : position - 4]) != _int(head[position - 4 : position], "big"):
                return None
        elif kind == b"IEND" and position == size:
            return _int(head[16:20], "big"), _int(head[20:24], "big")
        elif kind not in _PNG_AFTER_PIXELS:  # Pillow reads it with the pixels, and may fail there
            return None
    return None


def is_png_text_without_orientation(first_bytes: bytes, chunk_bytes: int) -> bool:
    """Tell whether a PNG's text chunk surely holds no orientation, and is no longer than Pillow reads.

    `first_bytes`: the chunk's first bytes. `chunk_bytes`: bytes of the whole chunk.
    """
    topic, zero, _ = first_bytes[:chunk_bytes].partition(b"\0")
    return bool(zero) and topic in _PNG_HARMLESS_KEYWORDS and chunk_bytes < _MAX_TEXT_BYTES


def _webp_size(head: bytes, size: int) -> tuple[int, int] | None:
    """Return the size of a WebP in one of the two simple forms, which hold only one picture."""
    length = _int(head[16:20], "little")
    if not WebPImagePlugin.SUPPORTED or size != 20 + length + length % 2 or size != 8 + _int(head[4:8], "little"):
        return None
    if len(head) < 30:
        return None
    if head[15:16] == b" " and head[23:26] == b"\x9d\x01\x2a":
        tag = _int(head[20:23], "little")  # no key frame, profile, shown, size of the first partition
        is_picture = not tag & 1 and (tag >> 1 & 7) <= 3 and tag >> 4 & 1 and tag >> 5 < length
        return (_int(head[26:28], "little") & 0x3FFF, _int(head[28:30], "little") & 0x3FFF) if is_picture else None
    if head[15:16] == b"L" and head[20] == 0x2F and head[24] >> 5 == 0:
        bits = _int(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return None
