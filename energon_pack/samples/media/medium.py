"""The base class of kinds of media: a kind is one class, and the rest of the package asks the class.

`kinds` holds ours, and lists all. Another kind is a subclass there, or in a package of its own: see CONTRIBUTING.md.
This module is light: it decodes nothing and imports no decoder.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple

if TYPE_CHECKING:
    import numpy as np

#: the keys of a record that give one medium its settings, as qwen_vl_utils names them
PIXEL_KEYS = ("min_pixels", "max_pixels", "resized_height", "resized_width", "total_pixels")
NUMBER_OF_FRAMES_KEYS = ("fps", "nframes", "min_frames", "max_frames")
RANGE_KEYS = ("video_start", "video_end")
RATE_KEYS = ("sample_fps", "raw_fps")
#: the key of a number n: the n images from this one on are the frames of one video
FRAMES_KEY = "list_of_frames"
#: keys that may apply to all media of a sample, and keys of a content part
SHARED_KEYS = (*PIXEL_KEYS, *NUMBER_OF_FRAMES_KEYS, *RANGE_KEYS, *RATE_KEYS)
SETTING_KEYS = (*SHARED_KEYS, FRAMES_KEY)


@dataclass(frozen=True)
class MediumSettings:
    """Settings that a sample gives one medium, for resizing and choosing frames; None: the sample does not set it."""

    #: pixels in an image or a frame
    min_pixels: float | None = None
    max_pixels: float | None = None
    #: height and width in pixels before rounding to whole tokens; both are set or none
    resized_height: float | None = None
    resized_width: float | None = None
    #: pixels in all frames together
    total_pixels: float | None = None
    #: frames to take from each second; for a list of frames: its frames a second
    fps: float | None = None
    nframes: float | None = None
    min_frames: float | None = None
    max_frames: float | None = None
    #: seconds
    video_start: float | None = None
    video_end: float | None = None
    #: for a list of frames: its frames a second, and the frames a second of the video they were taken from
    sample_fps: float | None = None
    raw_fps: float | None = None
    list_of_frames: int | None = None

    @property
    def given_size_settings(self) -> list[str]:
        """The names of the settings that are set and change the size of pictures."""
        return [key for key in PIXEL_KEYS if getattr(self, key) is not None]

    @property
    def sets_num_frames(self) -> bool:
        """Whether settings are set that decide how many frames of a video are taken."""
        return any(getattr(self, key) is not None for key in NUMBER_OF_FRAMES_KEYS)

    @property
    def sets_start_or_end(self) -> bool:
        """Whether only a part of the video is taken: its start or its end is set."""
        return self.video_start is not None or self.video_end is not None


class MediaFormat(NamedTuple):
    """A file format of images, or a container format of videos or sounds."""

    kind: str  # of `kinds.KINDS`
    extension: str  # the usual extension, without a dot
    magic: re.Pattern[bytes]  # matches the first 16 bytes of a file
    also: tuple[str, ...] = ()  # other extensions
    #: checks that a video ends where its first bytes say; None: FFmpeg itself notices a cut file
    is_whole: Callable[[BinaryIO], bool] | None = None


#: video format → the format of sounds that begin with the same bytes: only the streams tell the two apart
SOUND_EXTENSION_OF = {"mp4": "m4a", "mkv": "mka"}


def first_bytes_pattern(pattern: bytes) -> re.Pattern[bytes]:
    """Compile a pattern of a format's first bytes, for `MediaFormat.magic`; `.` matches any byte."""
    return re.compile(pattern, re.DOTALL)


