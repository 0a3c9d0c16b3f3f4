"""Images, videos and sounds, and tables of all kinds of media: their names in records, packs, tokens and calls.

An installed package adds a kind with an entry point of `energon_pack.kinds` that names a subclass of `Medium`.
"""

import math
import os
import re
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, BinaryIO

from energon_pack.errors import PackError, one_line
from energon_pack.samples.media.medium import Media, MediaFormat, Medium, first_bytes_pattern, mp4_boxes

if TYPE_CHECKING:
    import numpy as np

_RANDOM_SIDES = (32, 1500)  # pixels of random images
_MAX_ASPECT = 9


class Image(Medium):
    """Images as a kind of media; sizes are those after the EXIF orientation is applied."""

    kind, noun, token_type = "image", "an image", 1
    models = ("qwen3_vl", "internvl3_5", "gemma3", "llava_onevision")
    argument, parts = "images", ("image_processor",)
    is_visual = True
    fields = ("width", "height")
    has_picture, colour = True, "yellow"
    formats = (
        MediaFormat("image", "jpg", first_bytes_pattern(rb"\xff\xd8\xff"), also=("jpeg",)),
        MediaFormat("image", "png", first_bytes_pattern(rb"\x89PNG\r\n\x1a\n")),
        MediaFormat("image", "gif", first_bytes_pattern(rb"GIF8[79]a")),
        MediaFormat("image", "webp", first_bytes_pattern(rb"RIFF....WEBP")),
        MediaFormat("image", "bmp", first_bytes_pattern(rb"BM")),
        MediaFormat("image", "tif", first_bytes_pattern(rb"II\*\0|MM\0\*|II\+\0|MM\0\+"), also=("tiff",)),
        MediaFormat("image", "avif", first_bytes_pattern(rb"....ftyp(avi[fs]|mif1|msf1)")),
    )
    example = Media("image", 640, 480)

    def probe(self, file: BinaryIO, container: MediaFormat | None = None) -> Media:
        """Return the size of an image in any format that Pillow knows; raises UnidentifiedImageError if it is none."""
        from energon_pack.samples.media.image_probe import probe_image

        return probe_image(file)

    def defect(self, data: bytes, medium: Media) -> str:
        from energon_pack.samples.media.image import decode_image

        decode_image(data)
        return ""

    def loaded(self, value: Any, name: str) -> Any:
        """Return an image that is decoded, upright and RGB, when it is used; `value`: bytes, or an image of Pillow.

        Any other value is returned unchanged.
        """
        from PIL import Image as Pillow

        from energon_pack.samples.media.lazy_image import LazyImage

        is_raw = value is None or (isinstance(value, (bytes, Pillow.Image)) and not isinstance(value, LazyImage))
        return LazyImage(value, name) if is_raw else value

    def said(self, medium: Media) -> str:
        return f"an image of {self.size(medium)}"

    def size(self, medium: Media) -> str:
        return f"{medium.width}×{medium.height}"

    def blank(self, medium: Media) -> Any:
        from PIL import Image

        return Image.new("RGB", (medium.width, medium.height))

    def drawn(self, rng: "np.random.Generator") -> Media:
        return Media(self.kind, *_random_size(rng, *_RANDOM_SIDES))

    def noise(self, medium: Media, rng: "np.random.Generator") -> Any:
        import numpy as np
        from PIL import Image

        return Image.fromarray(rng.integers(0, 256, (medium.height, medium.width, 3), np.uint8))


def _random_size(rng: "np.random.Generator", least: int, most: int) -> tuple[int, int]:
    """Draw a random width and height, in pixels from `least` to `most`."""
    width = round(math.exp(rng.uniform(math.log(least), math.log(most))))
    aspect = math.exp(rng.uniform(-math.log(_MAX_ASPECT), math.log(_MAX_ASPECT)))
    return width, min(max(round(width * aspect), least), most)


_RANDOM_VIDEO_SIDES = (48, 320)  # pixels of random videos
_RANDOM_NUM_FRAMES = (8, 60)
_RANDOM_FPS = (2.0, 10.0, 24.0, 25.0, 30.0)  # frames a second
#: AVIF, HEIF, M4A are other kinds; old QuickTime begins with any box, and no text with a zero, as sizes of small ones
_MP4 = rb"....ftyp(?!avi|hei|hev|mif|msf|M4[AB])|\0...(?:wide|free|skip|pnot)|....(?:mdat|moov)"


