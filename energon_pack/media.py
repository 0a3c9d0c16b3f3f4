"""Media from their bytes: what they are and their size by header alone for measuring, pixels for training.

Both follow one rule, that of transformers' `load_image`: EXIF orientation is applied, then RGB.
"""

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from PIL import Image, UnidentifiedImageError

from energon_pack.headers import plain_image
from energon_pack.sample import Part, Reason, Skip
from energon_pack.samples.bytes import Bytes, Range, as_file
from energon_pack.video import probe_video

_ORIENTATION = 0x0112  # EXIF tag; 5..8 turn the image on its side
_PNG_ORIENTATION_CHUNKS = frozenset((b"eXIf", b"tEXt", b"zTXt", b"iTXt"))
#: EXIF orientation → what turns the stored picture upright
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_EXTENSIONS = {"JPEG": "jpg", "MPO": "jpg", "TIFF": "tif"}
_IMAGE_BRANDS = (b"avi", b"hei", b"hev", b"mif", b"msf")  # AVIF and HEIF: images in the container of mp4
_VIDEO_MAGIC = {b"ftyp": (4, "mp4"), b"AVI ": (8, "avi"), b"\x1a\x45\xdf\xa3": (0, "mkv")}


@dataclass(frozen=True)
class Media:
    """One medium of a sample as the model's size rule sees it."""

    kind: str  # image | video
    width: int = 0  # pixels, upright
    height: int = 0
    extension: str = ""  # of the content, without a dot
    num_frames: int = 0  # of a video
    fps: float = 0.0
    frames: tuple[int, ...] = ()  # those a sample lists for its video; none: the model's own choice


def probe_part(file: Bytes, part: Part) -> Media:
    """As `probe`, of a part of a file; names it where it can't be read."""
    plain = plain_image(file, part.offset, part.size)
    if plain is not None:
        return Media("image", *plain)
    try:
        return probe(as_file(Range(file, part.offset, part.size)))
    except Skip as skip:
        raise Skip(skip.reason, f"{part.name}: {skip.detail}") from None


def probe(file: BinaryIO) -> Media:
    """Kind and upright size of an image or a video file from its first bytes; content decides, not the name.

    A cut image is found by its missing end mark, and only then decoded to be sure; formats without one (GIF, BMP, TIFF,
    AVIF …) are always decoded.

    Raises:
        Skip: `unreadable_media`.
    """
    try:
        with Image.open(file) as image:
            chunks = _png_chunks(file) if image.format == "PNG" else None
            if not _is_whole(image, file, chunks):
                image.load()
            width, height = image.size
            if _orientation(image, chunks) >= 5:
                width, height = height, width
            extension = _EXTENSIONS.get(image.format or "", (image.format or "").lower())
    except UnidentifiedImageError:
        file.seek(0)
        head = file.read(16)
        video = video_extension(head)
        if video is None:
            raise Skip(Reason.UNREADABLE_MEDIA, f"no known image or video; begins with {head[:8]!r}") from None
        width, height, num_frames, fps = probe_video(file)
        return Media("video", width, height, video, num_frames, fps)
    except Exception as error:  # damaged bytes make Pillow's plugins raise anything, and each costs only its sample
        raise Skip(Reason.UNREADABLE_MEDIA, f"not a readable image: {str(error) or type(error).__name__}") from None
    if not (width and height):
        raise Skip(Reason.UNREADABLE_MEDIA, f"an image of {width}×{height} pixels")
    return Media("image", width, height, extension)


def with_frames(media: Sequence[Media], listed: Any) -> list[Media]:
    """The media of a sample, its videos with the frames it lists for them.

    Args:
        listed: the field `video_frames` of the sample: for each video the indices of its frames, ascending, or null.

    Raises:
        Skip: `bad_message` for another form, `unreadable_media` for a frame that a video does not have.
    """
    if listed is None:
        return list(media)
    num_videos = sum(medium.kind == "video" for medium in media)
    if not isinstance(listed, list) or len(listed) != num_videos:
        raise Skip(Reason.BAD_MESSAGE, f"video_frames is no list of {num_videos} lists of frames: {str(listed)[:80]}")
    waiting = iter(listed)
    return [_with_frames(medium, next(waiting)) if medium.kind == "video" else medium for medium in media]


