"""Images from their bytes: size by header alone for measuring, upright pixels for training.

Both follow one rule, that of transformers' `load_image`: EXIF orientation is applied, then RGB.
"""

import io
import os
import warnings
from dataclasses import dataclass
from typing import BinaryIO

from PIL import Image, ImageOps, UnidentifiedImageError

from energon_pack.sample import Reason, Skip

# Pillow warns of odd EXIF and of large images; what it cannot open is in the ledger, the rest is fine.
warnings.filterwarnings("ignore", module="PIL")

_ORIENTATION = 0x0112  # EXIF tag; 5..8 turn the image on its side
_PNG_ORIENTATION_CHUNKS = frozenset((b"eXIf", b"tEXt", b"zTXt", b"iTXt"))
#: Formats whose `size` Pillow gives before orientation; others (TIFF) it turns itself, at one point or another.
_SIZE_AS_STORED = frozenset(("JPEG", "MPO", "PNG", "WEBP"))
_EXTENSIONS = {"JPEG": "jpg", "MPO": "jpg", "TIFF": "tif"}
_VIDEO_MAGIC = {b"ftyp": (4, "mp4"), b"AVI ": (8, "avi"), b"\x1a\x45\xdf\xa3": (0, "mkv")}


@dataclass(frozen=True)
class Media:
    """One medium of a sample as the model's size rule sees it."""

    kind: str  # image | video
    width: int = 0  # pixels, upright
    height: int = 0
    extension: str = ""  # of the content, without a dot


class PartFile(io.RawIOBase):
    """A member of an open tar as a file of its own; `os.pread` only, so the descriptor can be shared."""

    def __init__(self, fd: int, offset: int, size: int):
        self._fd, self._offset, self._size, self._position = fd, offset, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        wanted = max(0, min(len(buffer), self._size - self._position))
        data = os.pread(self._fd, wanted, self._offset + self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def open_part(fd: int, offset: int, size: int) -> BinaryIO:
    """A buffered, seekable view of `size` bytes at `offset`; reads about as much as the caller looks at."""
    return io.BufferedReader(PartFile(fd, offset, size), 4096)


def probe(file: BinaryIO) -> Media:
    """Kind and upright size of an image or a video file from its first bytes; content decides, not the name.

    A cut image is found by its missing end mark, and only then decoded to be sure.

    Raises:
        Skip: `unreadable_media`.
    """
    try:
        with Image.open(file) as image:
            chunks = _png_chunks(file) if image.format == "PNG" else None
            if not _is_whole(image, file, chunks):
                image.load()
            width, height = image.size
            orientation = _orientation(image, chunks)
            if orientation != 1 and image.format not in _SIZE_AS_STORED:
                width, height = ImageOps.exif_transpose(image).size
            elif orientation >= 5:
                width, height = height, width
            extension = _EXTENSIONS.get(image.format or "", (image.format or "").lower())
    except UnidentifiedImageError:
        file.seek(0)
        head = file.read(16)
        for magic, (at, extension) in _VIDEO_MAGIC.items():
            if head[at : at + len(magic)] == magic:
                return Media("video", extension=extension)
        raise Skip(Reason.UNREADABLE_MEDIA, f"no known image or video; begins with {head[:8]!r}") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise Skip(Reason.UNREADABLE_MEDIA, f"not a readable image: {error}") from None
    return Media("image", width, height, extension)


def open_image(data: bytes) -> Image.Image:
    """An upright image; its pixels are decoded when first used, unless it has to be turned."""
    file = io.BytesIO(data)
    image: Image.Image = Image.open(file)
    if _orientation(image, _png_chunks(file) if image.format == "PNG" else None) != 1:
        return ImageOps.exif_transpose(image)
    return image


def _is_whole(image: Image.Image, file: BinaryIO, chunks: set[bytes] | None) -> bool:
    """Whether the end of the file looks like the end of an image; formats without an end mark pass."""
    if chunks is not None:
        return b"IEND" in chunks
    if image.format in ("JPEG", "MPO"):
        file.seek(-2, os.SEEK_END)
        return file.read(2) == b"\xff\xd9"
    if image.format == "WEBP":
        file.seek(4)
        claimed = int.from_bytes(file.read(4), "little") + 8
        return file.seek(0, os.SEEK_END) >= claimed
    return True


def _orientation(image: Image.Image, chunks: set[bytes] | None) -> int:
    """EXIF orientation, 1..8, as `ImageOps.exif_transpose` reads it.

    Pillow decodes a whole PNG before it answers, because EXIF may follow the pixels: ask its chunk names first.
    """
    if chunks is not None and not chunks & _PNG_ORIENTATION_CHUNKS:
        return 1
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except (
        OSError,
        SyntaxError,
        ValueError,
        KeyError,
        EOFError,
    ):  # damaged EXIF: Pillow would not turn it either
        return 1
    return value if value in range(1, 9) else 1


def _png_chunks(file: BinaryIO) -> set[bytes]:
    """Names of a PNG's whole chunks; leaves the file where it was."""
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
