"""Reads a record's settings of one medium: pixels, frames, part of a clip. The keys are qwen_vl_utils'. Pure.

{"type": "image", "image": "a.jpg", "max_pixels": 50176}
{"type": "video", "video": "b.mp4", "fps": 0.5, "video_start": 3, "video_end": 8.5}
"""

import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from energon_pack.samples.media.kinds import IMAGE, KINDS, VIDEO
from energon_pack.samples.media.medium_settings import (
    FRAMES,
    NUMBER_OF_FRAMES_KEYS,
    PIXEL_KEYS,
    RANGE_KEYS,
    RATE_KEYS,
    SETTING_KEYS,
    SHARED_KEYS,
    MediumSettings,
)
from energon_pack.samples.skip import Reason, Skip

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
