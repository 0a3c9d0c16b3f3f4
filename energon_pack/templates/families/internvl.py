"""InternVL: an image becomes tiles of one size and a thumbnail of the whole.

The grid is the one nearest to the image's shape, among all grids of at most `max_patches` tiles. The rule is the same
as in InternVLProcessor and its image processor of transformers.
"""

from collections.abc import Sequence

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
