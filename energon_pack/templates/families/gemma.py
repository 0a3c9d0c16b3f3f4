"""Gemma 3: every image is 256 tokens; with pan-and-scan, a long image also has crops.

The rule is the same as in Gemma3Processor of transformers.
"""

import math
from collections.abc import Sequence
from typing import Any

from energon_pack.errors import PackError
from energon_pack.samples.media.medium import Media
from energon_pack.templates.families.rules import MediaRules, ProcessorSettings, number


class Gemma3(MediaRules):
    """Images of Gemma 3."""

    def __init__(self, processor: ProcessorSettings):
        """Read the needed settings of a processor.

        Raises:
            PackError: these are not the settings of a Gemma 3 processor.
        """
        tokens, image = processor.tokens, processor.image
        begin, end = tokens.get("boi_token", "<start_of_image>"), tokens.get("eoi_token", "<end_of_image>")
        self.media_tokens = {"image": begin}
        num_tokens = number(processor.processor, "image_seq_length", 256)
        self._num_tokens = num_tokens
        feature = tokens.get("image_token", "<image_soft_token>")
        self.feature_tokens = {"image": feature}
        self.marks = (end,)
        self._image = f"\n\n{begin}{feature * num_tokens}{end}\n\n"
        self.settings: dict[str, Any] = {"num_tokens": num_tokens, "pan_and_scan": None}
        if image.get("do_pan_and_scan"):
            defaults = {"min_crop_size": 256, "max_num_crops": 4, "min_ratio_to_activate": 1.2}
            given = {name: image.get(f"pan_and_scan_{name}") for name in defaults}
            pan_and_scan = defaults | {name: value for name, value in given.items() if value is not None}
            if not all(isinstance(value, (int, float)) and value > 0 for value in pan_and_scan.values()):
                raise PackError(f"pan_and_scan settings {pan_and_scan}: numbers above 0")
            self.settings["pan_and_scan"] = list(pan_and_scan.values())

    def expand(self, media: Media, frames: Sequence[int]) -> tuple[str, int]:
        num_crops = self._num_crops(media.height, media.width)
        if not num_crops:
            return self._image, self._num_tokens
        crops = " ".join([self._image] * num_crops)
        text = f"Here is the original image {self._image} and here are some crops to help you see better {crops}"
        return text, self._num_tokens * (1 + num_crops)

    def _num_crops(self, height: int, width: int) -> int:
        if self.settings["pan_and_scan"] is None:
            return 0
        least_size, most, least_ratio = self.settings["pan_and_scan"]
        long, short = max(height, width), min(height, width)
        if long / short < least_ratio:
            return 0
        num_crops = min(most, max(2, min(long // least_size, math.floor(long / short + 0.5))))
        return 0 if min(math.ceil(long / num_crops), short) < least_size else int(num_crops)