def _with_frames(video: Media, frames: Any) -> Media:
    if frames is None:
        return video
    if not isinstance(frames, list) or not frames or any(type(index) is not int for index in frames):
        raise Skip(Reason.BAD_MESSAGE, f"video_frames has {str(frames)[:80]} for a video, not indices of frames")
    if frames != sorted(frames) or frames[0] < 0 or frames[-1] >= video.num_frames:
        raise Skip(
            Reason.UNREADABLE_MEDIA, f"video_frames {str(frames)[:80]} are not ascending within {video.num_frames}"
        )
    return replace(video, frames=tuple(frames))


def video_extension(head: bytes) -> str | None:
    """The usual extension of a video file by its first 16 bytes; None for anything else."""
    for magic, (at, extension) in _VIDEO_MAGIC.items():
        if head[at : at + len(magic)] == magic and head[8:11] not in _IMAGE_BRANDS:
            return extension
    return None


def open_image(data: bytes) -> Image.Image:
    """A decoded image: upright, RGB."""
    image: Image.Image = Image.open(io.BytesIO(data))
    image.load()
    turn = _TURNS.get(_orientation(image))
    return (image if turn is None else image.transpose(turn)).convert("RGB")


class LazyImage(Image.Image):
    """An upright RGB image whose pixels are decoded when something first asks for them.

    Until then it is the bytes of its file, in a shuffle buffer and on its way between processes alike; then it becomes
    a plain image. A file that can't be decoded, or that is missing (`data` is None), is an `OSError` with the image's
    name, there and then.
    """

    def __init__(self, data: bytes | None, name: str):
        super().__init__()
        self._data, self._name = data, name
        self._mode = "RGB"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height by the header."""
        if self._size == (0, 0):
            with self._named(), Image.open(io.BytesIO(self._bytes())) as image:
                chunks = _png_chunks(io.BytesIO(self._bytes())) if image.format == "PNG" else None
                self._size = image.size[::-1] if _orientation(image, chunks) >= 5 else image.size
        return self._size

    def load(self) -> Any:
        with self._named():
            image = open_image(self._bytes())
        self.__class__ = Image.Image  # type: ignore[assignment]
        self.__dict__ = image.__dict__
        return self.load()

    def __reduce__(self) -> Any:
        return LazyImage, (self._data, self._name)

    def __repr__(self) -> str:
        """Reads no header: Energon prints samples that failed, damaged ones too."""
        return f"<LazyImage {self._name}>"

    def _bytes(self) -> bytes:
        if self._data is None:
            raise OSError("missing from its pack")
        return self._data

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # damaged bytes make Pillow's plugins raise anything
            raise OSError(f"{self._name}: {str(error) or type(error).__name__}") from None


def _is_whole(image: Image.Image, file: BinaryIO, chunks: set[bytes] | None) -> bool:
    """Whether the end of the file looks like the end of an image; never for formats without an end mark."""
    if chunks is not None:
        return b"IEND" in chunks
    if image.format in ("JPEG", "MPO"):
        file.seek(-2, os.SEEK_END)
        return file.read(2) == b"\xff\xd9"
    if image.format == "WEBP":
        file.seek(4)
        claimed = int.from_bytes(file.read(4), "little") + 8
        return file.seek(0, os.SEEK_END) >= claimed
    return False


def _orientation(image: Image.Image, png_chunks: set[bytes] | None = None) -> int:
    """EXIF orientation, 1..8, as Pillow's `exif_transpose` finds it.

    Pillow decodes a whole PNG before it answers, because EXIF may follow the pixels: its chunk names are asked first.
    Where the format has no end mark, the image has to be loaded: Pillow turns a TIFF itself, and then says 1.
    """
    if png_chunks is not None and not png_chunks & _PNG_ORIENTATION_CHUNKS:
        return 1
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged EXIF, of which Pillow raises anything: the picture is as it is stored
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