def _has_whole_boxes(file: BinaryIO) -> bool:
    """Tell whether the outermost boxes of an mp4 end with the file; FFmpeg opens a cut mp4, and reports all frames."""
    end_of = {name: end for name, _, end in mp4_boxes(file)}
    num_behind = file.seek(0, os.SEEK_END) - max(end_of.values(), default=0)
    has_all = b"mdat" in end_of and b"moof" not in end_of  # then so few bytes as no box has are no cut
    return num_behind == 0 or (has_all and 0 < num_behind < 8)


def _has_whole_riff(file: BinaryIO) -> bool:
    """Tell whether the RIFF chunk of an AVI ends within the file."""
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(8)
    return head[:4] != b"RIFF" or 8 + int.from_bytes(head[4:], "little") <= end


class Video(Medium):
    """Videos as a kind of media; a video may also be heard."""

    kind, noun, token_type = "video", "a video", 2
    models = ("qwen3_vl", "qwen2_5_vl", "internvl3_5", "llava_onevision")
    argument, parts = "videos", ("video_processor",)
    is_visual = True
    fields = ("width", "height", "num_frames", "fps", "frames")
    has_picture, colour = True, "green"
    formats = (
        MediaFormat("video", "mp4", first_bytes_pattern(_MP4), also=("mov", "m4v", "3gp"), is_whole=_has_whole_boxes),
        MediaFormat("video", "avi", first_bytes_pattern(rb"........AVI "), is_whole=_has_whole_riff),
        MediaFormat("video", "mkv", first_bytes_pattern(rb"\x1a\x45\xdf\xa3"), also=("webm",)),
        # it must begin with a list of its programs
        MediaFormat("video", "ts", first_bytes_pattern(rb"G@[\0\x11][\x10-\x1f]")),
        MediaFormat("video", "flv", first_bytes_pattern(rb"FLV\x01")),
        MediaFormat("video", "wmv", first_bytes_pattern(rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11"), also=("asf",)),
        MediaFormat("video", "mpg", first_bytes_pattern(rb"\0\0\x01\xba"), also=("mpeg",)),
    )
    example = Media("video", 320, 240, "mp4", 30, 10.0)

    def probe(self, file: BinaryIO, container: MediaFormat) -> Media:
        """Return the video's size, frames and rate; or a sound, if the container has no pictures."""
        from energon_pack.samples.media.stream_probe import probe_video_or_sound

        return probe_video_or_sound(file, container)

    def said(self, medium: Media) -> str:
        seen = f"a video of {medium.num_frames} frames of {self.size(medium)} at {medium.fps:g} a second"
        if not medium.is_heard:
            return seen
        return f"{seen} with a sound of {medium.num_samples:,} samples at {medium.rate:,} a second"

    def size(self, medium: Media) -> str:
        return f"{medium.width}×{medium.height}"

    def blank(self, medium: Media) -> Any:
        import numpy as np

        return np.zeros((medium.num_frames, medium.height, medium.width, 3), np.uint8)

    def drawn(self, rng: "np.random.Generator", num_frames: tuple[int, int] = _RANDOM_NUM_FRAMES) -> Media:
        size = _random_size(rng, *_RANDOM_VIDEO_SIDES)
        return Media(self.kind, *size, "mp4", int(rng.integers(*num_frames)), float(rng.choice(_RANDOM_FPS)))

    def noise(self, medium: Media, rng: "np.random.Generator") -> Any:
        """Return random frames: uint8 [num_frames, height, width, 3]."""
        import numpy as np

        return rng.integers(0, 256, (medium.num_frames, medium.height, medium.width, 3), np.uint8)


_RANDOM_SECONDS = (0.03, 45)  # of random sounds: shorter than some features, and longer than most models hear at once
_RATE = 16_000


class Sound(Medium):
    """Sounds as a kind of media; the model gets the mean of the channels at the processor's rate."""

    kind, noun, token_type = "audio", "a sound", 3
    models = ("qwen2_5_omni", "qwen3_omni", "gemma3n", "gemma4", "qwen2_audio", "audio_flamingo3", "glm_asr")
    argument, parts = "audio", ("audio_processor", "feature_extractor")
    other_part_types = ("input_audio",)  # OpenAI's
    colour = "cyan"
    fields = ("num_samples", "rate")
    formats = (
        MediaFormat("audio", "wav", first_bytes_pattern(rb"(RIFF|RF64)....WAVE")),
        MediaFormat("audio", "flac", first_bytes_pattern(rb"fLaC")),
        MediaFormat("audio", "ogg", first_bytes_pattern(rb"OggS"), also=("oga", "opus")),
        MediaFormat("audio", "mp3", first_bytes_pattern(rb"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]")),
        MediaFormat("audio", "aac", first_bytes_pattern(rb"\xff[\xf0\xf1\xf8\xf9]")),
        MediaFormat("audio", "aiff", first_bytes_pattern(rb"FORM....AIF[FC]"), also=("aif", "aifc")),
        MediaFormat("audio", "m4a", first_bytes_pattern(rb"....ftypM4[AB]"), also=("m4b",), is_whole=_has_whole_boxes),
        MediaFormat("audio", "mka", first_bytes_pattern(rb"\x1a\x45\xdf\xa3"), also=("weba",)),
    )
    example = Media("audio", num_samples=48_000, rate=_RATE)

    def probe(self, file: BinaryIO, container: MediaFormat) -> Media:
        from energon_pack.samples.media.stream_probe import probe_sound_length

        num_samples, rate = probe_sound_length(file, container)
        return Media(self.kind, extension=container.extension, num_samples=num_samples, rate=rate)

    def defect(self, data: bytes, medium: Media) -> str:
        from energon_pack.samples.media.streams import decode_audio

        number = len(decode_audio(data, medium.rate))
        return "" if number == medium.num_samples else f"{number} samples decode, its header says {medium.num_samples}"

    def said(self, medium: Media) -> str:
        return f"a sound of {medium.num_samples:,} samples at {medium.rate:,} a second"

    def size(self, medium: Media) -> str:
        return f"{medium.seconds:.1f} s"

    def is_part(self, part: Any) -> bool:
        return isinstance(getattr(part, "sampling_rate", None), int)

    def blank(self, medium: Media) -> Any:
        import numpy as np

        return np.zeros(medium.num_samples, np.float32)

    def drawn(self, rng: "np.random.Generator") -> Media:
        seconds = math.exp(rng.uniform(math.log(_RANDOM_SECONDS[0]), math.log(_RANDOM_SECONDS[1])))
        return Media(self.kind, num_samples=round(seconds * _RATE), rate=_RATE)

    def noise(self, medium: Media, rng: "np.random.Generator") -> Any:
        """Return random samples: float32 [num_samples]."""
        import numpy as np

        return rng.uniform(-0.5, 0.5, medium.num_samples).astype(np.float32)

    def prepared(self, medium: Media, rate: int) -> Media:
        from energon_pack.samples.media.streams import resampled_length

        rate = rate or medium.rate
        return Media(self.kind, num_samples=resampled_length(medium.num_samples, medium.rate, rate), rate=rate)

    def decoded(self, data: bytes, medium: Media, rate: int) -> Any:
        """Decode a sound, or the sound of a video, at the processor's rate: float32 [num_samples]."""
        from energon_pack.samples.media.streams import UndecodableError, decode_audio

        samples, expected = decode_audio(data, rate), self.prepared(medium, rate).num_samples
        if len(samples) != expected:
            raise UndecodableError(f"a sound has {len(samples)} samples, and {expected} by its header: it is damaged")
        return samples


IMAGE, VIDEO, AUDIO = Image(), Video(), Sound()
_BUILTIN_KINDS: tuple[Medium, ...] = (IMAGE, VIDEO, AUDIO)
_KIND_NAME_PATTERN = re.compile("[a-z][a-z0-9]*")
_RESERVED_TYPES = ("text", "mix")  # what a sample may be beside a kind


def _with_added(points: Iterable[EntryPoint]) -> dict[str, Medium]:
    """Return our kinds, and those that installed packages add, in the order of their names."""
    kinds = {medium.kind: medium for medium in _BUILTIN_KINDS}
    for point in sorted(points, key=lambda point: point.name):
        try:
            medium = point.load()()
            why_not = _defect_of_kind(medium, kinds.values())
        except Exception as error:  # foreign code may fail in any way
            why_not = one_line(error)
        if why_not:
            raise PackError(f"a kind of media that a package adds ({point.name} = {point.value}): {why_not}")
        kinds[medium.kind] = medium
    return kinds


def _defect_of_kind(medium: Any, kinds: Iterable[Medium]) -> str:
    """Say why a kind can't join others; empty: it can."""
    if not isinstance(medium, Medium):
        return f"{type(medium).__name__} is no energon_pack.Medium"
    if not _KIND_NAME_PATTERN.fullmatch(medium.kind) or medium.kind in _RESERVED_TYPES:
        return f"kind = {medium.kind!r}: lower-case letters and digits, not {' or '.join(_RESERVED_TYPES)}"
    if " " not in medium.noun or not medium.formats or not medium.fields or not medium.parts:
        return "noun is a noun with its article, and formats, fields and parts are not empty"
    if medium.token_type <= AUDIO.token_type:
        return f"token_type = {medium.token_type}: a number above {AUDIO.token_type}"
    for attribute in ("kind", "letter", "token_type", "argument"):
        if other := next((each for each in kinds if getattr(each, attribute) == getattr(medium, attribute)), None):
            return f"{attribute} = {getattr(medium, attribute)!r} is {other.noun}'s"
    taken = {name for each in kinds for form in each.formats for name in (form.extension, *form.also)}
    if used := next((form.extension for form in medium.formats if {form.extension, *form.also} & taken), None):
        return f"the extension {used} is another kind's"
    return "" if medium.example.kind == medium.kind else f"example is {medium.example!r}"


#: all kinds by name, in the order of every list of kinds
KINDS = _with_added(entry_points(group="energon_pack.kinds"))
#: names and versions of the kinds that packages add; caches and fingerprints hold them
ADDED_KINDS = tuple((kind, medium.version) for kind, medium in KINDS.items() if medium not in _BUILTIN_KINDS)
#: what a sample may be by its media, `mix` with several kinds; reports and plans know them by their places here
MEDIA_TYPES = ("text", IMAGE.kind, VIDEO.kind, "mix", *[*KINDS][2:])
#: type of a content part → the kind of the medium that it stands for
PART_TYPES = {name: medium.kind for medium in KINDS.values() for name in medium.part_types}
KIND_BY_LETTER = {medium.letter: medium.kind for medium in KINDS.values()}
#: key of a record that names its media → their kind
KIND_OF_MEDIA_KEY = {key: medium.kind for medium in KINDS.values() for key in medium.keys}
MEDIA_KEYS = tuple(KIND_OF_MEDIA_KEY)


def describe(medium: Media) -> str:
    """Describe a medium for messages: `an image of 640×480`."""
    return KINDS[medium.kind].said(medium)


FORMATS: tuple[MediaFormat, ...] = tuple(format for medium in KINDS.values() for format in medium.formats)
#: extensions of images, by their content
IMAGE_EXTENSIONS = frozenset(format.extension for format in IMAGE.formats)
_KIND_OF_EXTENSION = {name: format.kind for format in FORMATS for name in (format.extension, *format.also)}
#: extensions that mark a file as a medium
MEDIA_EXTENSIONS = tuple(_KIND_OF_EXTENSION)
#: extensions that mark a file as a video
VIDEO_EXTENSIONS = tuple(name for name, kind in _KIND_OF_EXTENSION.items() if kind == VIDEO.kind)


def find_media_format(first_bytes: bytes) -> MediaFormat | None:
    """Return the format of a file that begins with these 16 bytes; None: unknown."""
    return next((format for format in FORMATS if format.magic.match(first_bytes)), None)


def media_kind_by_extension(file_name: str) -> str | None:
    """Return the kind of medium by the extension of a name; None: it is no medium."""
    return _KIND_OF_EXTENSION.get(file_name.rpartition(".")[2].lower())
