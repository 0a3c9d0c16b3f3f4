"""What a record says of one of its media: its pixels, its frames, the part of a clip; in qwen_vl_utils' words. Pure.

{"type": "image", "image": "a.jpg", "max_pixels": 50176}
{"type": "video", "video": "b.mp4", "fps": 0.5, "video_start": 3, "video_end": 8.5}
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from energon_pack.samples.skip import Reason, Skip

#: by what is asked: the keys that say it
PIXEL_KEYS = ("min_pixels", "max_pixels", "resized_height", "resized_width", "total_pixels")
NUMBER_OF_FRAMES_KEYS = ("fps", "nframes", "min_frames", "max_frames")
RANGE_KEYS = ("video_start", "video_end")
RATE_KEYS = ("sample_fps", "raw_fps")
#: that so many images, from this one on, are the frames of one video
FRAMES = "list_of_frames"
#: keys that may be said of all media of a sample, and those of a content part
SHARED_KEYS = (*PIXEL_KEYS, *NUMBER_OF_FRAMES_KEYS, *RANGE_KEYS, *RATE_KEYS)
SETTING_KEYS = (*SHARED_KEYS, FRAMES)

_OF_IMAGES = PIXEL_KEYS[:4]
_OF = {
    "image": frozenset(_OF_IMAGES),
    "video": frozenset((*PIXEL_KEYS, *NUMBER_OF_FRAMES_KEYS, *RANGE_KEYS)),
    FRAMES: frozenset((*PIXEL_KEYS, *RATE_KEYS, "fps", FRAMES)),
}
#: a float holds no whole number that is much larger
_MOST = sys.float_info.max
_NAMES = {"image": "an image", "video": "a video", FRAMES: "a list of frames"}


@dataclass(frozen=True)
class MediumSettings:
    """What is said of one medium; None: nothing."""

    #: in all of an image, or of a frame
    min_pixels: float | None = None
    max_pixels: float | None = None
    #: pixels, before they are rounded to whole tokens; both or none
    resized_height: float | None = None
    resized_width: float | None = None
    #: of all frames together
    total_pixels: float | None = None
    #: frames that are taken of a second; of a list of frames: those there are
    fps: float | None = None
    nframes: float | None = None
    min_frames: float | None = None
    max_frames: float | None = None
    #: seconds
    video_start: float | None = None
    video_end: float | None = None
    #: of a list of frames: those of a second, and those that the video had from which they were taken
    sample_fps: float | None = None
    raw_fps: float | None = None
    list_of_frames: int | None = None

    @property
    def pixels(self) -> list[str]:
        """The keys among them by which pixels are resized."""
        return [key for key in PIXEL_KEYS if getattr(self, key) is not None]

    @property
    def counts_frames(self) -> bool:
        """Whether they say how many frames are taken."""
        return any(getattr(self, key) is not None for key in NUMBER_OF_FRAMES_KEYS)

    @property
    def is_range(self) -> bool:
        """Whether only a part of the clip is meant."""
        return self.video_start is not None or self.video_end is not None


def settings_of(value: Mapping[str, Any] | None, of_all: Mapping[str, Any], kind: str) -> MediumSettings | None:
    """The settings of a medium; None where nothing is said of it.

    Args:
        value: what is said of this one; a value that is None says nothing.
        of_all: what is said of all media of the sample: what makes no sense of this kind is not meant for it.
        kind: image or video.

    Raises:
        Skip: `bad_message` for a key that says nothing of such a medium, a value of another form, and contradictions.
    """
    own = {key: item for key, item in (value or {}).items() if item is not None}
    if not own and not of_all:
        return None
    what = FRAMES if FRAMES in own else kind
    if unknown := sorted(own.keys() - _OF[what]):
        keys = ", ".join(key for key in SETTING_KEYS if key in _OF[what])
        raise Skip(Reason.BAD_MESSAGE, f"{unknown[0]} of {_NAMES[what]}: there are {keys}")
    own = {key: of_all[key] for key in SHARED_KEYS if key in _OF[what] and of_all.get(key) is not None} | own
    if not own:
        return None
    found = MediumSettings(**{field.name: _number(own, field.name) for field in fields(MediumSettings)})  # type: ignore[arg-type]
    if (found.resized_height is None) != (found.resized_width is None):
        raise Skip(Reason.BAD_MESSAGE, f"resized_height and resized_width go together: {own}")
    if found.fps is not None and found.nframes is not None:
        raise Skip(Reason.BAD_MESSAGE, f"fps={found.fps:g} and nframes={found.nframes:g}: one of them says how many")
    return found


def _number(values: Mapping[str, Any], key: str) -> float | None:
    value = values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _MOST:
        raise Skip(Reason.BAD_MESSAGE, f"{key} is {str(value)[:40]!r}, no number")
    if value <= 0 and key not in RANGE_KEYS:
        raise Skip(Reason.BAD_MESSAGE, f"{key} is {value}, no number above 0")
    if key == FRAMES and type(value) is not int:
        raise Skip(Reason.BAD_MESSAGE, f"{key} is {value}, no number of images")
    return value
