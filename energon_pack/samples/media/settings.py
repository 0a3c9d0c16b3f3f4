"""Reads a record's settings of one medium: pixels, frames, part of a clip. The keys are qwen_vl_utils'. Pure.

{"type": "image", "image": "a.jpg", "max_pixels": 50176}
{"type": "video", "video": "b.mp4", "fps": 0.5, "video_start": 3, "video_end": 8.5}
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from energon_pack.samples.media.kinds import IMAGE, KINDS, VIDEO
from energon_pack.samples.skip import Reason, Skip

#: setting → the keys that give it
PIXEL_KEYS = ("min_pixels", "max_pixels", "resized_height", "resized_width", "total_pixels")
NUMBER_OF_FRAMES_KEYS = ("fps", "nframes", "min_frames", "max_frames")
RANGE_KEYS = ("video_start", "video_end")
RATE_KEYS = ("sample_fps", "raw_fps")
#: the key of a number n: the n images from this one on are the frames of one video
FRAMES = "list_of_frames"
#: keys that may apply to all media of a sample, and keys of a content part
SHARED_KEYS = (*PIXEL_KEYS, *NUMBER_OF_FRAMES_KEYS, *RANGE_KEYS, *RATE_KEYS)
SETTING_KEYS = (*SHARED_KEYS, FRAMES)

_OF_IMAGES = PIXEL_KEYS[:4]
_OF = {
    **{kind: frozenset[str]() for kind in KINDS},
    IMAGE.kind: frozenset(_OF_IMAGES),
    VIDEO.kind: frozenset((*PIXEL_KEYS, *NUMBER_OF_FRAMES_KEYS, *RANGE_KEYS)),
    FRAMES: frozenset((*PIXEL_KEYS, *RATE_KEYS, "fps", FRAMES)),
}
#: the largest number that a float can hold
_MOST = sys.float_info.max
_NOUNS = {FRAMES: "a list of frames", **{kind: medium.noun for kind, medium in KINDS.items()}}


@dataclass(frozen=True)
class MediumSettings:
    """The settings of one medium; None: the record does not set it."""

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
    def pixels(self) -> list[str]:
        """Return the keys that resize pixels."""
        return [key for key in PIXEL_KEYS if getattr(self, key) is not None]

    @property
    def counts_frames(self) -> bool:
        """Tell whether they set how many frames are taken."""
        return any(getattr(self, key) is not None for key in NUMBER_OF_FRAMES_KEYS)

    @property
    def is_range(self) -> bool:
        """Tell whether they select only a part of the clip."""
        return self.video_start is not None or self.video_end is not None


def settings_of(value: Mapping[str, Any] | None, of_all: Mapping[str, Any], kind: str) -> MediumSettings | None:
    """Read the settings of a medium; None if the record sets nothing for it.

    Args:
        value: the settings of this medium; a key whose value is None sets nothing.
        of_all: the settings of all media of the sample; keys that do not apply to this kind are ignored.
        kind: the kind of the medium.

    Raises:
        Skip: `bad_message` for a key of another kind of media, a value of a wrong form, and contradictions.
    """
    own = {key: item for key, item in (value or {}).items() if item is not None}
    if not own and not of_all:
        return None
    what = FRAMES if FRAMES in own else kind
    if unknown := sorted(own.keys() - _OF[what]):
        keys = ", ".join(key for key in SETTING_KEYS if key in _OF[what])
        raise Skip(Reason.BAD_MESSAGE, f"{unknown[0]} of {_NOUNS[what]}: there are {keys}")
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
