"""Idefics3, SmolVLM and Granite-Docling: an image becomes rows and columns of named tiles, and a tile of the whole.

The rule is the same as in Idefics3Processor and its image processor of transformers.
"""

import math
from collections.abc import Sequence
from typing import Any

from energon_pack.samples.media.medium import Media
from energon_pack.templates.families.rules import MediaRules, ProcessorSettings, number

_MOST_PIXELS_A_SIDE = 4096


class Idefics3(MediaRules):
    """Images of the Idefics3 family."""

    def __init__(self, processor: ProcessorSettings):
        """Read the needed settings of a processor.

        Raises:
            PackError: these are not the settings of an Idefics3 processor.
        """
        image, tokens = processor.image, processor.tokens
        self._image_token = tokens.get("image_token", "<image>")
        self._around = tokens.get("fake_image_token", "<fake_token_around_image>")
        self._global = tokens.get("global_image_token", "<global-img>")
        self.media_tokens = {"image": self._image_token}
        self.marks = (self._around, self._global)
        splits = image.get("do_image_splitting", True)
        self.settings = {
            "num_tokens": number(processor.processor, "image_seq_len", 169),
            "size": self._size(image),
            "tile": number(image.get("max_image_size") or {}, "longest_edge", 364),
            "splits": splits is None or bool(splits),
        }

    def expand(self, media: Media, frames: Sequence[int]) -> tuple[str, int]:
        rows, columns = self._grid(media.height, media.width)
        num_tokens = self.settings["num_tokens"]
        features = self._image_token * num_tokens
        tiles = "".join(
            "".join(f"{self._around}<row_{row + 1}_col_{column + 1}>{features}" for column in range(columns)) + "\n"
            for row in range(rows)
        )
        whole = f"{self._around}{self._global}{features}{self._around}"
        return (f"{tiles}\n{whole}" if tiles else whole), num_tokens * (rows * columns + 1)

    def _size(self, image: dict[str, Any]) -> int | tuple[int, int] | None:
        """Return the longest edge, or height and width, that images are resized to before they are tiled."""
        size = image.get("size") or {}
        if image.get("do_resize") is False:
            return None
        if "height" in size:
            return number(size, "height"), number(size, "width")
        return number(size, "longest_edge", 4 * 364)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of tiles; zeros if the image is one tile."""
        if not self.settings["splits"]:
            return 0, 0
        size = self.settings["size"]
        if isinstance(size, int):
            height, width = _fit(height, width, size, even=True)
            if max(height, width) > _MOST_PIXELS_A_SIDE:
                height, width = _fit(height, width, _MOST_PIXELS_A_SIDE, even=False)
        elif size:
            height, width = size
        tile = self.settings["tile"]
        shape = width / height
        if width >= height:
            width = math.ceil(width / tile) * tile
            height = math.ceil(int(width / shape) / tile) * tile
        else:
            height = math.ceil(height / tile) * tile
            width = math.ceil(int(height * shape) / tile) * tile
        if max(height, width) <= tile:
            return 0, 0
        return height // tile, width // tile


def _fit(height: int, width: int, longest: int, even: bool) -> tuple[int, int]:
    """Scale the longer side to `longest`, and the other side alike, rounded up to an even number if asked."""
    shape = width / height
    if width >= height:
        height, width = int(longest / shape), longest
        height += even and height % 2
    else:
        height, width = longest, int(longest * shape)
        width += even and width % 2
    return max(height, 1), max(width, 1)
