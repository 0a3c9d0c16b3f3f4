"""Rules for Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5 and models with the same rules.

An image is resized to multiples of `factor` = patch_size × merge_size within a pixel budget, and each
factor × factor square becomes one token. In a video each temporal patch of two frames is treated like an image; from
Qwen3-VL on, its pixel budget is for all frames together, and each temporal patch has its time before it. The rules are
the same as in the families' processors of transformers.
"""

import math
from collections.abc import Sequence
from typing import Any

from energon_pack.samples.media.medium import Media
from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.families.rules import FrameSampling, MediaRules, ProcessorSettings, positive_int
from energon_pack.templates.preprocess import linspace_indices, smart_resize


class QwenVL(MediaRules):
    """The rules of Qwen2-VL and Qwen2.5-VL: one token for each square of pixels, in videos for each pair of frames."""

    processors: Sequence[str] = (
        *("Qwen2VLProcessor", "Qwen2_5_VLProcessor"),
        *("Exaone4_5_Processor", "HyperCLOVAXVisionV2Processor"),
    )
    #: defaults of the processor's image class
    image_size_defaults: dict[str, Any] = {"shortest_edge": 56 * 56, "longest_edge": 1280 * 28 * 28}  # noqa: RUF012
    #: defaults of the processor's video class
    video_defaults: dict[str, Any] = {  # noqa: RUF012
        "min_frames": 4,
        "max_frames": 768,
        "temporal_patch_size": 2,
        "max_video_tokens": 128_000,
        "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28},
    }

    def __init__(self, processor: ProcessorSettings):
        """Read the needed settings of a processor."""
        self.media_tokens = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
        image = _flattened(processor.image, self.image_size_defaults)
        patch_size, merge_size = positive_int(image, "patch_size"), positive_int(image, "merge_size")
        self.factor = patch_size * merge_size
        self._resizes_images = image.get("do_resize") is not False
        self.pixel_limits = {
            "min_pixels": positive_int(image, "shortest_edge"),
            "max_pixels": positive_int(image, "longest_edge"),
        }
        video = _flattened({**self.video_defaults, **processor.video}, self.video_defaults["size"])
        self.video_settings = {
            "factor": positive_int(video, "patch_size", patch_size) * positive_int(video, "merge_size", merge_size),
            "temporal": positive_int(video, "temporal_patch_size"),
            "min_pixels": positive_int(video, "shortest_edge"),
            "max_pixels": positive_int(video, "longest_edge"),
            "max_video_tokens": positive_int(video, "max_video_tokens"),
            "do_resize": video.get("do_resize") is not False,
            "cap": bool(video.get("cap_pixels_per_frame")),
        }
        self.frames = self.frame_sampling(video)
        self.settings = {
            "factor": self.factor,
            "do_resize": self._resizes_images,
            **self.pixel_limits,
            "video": self.video_settings,
            "frames": self.frames.settings,
        }

    def frame_sampling(self, video_settings: dict[str, Any]) -> FrameSampling:
        return _WholePatchFrames(video_settings, positive_int(video_settings, "temporal_patch_size"))

    def expand(self, medium: Media, frame_indices: Sequence[int]) -> tuple[str, int]:
        if medium.kind == "image":
            height, width = medium.height, medium.width
            if self._resizes_images:
                height, width = smart_resize(height, width, self.factor, **self.pixel_limits)
            _refuse_partial_tokens(height, width, self.factor)
            num_tokens = (height // self.factor) * (width // self.factor)
            return self.media_tokens["image"] * num_tokens, num_tokens
        height, width = medium.height, medium.width
        if self.video_settings["do_resize"]:
            height, width = self.resized_frame_size(height, width, len(frame_indices))
        factor = self.video_settings["factor"]
        _refuse_partial_tokens(height, width, factor)
        num_tokens = (height // factor) * (width // factor)
        num_patches = math.ceil(len(frame_indices) / self.video_settings["temporal"])
        return self.video_text(medium, frame_indices, num_tokens), num_patches * num_tokens

    def resized_frame_size(self, height: int, width: int, num_frames: int) -> tuple[int, int]:
        """Return the height and width of each frame after the processor's resizing."""
        settings = self.video_settings
        factor, most = settings["factor"], settings["max_pixels"]
        if settings["cap"]:
            in_all = int(settings["max_video_tokens"] * factor * factor * 0.9)
            most = max(min(most, in_all * settings["temporal"] // num_frames), int(settings["min_pixels"] * 1.05))
        return smart_resize(height, width, factor, settings["min_pixels"], most)

    def video_text(self, video: Media, frames: Sequence[int], num_tokens: int) -> str:
        """Return the text that stands for a video; `num_tokens`: how many tokens a temporal patch (two frames) has."""
        return self.media_tokens["video"] * (math.ceil(len(frames) / self.video_settings["temporal"]) * num_tokens)


class Qwen3VL(QwenVL):
    """The rules of Qwen3-VL and Qwen3.5: a video's frames share one pixel budget, and their times stand in the text."""

    processors = ("Qwen3VLProcessor", "Lfm3VlProcessor")
    has_pixel_limits = False
    video_defaults = {  # noqa: RUF012
        "do_sample_frames": True,
        "fps": 2,
        "min_frames": 4,
        "max_frames": 768,
        "temporal_patch_size": 2,
        "max_video_tokens": 768,
        "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32},
    }

    def frame_sampling(self, video_settings: dict[str, Any]) -> FrameSampling:
        return _FirstToLastFrames(video_settings)

    def resized_frame_size(self, height: int, width: int, num_frames: int) -> tuple[int, int]:
        settings = self.video_settings
        factor, most = settings["factor"], settings["max_pixels"]
        if num_frames < settings["temporal"]:
            raise Skip(Reason.UNREADABLE_MEDIA, f"{num_frames} frames: the processor refuses fewer than 2")
        if settings["cap"]:
            each = min(settings["max_video_tokens"] * factor * factor, most // num_frames)
            most = max(each, int(settings["min_pixels"] * 1.05)) * num_frames
        if min(height, width) < factor:
            grow = max(factor / height, factor / width)
            height, width = int(height * grow), int(width * grow)
        # Frames are rounded to whole temporal patches only to check the budget.
        rounded = round(num_frames / settings["temporal"]) * settings["temporal"]
        return smart_resize(height, width, factor, settings["min_pixels"], most, num_frames, rounded)

    def video_text(self, video: Media, frames: Sequence[int], num_tokens: int) -> str:
        temporal = self.video_settings["temporal"]
        chosen = [*frames, *([frames[-1]] * (-len(frames) % temporal))]
        times = [index / video.fps for index in chosen]
        patch = f"<|vision_start|>{self.media_tokens['video'] * num_tokens}<|vision_end|>"
        return "".join(
            f"<{(times[i] + times[i + temporal - 1]) / 2:.1f} seconds>{patch}" for i in range(0, len(times), temporal)
        )


class _WholePatchFrames(FrameSampling):
    """Chooses frames like Qwen2-VL: as many as fill whole temporal patches, usually an even number."""

    def __init__(self, video: dict[str, Any], temporal: int):
        super().__init__({**video, "initial_shift": 0})
        self._temporal_patch_size = temporal

    def num_wanted(self, video: Media) -> int:
        settings, temporal = self.settings, self._temporal_patch_size
        if settings["num_frames"] is not None:
            return int(round(settings["num_frames"] / temporal) * temporal)
        if settings["fps"] is None:
            return video.num_frames
        most = min(settings["max_frames"], video.num_frames) // temporal * temporal
        number = max(video.num_frames / video.fps * settings["fps"], settings["min_frames"])
        return int(math.floor(min(number, most, video.num_frames) / temporal) * temporal)


class _FirstToLastFrames(FrameSampling):
    """Chooses frames like Qwen3-VL: evenly, with the first and the last frame among them."""

    repeats_frames = True

    def num_wanted(self, video: Media) -> int:
        settings = self.settings
        if settings["num_frames"] is not None:
            return int(settings["num_frames"])
        if settings["fps"] is None:
            return int(min(max(video.num_frames, settings["min_frames"]), settings["max_frames"]))
        number = int(video.num_frames / video.fps * settings["fps"])
        return int(min(max(number, settings["min_frames"]), settings["max_frames"], video.num_frames))

    def spread_indices(self, total: int, number: int) -> list[int]:
        return linspace_indices(total, number)


def _refuse_partial_tokens(height: int, width: int, factor: int) -> None:
    """Raise Skip if a size is not a multiple of `factor`: with `do_resize` off the processor refuses it, too."""
    if height % factor or width % factor:
        raise Skip(Reason.UNREADABLE_MEDIA, f"{width}×{height} pixels are no multiples of {factor}, and not resized")


def _flattened(settings: dict[str, Any], size: dict[str, Any]) -> dict[str, Any]:
    """Return settings with those in `size` moved to the top level.

    Args:
        size: the class's own values, which transformers takes where the settings have none, or null.
    """
    return {**settings, **size, **(settings.get("size") or {})}
