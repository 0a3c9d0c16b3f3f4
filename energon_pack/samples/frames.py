"""Make images of the frames that a sample lists as a video, and write the time of images into its text. Pure.

`video_parts_from_frame_files` makes the images; the first keeps the settings of the video:

    {"type": "video", "video": ["f0.jpg", "f1.jpg"]} ──frame_parts──► <image><image>, {"list_of_frames": 2} on the first

Sources, plans and packs hold the images. A template and a model see one video.

`conversation.with_times_in_text` turns the `<image>` of a frame into `<0.5 seconds><image>` and a newline, by `fps` and
the frame's patch positions. The time is text, so its tokens count.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from energon_pack.samples.media.kinds import IMAGE
from energon_pack.samples.media.medium import FRAMES_KEY, RATE_KEYS
from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip


def video_parts_from_frame_files(file_names: Sequence[Any], video_settings: Mapping[str, Any]) -> list[Message]:
    """Return content parts for a video whose frames are image files: an image for each, the settings on the first."""
    if not file_names or not all(isinstance(name, str) for name in file_names):
        raise Skip(Reason.MISSING_MEDIA, f"a video lists something that is no frame: {str(list(file_names))[:80]}")
    first, *rest = ({"type": IMAGE.kind, "name": name} for name in file_names)
    return [{**first, "settings": frame_list_settings(len(file_names), video_settings)}, *rest]


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


_MAX_DECIMALS = 9


def patch_position_files(fields: Mapping[str, Any], num_images: int) -> list[str]:
    """Return each image's file of patch positions, "" for an image without one; empty: no image has one."""
    listed = fields.get("patch_positions") or []
    names = [name or "" for name in (listed if isinstance(listed, list) else [listed])]
    if any(not isinstance(name, str) for name in names) or (any(names) and len(names) != num_images):
        raise Skip(
            Reason.BAD_MESSAGE, f'patch_positions names {len(names)} files for {num_images} images ("": one without)'
        )
    return names if any(names) else []


def load_patch_positions(npy_bytes: bytes, name: str) -> Any:
    """Load patch positions from the bytes of a .npy: integers [patches, 3] (frame t, row h, column w); raises Skip."""
    if not npy_bytes.startswith(np.lib.format.MAGIC_PREFIX):  # numpy would show the bytes that are there
        raise Skip(Reason.UNREADABLE_MEDIA, f"{name!r} is no .npy")
    try:
        array = np.lib.format.read_array(io.BytesIO(npy_bytes), allow_pickle=False)  # np.load would read zips, too
    except Exception as error:  # a damaged header makes numpy raise anything
        raise Skip(Reason.UNREADABLE_MEDIA, f"{name!r} is no .npy: {error}") from None
    if array.ndim != 2 or array.shape[1] != 3 or not len(array) or array.dtype.kind not in "iu":
        raise Skip(Reason.UNREADABLE_MEDIA, f"{name!r} holds {array.dtype}{list(array.shape)}, not t, h, w of patches")
    return array


def image_time_texts(fps: Any, decimals: Any, patch_positions: Sequence[Any]) -> list[str]:
    """Return the time of each image as text, such as `<0.5 seconds>`; empty: the sample has no `fps`.

    Args:
        fps: frames a second; the time is the t of an image's first patch, divided by it.
        decimals: digits after the point; None: 1.
        patch_positions: the patch positions of each image; None: its t is 0.
    """
    fps, decimals = (value[0] if isinstance(value, list) and value else value or None for value in (fps, decimals))
    if fps is None or not patch_positions:
        return []
    decimals = 1 if decimals is None else decimals
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not fps > 0:
        raise Skip(Reason.BAD_MESSAGE, f"fps is {fps!r}")
    if type(decimals) is not int or not 0 <= decimals <= _MAX_DECIMALS:
        raise Skip(Reason.BAD_MESSAGE, f"timestamp_decimal is {decimals!r}")
    times = (0 if array is None else int(array[0][0]) for array in patch_positions)
    return [f"<{time / fps:.{decimals}f} seconds>" for time in times]
