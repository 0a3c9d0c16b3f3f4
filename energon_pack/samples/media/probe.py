"""Reads kind and size of media, from headers where headers tell them."""

from dataclasses import dataclass
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from energon_pack.samples.bytes import Bytes, Range, as_file
from energon_pack.samples.media.audio import probe_audio, stream_format
from energon_pack.samples.media.formats import extension_of
from energon_pack.samples.media.headers import plain_image
from energon_pack.samples.media.image import is_whole, png_chunks, upright_size
from energon_pack.samples.media.settings import MediumSettings
from energon_pack.samples.media.video import probe_video
from energon_pack.samples.sample import AnyPart
from energon_pack.samples.skip import Reason, Skip


@dataclass(frozen=True)
class Media:
    """One medium of a sample, with everything that the model's size rule needs."""

    kind: str  # of `KINDS`
    width: int = 0  # pixels, upright; 0 for a sound
    height: int = 0
    extension: str = ""  # the extension of the content, without a dot
    num_frames: int = 0  # of a video
    fps: float = 0.0
    frames: tuple[int, ...] = ()  # indices that the sample lists for its video; empty: the model chooses
    settings: MediumSettings | None = None  # settings that the sample gives it; None: none
    num_samples: int = 0  # in each channel, of a sound or of the sound of a video that is heard
    rate: int = 0  # samples of a sound in a second

    @property
    def seconds(self) -> float:
        """The length of a sound."""
        return self.num_samples / self.rate if self.rate else 0.0

    @property
    def is_heard(self) -> bool:
        """Whether it is a video whose sound is heard."""
        return self.kind == "video" and self.num_samples > 0

    def __str__(self) -> str:
        """Say what it is, for messages."""
        if self.kind == "audio":
            return self._sound
        size = f"{self.width}×{self.height}"
        if self.kind == "image":
            return f"an image of {size}"
        seen = f"a video of {self.num_frames} frames of {size} at {self.fps:g} a second"
        return f"{seen} with {self._sound}" if self.is_heard else seen

    @property
    def _sound(self) -> str:
        return f"a sound of {self.num_samples:,} samples at {self.rate:,} a second"


def probe_part(file: Bytes, part: AnyPart) -> Media:
    """Do `probe` on a part of a file; an error names the part."""
    plain = plain_image(file, part.offset, part.size)
    if plain is not None:
        return Media("image", *plain)
    try:
        return probe(as_file(Range(file, part.offset, part.size)))
    except Skip as skip:
        raise Skip(skip.reason, f"{part.name}: {skip.detail}") from None


def probe(file: BinaryIO) -> Media:
    """Read kind and size of a medium from its first bytes; the content decides, not the name.

    An image without its end mark may be cut, so it is decoded to be sure. Images of formats without an end mark (GIF,
    BMP, TIFF, AVIF …) are always decoded.

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
        container = stream_format(head, file)
        if container is None or container.kind == "image":
            raise Skip(Reason.UNREADABLE_MEDIA, f"no known image or video; begins with {head[:8]!r}") from None
        if container.kind == "audio":
            num_samples, rate = probe_audio(file, container)
            return Media("audio", extension=container.extension, num_samples=num_samples, rate=rate)
        width, height, num_frames, fps = probe_video(file)
        return Media("video", width, height, container.extension, num_frames, fps)
    except Exception as error:  # damaged bytes make Pillow's plugins raise anything, and each costs only its sample
        raise Skip(Reason.UNREADABLE_MEDIA, f"not a readable image: {str(error) or type(error).__name__}") from None
    if not (width and height):
        raise Skip(Reason.UNREADABLE_MEDIA, f"an image of {width}×{height} pixels")
    return Media("image", width, height, extension)
