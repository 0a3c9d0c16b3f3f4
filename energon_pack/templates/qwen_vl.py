"""Qwen2-VL, Qwen2.5-VL and models with the same image rule.

An image is resized to multiples of `factor` = patch_size × merge_size within a pixel budget, and each
factor × factor square becomes one token. The rule is the `smart_resize` of Qwen's image processor.
"""

import math
from typing import Any

from energon_pack.errors import PackError
from energon_pack.media import Media
from energon_pack.sample import Reason, Skip


class QwenVL:
    """Size rule of the family, with one processor's settings."""

    media_tokens = {"image": "<|image_pad|>", "video": "<|video_pad|>"}  # noqa: RUF012
    end_of_turn = "<|im_end|>"

    def __init__(self, image: dict[str, Any]):
        """Take what the rule needs from the image processor's settings.

        Raises:
            PackError: these are not the settings of a Qwen-VL image processor.
        """
        size = image.get("size") or {}
        try:
            self.settings = {
                "factor": image["patch_size"] * image["merge_size"],
                "min_pixels": size["shortest_edge"],
                "max_pixels": size["longest_edge"],
            }
        except KeyError as missing:
            raise PackError(
                f"model.processor has no {missing} in its image settings: it is not a Qwen-VL processor"
            ) from None

    def expand(self, media: Media) -> tuple[str, int]:
        """The text that stands for one medium, and how many visual tokens are in it.

        Raises:
            Skip: `unsupported_media` for videos, `unreadable_media` for sizes the processor refuses.
        """
        if media.kind != "image":
            raise Skip(Reason.UNSUPPORTED_MEDIA, f"the template qwen_vl measures images, not a {media.kind}")
        height, width = smart_resize(media.height, media.width, **self.settings)
        num_tokens = (height // self.settings["factor"]) * (width // self.settings["factor"])
        return self.media_tokens["image"] * num_tokens, num_tokens


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Height and width after resizing, in pixels.

    Each side goes to its nearest multiple of `factor`; where the area then leaves the budget, both sides are scaled
    by one ratio to its edge, rounding towards the inside of the budget.

    Raises:
        Skip: `unreadable_media` above an aspect ratio of 200, which the processor refuses.
    """
    if max(height, width) > 200 * min(height, width):
        raise Skip(Reason.UNREADABLE_MEDIA, f"{width}×{height} pixels: the processor refuses more than 200:1")
    sides = [round(side / factor) * factor for side in (height, width)]
    if sides[0] * sides[1] > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        sides = [max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width)]
    elif sides[0] * sides[1] < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        sides = [math.ceil(side * grow / factor) * factor for side in (height, width)]
    return sides[0], sides[1]
