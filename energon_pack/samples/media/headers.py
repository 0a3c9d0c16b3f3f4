"""Reads the sizes of plain JPEG, PNG and WebP files from their first bytes: Pillow's result, many times faster.

Plain means: undamaged, whole, of one frame, and without metadata that could turn the picture (EXIF, XMP). Pillow reads
all other files.
"""

from zlib import crc32

from PIL import Image, WebPImagePlugin

from energon_pack.samples.bytes import Bytes, Range
from energon_pack.samples.media.medium import Media

_END = 1024  # bytes at each end; the checksum covers the same bytes, so they are read once
_HEADS = _END, 4096  # bytes; in most files the pixels begin within the first, in nearly all within the second
_int = int.from_bytes

_JPEG_FRAMES = frozenset((0xC0, 0xC1, 0xC2))  # baseline, extended and progressive
_JPEG_SCAN, _JPEG_QUANTIZATION, _JPEG_PROFILE = 0xDA, 0xDB, 0xE2
#: Other segments to skip, each with the least length that Pillow can read.
_JPEG_PASSED = {
    **{marker: 2 for marker in (0xC4, 0xDD, 0xFE, *range(0xE3, 0xED), 0xEF)},  # not 0xED, Photoshop's
    0xE0: 16,  # JFIF
    0xEE: 14,  # Adobe
}

_PNG_BEGIN = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_PNG_DEEP = b"\x10\0"  # 16 bits of grey; Pillow reads the other 16 bits as 8
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}  # channels of each colour type
_PNG_LENGTHS = {b"gAMA": 4, b"sRGB": 1, b"pHYs": 9, b"cHRM": 32}
_PNG_PASSED = frozenset((*_PNG_LENGTHS, b"PLTE", b"tRNS", b"bKGD", b"sBIT", b"tIME", b"hIST", b"tEXt"))
_PNG_TURNS = frozenset((b"eXIf", b"zTXt", b"iTXt"))
_PNG_BEHIND = frozenset((b"tEXt", b"tIME"))
_MOST_TEXT = 1 << 20  # bytes: Pillow refuses 64 of this
#: Keywords of text chunks that surely hold no EXIF.
_PNG_TOPICS = frozenset(
    topic.encode()
    for topic in (
        *("Software", "Title", "Author", "Description", "Copyright", "Creation Time", "Comment", "Source"),
        *("Disclaimer", "Warning", "date:create", "date:modify", "date:timestamp"),
    )
)


def plain_image(file: Bytes, offset: int, size: int) -> Media | None:
    """Return the image in this range of a file; None: ask Pillow."""
    for most in _HEADS:
        found = _plain(file, offset, size, file.read(offset, min(size, most)))
        if found is not None or size <= most:
            return found
    return None


def _plain(file: Bytes, offset: int, size: int, head: bytes) -> Media | None:
    if head.startswith(b"\xff\xd8\xff"):
        found, extension = _jpeg(head), "jpg"
        end = min(size, _END)
        if found and not file.read(offset + size - end, end).endswith(b"\xff\xd9"):
            return None
    elif head.startswith(_PNG_BEGIN):
        found, extension = _png(Range(file, offset, size), head), "png"
    elif head.startswith(b"RIFF") and head[8:15] == b"WEBPVP8":
        found, extension = _webp(head, size), "webp"
    else:
        return None
    if found is None or not all(found) or found[0] * found[1] > (Image.MAX_IMAGE_PIXELS or 0):
        return None
    is_deep = extension == "png" and head[24:26] == _PNG_DEEP
    return Media("image", *found, extension, mode="I;16" if is_deep else "")


def _jpeg(head: bytes) -> tuple[int, int] | None:
    found = None
    position, end = 2, len(head) - 4
    while position <= end and head[position] == 0xFF:
        marker, start = head[position + 1], position + 4
        length = head[position + 2] << 8 | head[position + 3]
        position += 2 + length
        if position > len(head):
            return None
        if marker in _JPEG_PASSED:
            if length < _JPEG_PASSED[marker]:
                return None
        elif marker == _JPEG_QUANTIZATION:
            while start < position:
                start += 65 if head[start] < 16 else 129
            if start != position:
                return None
        elif marker in _JPEG_FRAMES:
            layers = head[start + 5] if length > 7 else 0
            if found or layers not in (1, 3, 4) or length != 8 + 3 * layers or head[start] != 8:
                return None
            found = _int(head[start + 3 : start + 5], "big"), _int(head[start + 1 : start + 3], "big")
        elif marker == _JPEG_PROFILE:
            if length < 16 or head[start : start + 12] != b"ICC_PROFILE\0":
                return None
        else:
            return found if marker == _JPEG_SCAN and length > 1 else None
    return None


def _png(data: Bytes, head: bytes) -> tuple[int, int] | None:
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
        elif kind in _PNG_TURNS or (kind == b"tEXt" and not is_about_else(data.read(chunk + 8, 80), length)):
            return None
        elif not has_pixels:  # Pillow reads and checks the chunks before the pixels
            if kind not in _PNG_PASSED or position > len(head) or length != _PNG_LENGTHS.get(kind, length):
                return None
            if kind == b"tRNS" and length < {0: 2, 2: 6}.get(color, 0):
                return None
            if crc32(head[chunk + 4 : position - 4]) != _int(head[position - 4 : position], "big"):
                return None
        elif kind == b"IEND" and position == size:
            return _int(head[16:20], "big"), _int(head[20:24], "big")
        elif kind not in _PNG_BEHIND:  # Pillow reads it with the pixels, and may fail there
            return None
    return None


def is_about_else(text: bytes, length: int) -> bool:
    """Tell whether a text chunk of a PNG that begins so surely says nothing of its orientation, and can be read."""
    topic, zero, _ = text[:length].partition(b"\0")
    return bool(zero) and topic in _PNG_TOPICS and length < _MOST_TEXT


def _webp(head: bytes, size: int) -> tuple[int, int] | None:
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