def mp4_boxes(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, offset and end in bytes of each outermost box of an mp4; an invalid box ends where it begins."""
    end, position = file.seek(0, os.SEEK_END), 0
    while position + 8 <= end:
        file.seek(position)
        head = file.read(16)
        size = int.from_bytes(head[:4], "big")  # 0: up to the end of the file; 1: eight bytes have it
        size = int.from_bytes(head[8:16], "big") if size == 1 else size or end - position
        size = 0 if size < 8 else size
        yield head[4:8], position, position + size
        position += size or end


@dataclass(frozen=True)
class Media:
    """One medium of a sample: what its number of tokens depends on, read from its header and the sample."""

    kind: str  # of `kinds.KINDS`
    width: int = 0  # pixels, upright; 0 for a sound
    height: int = 0
    extension: str = ""  # the extension of the content, without a dot
    num_frames: int = 0  # of a video
    fps: float = 0.0
    frames: tuple[int, ...] = ()  # indices that the sample lists for its video; empty: the model chooses
    settings: MediumSettings | None = None  # settings that the sample gives it; None: none
    num_samples: int = 0  # in each channel, of a sound or of the sound of a video that is heard
    rate: int = 0  # samples of a sound in a second
    is_turned: bool = False  # whether EXIF turns an image on its side
    mode: str = ""  # of an image with more than 8 bits a channel, as Pillow names it

    @property
    def seconds(self) -> float:
        """The length of a sound in seconds; 0: there is none."""
        return self.num_samples / self.rate if self.rate else 0.0

    @property
    def is_list(self) -> bool:
        """Whether the medium is a video whose frames are listed as files."""
        return self.settings is not None and self.settings.sample_fps is not None

    @property
    def is_heard(self) -> bool:
        """Whether the medium is a video whose sound the model gets, too."""
        return self.kind == "video" and self.num_samples > 0

    @property
    def is_seen(self) -> bool:
        """Whether the medium is an image or a silent video; members of a pack may share such media."""
        return self.kind in ("image", "video") and not self.num_samples


class Medium(ABC):
    """One kind of media, such as images: its names, its file formats, and how it is read, decoded and shown."""

    #: its name everywhere: `Media.kind`, `<image>`, the type of a content part
    kind: ClassVar[str]
    #: its name with an article, in messages
    noun: ClassVar[str]
    #: its number in `mm_token_type_ids`; text is 0
    token_type: ClassVar[int]
    #: its formats: extensions, and first bytes of files
    formats: ClassVar[tuple[MediaFormat, ...]]
    #: the argument of a processor's call that takes it; `…_kwargs` takes its settings
    argument: ClassVar[str]
    #: the attribute of a processor that holds its part for this kind (`image_processor`), or several names for it
    parts: ClassVar[tuple[str, ...]]
    #: an ordinary one, with which a processor is asked for its tokens
    example: ClassVar[Media]
    #: names for it in content parts, beside its own and `…_url`
    other_part_types: ClassVar[tuple[str, ...]] = ()
    #: whether the tokens with its features are visual tokens, which `packing.max_visual_tokens` limits
    is_visual: ClassVar[bool] = False
    #: the fields of `Media` that its length depends on
    fields: ClassVar[tuple[str, ...]]
    #: raise it when the same file gets another size: lengths are then measured anew
    version: ClassVar[int] = 1
    #: models that take it, for the error of one that does not
    models: ClassVar[tuple[str, ...]] = ()
    #: whether a view has a small picture of it
    has_picture: ClassVar[bool] = False
    #: its colour in a terminal
    colour: ClassVar[str] = "bright_cyan"

    @property
    def plural(self) -> str:
        """The name of a record's field that lists media of this kind: `images`."""
        return f"{self.kind}s"

    @property
    def nouns(self) -> str:
        """The plural of `noun` without an article, for messages."""
        return f"{self.noun.split(maxsplit=1)[1]}s"

    @property
    def letter(self) -> str:
        """The letter of this kind in the part names of packs: the i of `s003.i00.jpg`."""
        return self.kind[0]

    @property
    def placeholder(self) -> str:
        """The text that stands for one medium of this kind in messages: `<image>`."""
        return f"<{self.kind}>"

    @property
    def keys(self) -> tuple[str, str]:
        """The names of a record's fields that may list media of this kind: `images`, `image`."""
        return self.plural, self.kind

    @property
    def part_types(self) -> tuple[str, ...]:
        """The types of content parts that stand for one medium of this kind: `image`, `image_url`."""
        return self.kind, f"{self.kind}_url", *self.other_part_types

    @property
    def column(self) -> str:
        """The name of the column with a sample's number of media of this kind: `num_images`."""
        return f"num_{self.plural}"

    # files and parts of packs

    @abstractmethod
    def probe(self, file: BinaryIO, container: MediaFormat) -> Media:
        """Read from a file everything that lengths depend on, from its header if that is enough.

        Args:
            container: the file's format by its first bytes.

        Raises:
            Exception: the file can't be read; the sample is then left out as `unreadable_media`.
        """

    def defect(self, data: bytes, medium: Media) -> str:
        """Decode a whole file and return what is wrong with it; empty: nothing. `verify` itself decodes videos.

        Raises:
            Exception: the decoder's own.
        """
        raise NotImplementedError(self.kind)

    def loaded(self, value: Any, name: str) -> Any:
        """Return a part of a pack as training gets it: the bytes of the file, or what Energon's decoder made of them.

        Args:
            value: the bytes or the decoded medium; None: the part is missing.
            name: the part's name, for errors.
        """
        return b"" if value is None else value

    # messages and views

    @abstractmethod
    def said(self, medium: Media) -> str:
        """Describe a medium for messages: `an image of 640×480`."""

    @abstractmethod
    def size(self, medium: Media) -> str:
        """Return the size of a medium as text: `640×480`, or the seconds of a sound."""

    # processors

    def is_part(self, part: Any) -> bool:
        """Tell whether an object at one of the attributes `parts` of a processor takes media of this kind."""
        return True

    @abstractmethod
    def blank(self, medium: Media) -> Any:
        """Return an empty stand-in as large as a medium, such as a black image, for a call that only counts tokens."""

    @abstractmethod
    def drawn(self, rng: "np.random.Generator") -> Media:
        """Return a medium of a random size, without content."""

    @abstractmethod
    def noise(self, medium: Media, rng: "np.random.Generator") -> Any:
        """Return random content of the size of `medium`, in the form in which this kind is decoded."""

    def prepared(self, medium: Media, rate: int) -> Media:
        """Return a medium with the size that `decoded` gives it at `rate` samples a second; not for images, videos."""
        return medium

    def decoded(self, data: bytes, medium: Media, rate: int) -> Any:
        """Decode a medium for a processor's call; not called for images and videos.

        Args:
            data: the bytes of the medium's file.
            rate: samples a second that the processor takes; 0: it takes no sounds.

        Raises:
            ValueError, OSError: the medium can't be decoded.
        """
        raise NotImplementedError(self.kind)
