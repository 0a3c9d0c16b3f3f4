"""Media preprocessors: change images and videos before the processor's own rule (`media.*` of the config).

Measuring applies a preprocessor to sizes, and training applies the same to pixels; so the two agree, although packing
decodes no pixel. A name with a colon, `my_package.crops:Faces`, is a class of your own: it is made with the `media`
node and the model's `factor`, and needs the methods below. An installed package may also name such a class among its
entry points `energon_pack.media`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from PIL import Image

from energon_pack.errors import PackError
from energon_pack.run.load_by_name import load_entry_point, load_named
from energon_pack.samples.media.kinds import VIDEO
from energon_pack.samples.media.medium import Media, MediumSettings
from energon_pack.samples.member import CROP, RESIZE
from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.settings import MediaConfig

_EXAMPLE_FACTOR = 28  # pixels of a token's side, used only to check settings


class ImagePreprocessor(Protocol):
    """Changes an image before the processor's own resizing: its size when measuring, its pixels in training."""

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height that an image of this size gets."""

    def apply(self, image: Image.Image) -> Image.Image:
        """Return the image with changed pixels, of the size that `size` returns."""


class VideoPreprocessor(Protocol):
    """Chooses the frames of a video in place of the processor, and changes their size."""

    def choose_frames(self, video: Media) -> list[int]:
        """Return the indices of the frames to keep, ascending."""

    def size(self, width: int, height: int, num_frames: int) -> tuple[int, int]:
        """Return the width and height that the frames get if `num_frames` of them are kept."""


def image_preprocessor(media: MediaConfig, factor: int) -> ImagePreprocessor | None:
    """Return the preprocessor that `media.image` names; None for `default`."""
    return cast(ImagePreprocessor | None, _load_preprocessor("image", media.image, media, factor, IMAGE_PREPROCESSORS))


def video_preprocessor(media: MediaConfig, factor: int) -> VideoPreprocessor | None:
    """Return the preprocessor that `media.video` names; None: the processor chooses frames itself, by its settings."""
    return cast(VideoPreprocessor | None, _load_preprocessor("video", media.video, media, factor, VIDEO_PREPROCESSORS))


def check_media_config(media: MediaConfig) -> None:
    """Raise PackError if the `media` node is invalid; what needs a model or a class of your own is not checked."""
    for kind, name, known in (("image", media.image, IMAGE_PREPROCESSORS), ("video", media.video, VIDEO_PREPROCESSORS)):
        if ":" not in name:
            _load_preprocessor(kind, name, media, _EXAMPLE_FACTOR, known)
    _refuse_unread_keys(media)
    video_settings(media)


def _refuse_unread_keys(media: MediaConfig) -> None:
    """Raise PackError if a key is set that no chosen preprocessor reads; a class of another package may read any."""
    for key, (kind, readers, default) in KEY_READERS.items():
        value, name = getattr(media, key), getattr(media, kind)
        is_foreign = not {name, media.video} <= {*IMAGE_PREPROCESSORS, *VIDEO_PREPROCESSORS}
        if value is None or name in readers or is_foreign or (value == default and name != "default"):
            continue
        given, owner = f"media.{key}={value if isinstance(value, int) else f'{value:g}'}", readers[0]
        raise PackError(f"{given} needs media.{kind}={' or '.join(readers)}, not {name}: media={owner} {given}")


def refuse_ignored_frame_limits(media: MediaConfig, choose_frames: Callable[[Media], Sequence[int]]) -> None:
    """Raise PackError if the processor's own choice of frames does not keep `media.max_frames` or `media.min_frames`.

    `choose_frames`: the processor's rule, which is asked about a video that is long in frames and in seconds, and about
    a short one.
    """
    fps, most, least = media.fps or 1.0, media.max_frames, media.min_frames
    if VIDEO_PREPROCESSORS.get(media.video, media.video) is not None:
        return  # the preprocessor chooses
    rate_of_long, seconds = max(30.0, fps), 4 * max(most or 0, media.num_frames or 0) / min(fps, 1.0)
    long = "max_frames", most, math.ceil(rate_of_long * seconds), rate_of_long
    for key, limit, total, rate in (long, ("min_frames", least, 4 * (least or 0), 8 * (least or 1) * fps)):
        if limit is None:
            continue
        try:
            chosen = len(choose_frames(Media(VIDEO.kind, 64, 64, "mp4", total, rate)))
        except Skip:
            chosen = 0
        if chosen > limit if key == "max_frames" else chosen < limit // 2 * 2:  # some rules take pairs of frames
            ways = f"{'media=fps, or ' * (media.video == 'default')}media=uniform media.num_frames=N"
            raise PackError(
                f"media.{key}={limit} does nothing: by media.video={media.video} the processor takes {chosen} of"
                f" {total} frames at {rate:g} a second: {ways}"
            )


def image_settings(media: MediaConfig) -> dict[str, Any]:
    """Return the settings that the `media` node changes in the image processor."""
    return {"do_resize": False} if media.image == "qwen_vl_utils" else {}


def video_settings(media: MediaConfig) -> dict[str, Any]:
    """Return the settings that the `media` node changes in the video processor."""
    name = media.video
    for owner, key, value in (("fps", "fps", media.fps), ("uniform", "num_frames", media.num_frames)):
        if name == owner and value is None:
            raise PackError(f"media.video={name} needs media.{key}")
    changes: dict[str, Any] = {"do_resize": False} if name == "qwen_vl_utils" else {}
    if name in ("fps", "uniform"):
        fps = media.fps if name == "fps" else None
        changes = {"do_sample_frames": True, "fps": fps, "num_frames": media.num_frames}
    changes |= _without_none(min_frames=media.min_frames, max_frames=media.max_frames)
    changes["size"] = _without_none(shortest_edge=media.video_min_pixels, longest_edge=media.video_max_pixels)
    return changes | _without_none(cap_pixels_per_frame=media.video_cap)


def _without_none(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _load_preprocessor(kind: str, name: str, media: MediaConfig, factor: int, known: Mapping[str, Any]) -> Any:
    make = known.get(name, name)
    if isinstance(make, str):
        setting = f"media.{kind}"
        make = load_named(setting, name) if ":" in name else load_entry_point("media", setting, name)
        if make is None:
            raise PackError(f"{setting}={name} is unknown; there are: {', '.join(known)}, or module:Class")
    try:
        return None if make is None else make(media, factor)
    except PackError:
        raise
    except Exception as error:  # raised by a class of another package
        raise PackError(f"media.{kind}={name}: {type(error).__name__}: {error}") from None


def _required_pixels(media: MediaConfig, key: str) -> int:
    value = getattr(media, key)
    if not isinstance(value, int) or value < 1:
        raise PackError(f"media.image={media.image} needs media.{key}, a number of pixels, not {value!r}")
    return value


def _refuse_other_models(kind: str, factor: int) -> None:
    if factor < 2:
        raise PackError(f"media.{kind}=qwen_vl_utils is for models of the Qwen-VL family")


@dataclass(frozen=True)
class SizeRule:
    """An image preprocessor that only resizes or crops, to `size(width, height)`, so packs can store that size."""

    #: width and height afterwards, from those before
    size: Callable[[int, int], tuple[int, int]]
    operation: str = RESIZE


def resize_longest_side(media: MediaConfig, factor: int) -> SizeRule:
    """Shrink an image so that its longer side has at most `media.longest_side` pixels."""
    longest = _required_pixels(media, "longest_side")

    def size(width: int, height: int) -> tuple[int, int]:
        scale = min(1.0, longest / max(width, height))
        return max(1, round(width * scale)), max(1, round(height * scale))

    return SizeRule(size)


def resize_max_pixels(media: MediaConfig, factor: int) -> SizeRule:
    """Shrink an image so that it has at most `media.max_pixels` pixels."""
    most = _required_pixels(media, "max_pixels")

    def size(width: int, height: int) -> tuple[int, int]:
        if width * height <= most:
            return width, height
        scale = math.sqrt(most / (width * height))
        return max(1, math.floor(width * scale)), max(1, math.floor(height * scale))

    return SizeRule(size)


def center_crop(media: MediaConfig, factor: int) -> SizeRule:
    """Cut out the middle of an image, at most `media.crop_width` × `media.crop_height` pixels."""
    most = _required_pixels(media, "crop_width"), _required_pixels(media, "crop_height")
    return SizeRule(lambda width, height: (min(width, most[0]), min(height, most[1])), CROP)


def qwen_vl_utils(media: MediaConfig, factor: int) -> SizeRule:
    """Prepare images like the package qwen-vl-utils: 4 to 16,384 tokens, whole tokens."""
    _refuse_other_models("image", factor)
    return SizeRule(lambda width, height: qwen_utils_image_size(MediumSettings(), width, height, factor))


class QwenVLUtilsVideo:
    """Prepares videos like the package qwen-vl-utils.

    It takes `media.fps` (2) frames a second from the first to the last, an even number between `media.min_frames` (4)
    and `media.max_frames` (768). A pair of frames has 128 to 768 tokens, or fewer if 90 % of 128,000 tokens would not
    hold them all.
    """

    def __init__(self, media: MediaConfig, factor: int):
        _refuse_other_models("video", factor)
        self._factor = factor
        self._settings = MediumSettings(fps=media.fps, min_frames=media.min_frames, max_frames=media.max_frames)

    def choose_frames(self, video: Media) -> list[int]:
        return linspace_indices(video.num_frames, qwen_utils_num_frames(self._settings, video.num_frames, video.fps))

    def size(self, width: int, height: int, num_frames: int) -> tuple[int, int]:
        return qwen_utils_frame_size(MediumSettings(), width, height, num_frames, self._factor)


def qwen_utils_num_frames(settings: MediumSettings, total: int, fps: float) -> int:
    """Return how many of the `total` frames of a video qwen_vl_utils takes (its `smart_nframes`), at least 2.

    Raises:
        Skip: it wants fewer than 2 frames, or more than the video has.
    """
    if settings.nframes is not None:
        number = round(settings.nframes / 2) * 2
    else:
        least = math.ceil((settings.min_frames or 4) / 2) * 2
        most = math.floor((settings.max_frames or min(768, total)) / 2) * 2
        number = math.floor(min(max(total / fps * (settings.fps or 2.0), least), most, total) / 2) * 2
    if not 2 <= number <= total:
        raise Skip(Reason.UNREADABLE_MEDIA, f"qwen-vl-utils wants {max(number, 2)} frames, the video has {total}")
    return number


def qwen_utils_image_size(settings: MediumSettings, width: int, height: int, factor: int) -> tuple[int, int]:
    """Return width and height to which qwen_vl_utils resizes an image (`fetch_image`); `factor`: pixels of a token's
    side.
    """
    area = factor**2
    if settings.resized_height and settings.resized_width:
        return _qwen_utils_resize(settings.resized_width, settings.resized_height, factor, 4 * area, 16_384 * area)
    least, most = settings.min_pixels or 4 * area, settings.max_pixels or 16_384 * area
    return _qwen_utils_resize(width, height, factor, least, most)


def qwen_utils_frame_size(
    settings: MediumSettings, width: int, height: int, num_frames: int, factor: int
) -> tuple[int, int]:
    """Return width and height to which qwen_vl_utils resizes each of a video's `num_frames` frames (`fetch_video`)."""
    area = factor**2
    if settings.resized_height and settings.resized_width:
        return qwen_utils_image_size(settings, width, height, factor)
    least, in_all = settings.min_pixels or 128 * area, settings.total_pixels or 128_000 * area * 0.9
    most = max(min(768 * area, in_all / num_frames * 2), int(least * 1.05))
    return _qwen_utils_resize(width, height, factor, least, min(settings.max_pixels or most, most))


