"""Cut an image into tiles and add a small picture of the whole, as InternVL and LLaVA-OneVision do.

InternVL's grid is the one nearest to the image's shape, among all grids of at most `max_patches` tiles. The rule is the
same as in InternVLProcessor and its image processor of transformers.

LLaVA-OneVision's grid has the listed resolution that keeps most of the image. The image's tokens are its share of that
grid, one newline token per row, and the small picture. The rule is the same as in LlavaOnevisionProcessor of
transformers for images in one flat list; for nested lists it has another rule, with only small pictures.
"""

import math
from collections.abc import Sequence

from energon_pack.errors import PackError
from energon_pack.samples.media.medium import Media
from energon_pack.templates.families.rules import FrameSampling, MediaRules, ProcessorSettings, positive_int


class InternVL(MediaRules):
    """The rules of InternVL3 and its relatives in their transformers form (`-hf`): equal tiles, and a thumbnail."""

    processors = ("InternVLProcessor",)

    def __init__(self, processor: ProcessorSettings):
        """Read the needed settings of a processor."""
        image, tokens = processor.image, processor.tokens
        self._image_token = tokens.get("context_image_token", "<IMG_CONTEXT>")
        self._begin_token, self._end_token = (
            tokens.get("start_image_token", "<img>"),
            tokens.get("end_image_token", "</img>"),
        )
        self.media_tokens = {"image": self._image_token, "video": tokens.get("video_token", "<video>")}
        self.feature_tokens = {"video": self._image_token}
        self.mark_tokens = (self._begin_token, self._end_token)
        size = image.get("size") or {}
        self._tile_size = (positive_int(size, "height"), positive_int(size, "width"))
        # Published settings have 384 for frames, with which the model can't make the counted tokens.
        self.forced_frame_size = {"height": self._tile_size[0], "width": self._tile_size[1]}
        self._num_tile_tokens = positive_int(processor.processor, "image_seq_length", 256)
        least, most = positive_int(image, "min_patches", 1), positive_int(image, "max_patches", 12)
        if processor.kwargs.get("crop_to_patches") is False:  # in the file it has no effect
            least = most = 1
        self._grids = sorted(
            ((w, h) for w in range(1, most + 1) for h in range(1, most + 1) if least <= w * h <= most),
            key=lambda grid: grid[0] * grid[1],
        )
        self.frames = FrameSampling({"initial_shift": True, **processor.video})
        self.settings = {
            "tile": self._tile_size,
            "num_tokens": self._num_tile_tokens,
            "patches": [least, most],
            "frames": self.frames.settings,
        }

    def expand(self, media: Media, frames: Sequence[int]) -> tuple[str, int]:
        if media.kind == "video":
            frame = f"{self._begin_token}{self._image_token * self._num_tile_tokens}{self._end_token}"
            return "\n".join(f"Frame{i + 1}: {frame}" for i in range(len(frames))), len(frames) * self._num_tile_tokens
        columns, rows = self._best_grid(media.height, media.width)
        num_tokens = self._num_tile_tokens * (columns * rows + 1 if columns * rows > 1 else 1)
        return f"{self._begin_token}{self._image_token * num_tokens}{self._end_token}", num_tokens

    def _best_grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the (columns, rows) nearest to the image's shape; of two, the larger if the image fills half of it."""
        shape, area = width / height, width * height
        best, least = (1, 1), float("inf")
        for grid in self._grids:
            difference = abs(shape - grid[0] / grid[1])
            half_of_grid = 0.5 * self._tile_size[0] * self._tile_size[1] * grid[0] * grid[1]
            if difference < least or (difference == least and area > half_of_grid):
                best, least = grid, difference
        return best


class _IntegerSteps(FrameSampling):
    """Chooses frames at equal distances, as transformers does by default: in whole numbers, and at least one."""

    def num_wanted(self, video: Media) -> int:
        return max(1, super().num_wanted(video))

    def spread_indices(self, total: int, number: int) -> list[int]:
        return [i * total // number for i in range(number)]


class LlavaOneVision(MediaRules):
    """The rules of LLaVA-OneVision in its transformers form (`llava-hf`): tiles, and a small picture of the whole."""

    processors = ("LlavaOnevisionProcessor",)

    def __init__(self, processor: ProcessorSettings):
        """Read the needed settings of a processor."""
        settings, tokens = processor.processor, processor.tokens
        self.media_tokens = {
            kind: tokens.get(f"{kind}_token") or settings.get(f"{kind}_token") or f"<{kind}>"
            for kind in ("image", "video")
        }
        size = processor.image.get("size") or {}
        pinpoints = processor.image.get("image_grid_pinpoints")
        if not pinpoints:
            raise PackError("model.processor's image settings list no image_grid_pinpoints: not LLaVA-OneVision's")
        num_base = positive_int(settings, "num_image_tokens")
        ratio = settings.get("vision_aspect_ratio") or "anyres_max_9"
        self._side_tokens = math.isqrt(num_base)
        self._resolutions = [(int(height), int(width)) for height, width in pinpoints]
        self._tile_size = (
            positive_int(size, "height", size.get("shortest_edge")),
            positive_int(size, "width", size.get("shortest_edge")),
        )
        self._max_tiles = int(ratio.removeprefix("anyres_max_"))
        self._num_dropped_tokens = 1 if settings.get("vision_feature_select_strategy") == "default" else 0
        self._num_thumbnail_tokens = num_base
        self.frames = _IntegerSteps(processor.video)
        self.settings = {
            "num_image_tokens": num_base,
            "grid": self._resolutions,
            "tile": self._tile_size,
            "most": self._max_tiles,
            "less": self._num_dropped_tokens,
            "frames": self.frames.settings,
        }

    def needs_equal_frame_counts(self) -> bool:
        return True

    def expand(self, medium: Media, frame_indices: Sequence[int]) -> tuple[str, int]:
        if medium.kind == "video":
            pooled = math.ceil(self._side_tokens / 2)
            num_tokens = len(frame_indices) * pooled * pooled + 1
        else:
            num_tokens = self._num_tokens(medium.height, medium.width) - self._num_dropped_tokens
        return self.media_tokens[medium.kind] * num_tokens, num_tokens

    def _num_tokens(self, height: int, width: int) -> int:
        best_height, best_width = self._best_resolution(height, width)
        rows = self._side_tokens * (best_height // self._tile_size[0])
        columns = self._side_tokens * (best_width // self._tile_size[1])
        if width / height > columns / rows:  # the image does not fill the grid: the rest is cut off
            rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
        else:
            columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
        ratio = math.sqrt(rows * columns / (self._max_tiles * self._side_tokens**2))
        if ratio > 1.1:
            rows, columns = int(rows // ratio), int(columns // ratio)
        return rows * columns + rows + self._num_thumbnail_tokens

    def _best_resolution(self, height: int, width: int) -> tuple[int, int]:
        """Return the listed (height, width) that keeps most pixels of the image; of several, the least unused area."""

        def fitness(resolution: tuple[int, int]) -> tuple[int, int]:
            scale = min(resolution[1] / width, resolution[0] / height)
            kept = min(int(width * scale) * int(height * scale), width * height)
            return kept, kept - resolution[0] * resolution[1]

        return max(self._resolutions, key=fitness)
