"""What media are, and their size, from their headers alone."""

from dataclasses import dataclass
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from energon_pack.samples.bytes import Bytes, Range, as_file
from energon_pack.samples.media.formats import extension_of, format_of
from energon_pack.samples.media.headers import plain_image
from energon_pack.samples.media.image import is_whole, png_chunks, upright_size
from energon_pack.samples.media.settings import MediumSettings
from energon_pack.samples.media.video import probe_video
from energon_pack.samples.sample import AnyPart
from energon_pack.samples.skip import Reason, Skip


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
    settings: MediumSettings | None = None  # what the sample says of it; None: nothing


def probe_part(file: Bytes, part: AnyPart) -> Media:
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
            chunks = png_chunks(image, file)
            if not is_whole(image, file, chunks):
                image.load()
            width, height = upright_size(image, chunks)
            extension = extension_of(image.format or "")
    except UnidentifiedImageError:
        file.seek(0)
        head = file.read(16)
        video = format_of(head)
        if video is None or video.kind != "video":
            raise Skip(Reason.UNREADABLE_MEDIA, f"no known image or video; begins with {head[:8]!r}") from None
        width, height, num_frames, fps = probe_video(file)
        return Media("video", width, height, video.extension, num_frames, fps)
    except Exception as error:  # damaged bytes make Pillow's plugins raise anything, and each costs only its sample
        raise Skip(Reason.UNREADABLE_MEDIA, f"not a readable image: {str(error) or type(error).__name__}") from None
    if not (width and height):
        raise Skip(Reason.UNREADABLE_MEDIA, f"an image of {width}×{height} pixels")
    return Media("image", width, height, extension)