def _qwen_utils_resize(width: float, height: float, factor: int, least: float, most: float) -> tuple[int, int]:
    if least > most:
        problem = f"max_pixels of a medium is {most:g}, less than its min_pixels of {least:g}: give both"
        raise Skip(Reason.BAD_MESSAGE, problem)
    resized = smart_resize(height, width, factor, least, most, min_side=factor)
    return resized[1], resized[0]


def linspace_indices(total: int, number: int) -> list[int]:
    """Return the indices of `number` out of `total` frames, evenly from the first to the last."""
    chosen: list[int] = np.linspace(0, total - 1, number).round().astype(int).tolist()
    return chosen


def smart_resize(
    height: float,
    width: float,
    factor: int,
    min_pixels: float,
    max_pixels: float,
    num_frames: int = 1,
    num_frames_rounded: int = 1,
    min_side: int = 0,
) -> tuple[int, int]:
    """Return height and width after Qwen's resizing, in pixels.

    Each side is rounded to the nearest multiple of `factor`. If the area times the frames is then outside of
    `min_pixels` to `max_pixels`, both sides are scaled by one ratio to that limit, and rounded to stay within it.

    Args:
        num_frames, num_frames_rounded: the frames that share the pixels; rounded, to decide whether they are too many.
        min_side: a shorter side is raised to this first: `factor` in qwen_vl_utils, 0 in transformers.

    Raises:
        Skip: `unreadable_media` above an aspect ratio of 200, which the processor refuses.
    """
    if max(height, width) / min(height, width) > 200:
        raise Skip(Reason.UNREADABLE_MEDIA, f"{width}×{height} pixels: the processor refuses more than 200:1")
    sides = [max(min_side, round(side / factor) * factor) for side in (height, width)]
    if num_frames_rounded * sides[0] * sides[1] > max_pixels:
        shrink = math.sqrt(num_frames * height * width / max_pixels)
        sides = [max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width)]
    elif num_frames_rounded * sides[0] * sides[1] < min_pixels:
        grow = math.sqrt(min_pixels / (num_frames * height * width))
        sides = [math.ceil(side * grow / factor) * factor for side in (height, width)]
    return sides[0], sides[1]


