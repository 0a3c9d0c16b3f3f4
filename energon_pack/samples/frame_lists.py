"""Reads a video that a sample gives as a list of frame files. Pure.

    {"type": "video", "video": ["f0.jpg", "f1.jpg"]} ──frame_parts──► <image><image>, {"list_of_frames": 2} on the first

Sources, plans and packs hold the images. A template and a model see one video: see `templates.frame_lists`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from energon_pack.samples.media.kinds import IMAGE
from energon_pack.samples.media.medium import FRAMES_KEY, RATE_KEYS
from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip


def frame_parts(names: Sequence[Any], settings: Mapping[str, Any]) -> list[Message]:
    """Return content parts for a video whose frames are image files: an image for each, the settings on the first."""
    if not names or not all(isinstance(name, str) for name in names):
        raise Skip(Reason.MISSING_MEDIA, f"a video lists something that is no frame: {str(list(names))[:80]}")
    first, *rest = ({"type": IMAGE.kind, "name": name} for name in names)
    return [{**first, "settings": frame_list_settings(len(names), settings)}, *rest]


def frame_list_settings(num: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the video's settings with the number of its images, for the first of `num` images that are one video."""
    return {FRAMES_KEY: num, **settings}


def frame_lists_as_images(messages: Sequence[Message]) -> list[Message]:
    """Return messages in which a video's listed frames are single images, without the settings of a video."""

    def plain(part: Message) -> Message:
        if FRAMES_KEY not in part.get("settings", ()):
            return part
        left_out = (FRAMES_KEY, "fps", *RATE_KEYS)
        settings = {key: value for key, value in part["settings"].items() if key not in left_out}
        return {**{key: part[key] for key in part if key != "settings"}, **({"settings": settings} if settings else {})}

    return [
        message if isinstance(message["content"], str) else {**message, "content": [*map(plain, message["content"])]}
        for message in messages
    ]


def settings_mark_frame_lists(settings: Any) -> bool:
    """Tell whether a sample's `media_settings` mark images as frames of one video."""
    return isinstance(settings, list) and any(isinstance(item, Mapping) and item.get(FRAMES_KEY) for item in settings)
