"""Kimi-VL and Kimi-K2.5: an image keeps its size unless it has too many patches, and is padded to whole tokens.

The rule is the same as in Kimi_K25ImageProcessor of transformers (MoonViT's).
"""

import math
from collections.abc import Sequence

from energon_pack.errors import PackError
from energon_pack.samples.media.medium import Media
from energon_pack.templates.families.rules import MediaRules, ProcessorSettings, positive_int


class Kimi(MediaRules):
    """The rules of Kimi-VL and Kimi-K2.5 for images, which keep their size if it has not too many patches."""

    processors = ("Kimi_K25Processor", "KimiVLProcessor")

    def __init__(self, processor: ProcessorSettings):
        """Read the needed settings of a processor."""
        image = {**processor.image, **(processor.image.get("media_proc_cfg") or {})}
        self.media_tokens = {"image": processor.tokens.get("image_token", "<|media_pad|>")}
        size = image.get("size") or {}
        if size.get("max_height") != size.get("max_width"):
            raise PackError(f"size={size} of model.processor: max_height and max_width have to be equal")
        patch_size = positive_int(image, "patch_size", 14)
        limit = next((name for name in ("max_patches", "in_patch_limit", "in_token_limit") if image.get(name)), "")
        self.settings = {
            "patch_size": patch_size,
            "factor": patch_size * positive_int(image, "merge_size", 2),
            "max_patches": positive_int(image, limit or "max_patches"),
            "max_side": positive_int(size, "max_height", 512) * patch_size,  # pixels
        }

    def expand(self, medium: Media, frame_indices: Sequence[int]) -> tuple[str, int]:
        patch, factor, most, side = (self.settings[k] for k in ("patch_size", "factor", "max_patches", "max_side"))
        num_patches = max(1.0, medium.height // patch) * max(1.0, medium.width // patch)
        scale = min(1.0, math.sqrt(most / num_patches), side / medium.height, side / medium.width)
        height, width = (min(max(1, int(length * scale)), side) for length in (medium.height, medium.width))
        num_tokens = math.ceil(height / factor) * math.ceil(width / factor)
        return self.media_tokens["image"] * num_tokens, num_tokens