#: `media.image` by name
IMAGE_PREPROCESSORS = {
    "default": None,
    "resize_longest_side": resize_longest_side,
    "resize_max_pixels": resize_max_pixels,
    "center_crop": center_crop,
    "qwen_vl_utils": qwen_vl_utils,
}
#: `media.video` by name; `fps` and `uniform` are the processor's own rule with other settings
VIDEO_PREPROCESSORS = {"default": None, "fps": None, "uniform": None, "qwen_vl_utils": QwenVLUtilsVideo}
_SIZE_READERS = "video", ("default", "fps", "uniform"), None  # qwen_vl_utils turns the processor's resizing off
#: key → `image` or `video`, the preprocessors of it that read the key, and the value that `media=` the first one sets
KEY_READERS: dict[str, tuple[str, tuple[str, ...], float | None]] = {
    "longest_side": ("image", ("resize_longest_side",), 1024),
    "max_pixels": ("image", ("resize_max_pixels",), 1_003_520),
    "crop_width": ("image", ("center_crop",), 448),
    "crop_height": ("image", ("center_crop",), 448),
    "fps": ("video", ("fps", "qwen_vl_utils"), 2),
    "num_frames": ("video", ("uniform",), 8),
    "video_min_pixels": _SIZE_READERS,
    "video_max_pixels": _SIZE_READERS,
    "video_cap": _SIZE_READERS,
}
