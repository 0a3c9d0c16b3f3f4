"""Compute the M-RoPE positions of one member without a model, as the Qwen-VL models of transformers do.

Text counts on in all three rows. A token of an image or video has the position at which the medium begins, plus its
place in the grid (time, height, width). Text after it goes on after the grid's longer side. Qwen2.5-VL counts time in
seconds; Qwen3-VL writes the time between the frames and takes each frame for a grid of its own.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

#: values of `model.rope` with M-RoPE; all others mean plain positions
ROPE_KINDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


@dataclass(frozen=True)
class RopeRule:
    """The settings of a model that its positions depend on."""

    kind: str  # of ROPE_KINDS
    merge_size: int = 2
    tokens_per_second: float | None = None  # of Qwen2.5-VL's vision config; None: not known


def rope_positions(
    rope: RopeRule,
    types: Tensor,
    image_grid_thw: Tensor | None = None,
    video_grid_thw: Tensor | None = None,
    second_per_grid_ts: Tensor | None = None,
) -> Tensor:
    """Return the three rows of one member.

    Args:
        types: [L]: 0 text, 1 image, 2 video.
        image_grid_thw, video_grid_thw: [media, 3] in patches.
        second_per_grid_ts: [videos] seconds from one row of a video's grid to the next.
    """
    if image_grid_thw is None and video_grid_thw is None and not bool(types.any()):
        return torch.arange(len(types)).expand(3, -1)
    grids = {1: _grids(image_grid_thw), 2: _grids(video_grid_thw)}
    steps = [1.0] * len(grids[2])
    if rope.kind == "qwen3_vl":
        grids[2] = [(1, height, width) for time, height, width in grids[2] for _ in range(time)]
        steps = [1.0] * len(grids[2])
    elif rope.kind == "qwen2_5_vl" and second_per_grid_ts is not None:
        steps = [_tokens_per_second(rope) * float(seconds) for seconds in second_per_grid_ts]
    waiting = {1: iter([(grid, 1.0) for grid in grids[1]]), 2: iter(zip(grids[2], steps, strict=True))}
    kinds, lengths = torch.unique_consecutive(types, return_counts=True)
    pieces: list[Tensor] = []
    position = num_tokens = 0
    for kind, length in zip(kinds.tolist(), lengths.tolist(), strict=True):
        if kind == 0:
            pieces.append((torch.arange(length) + position).expand(3, -1))
            position += length
            continue
        medium = next(waiting[kind], None)
        if medium is None:
            raise ValueError(f"visual tokens at {num_tokens} have no grid")
        (time, height, width), step = medium
        height, width = height // rope.merge_size, width // rope.merge_size
        if time * height * width != length:
            raise ValueError(f"{length} visual tokens at {num_tokens} for a grid of {time}×{height}×{width}")
        pieces.append(_grid_rows(time, height, width, step) + position)
        position += max(height, width)
        num_tokens += length
    if any(next(grid, None) is not None for grid in waiting.values()):
        raise ValueError("there are more grids than runs of visual tokens")
    return torch.cat(pieces, dim=1)


def _tokens_per_second(rope: RopeRule) -> float:
    if rope.tokens_per_second is None:
        raise ValueError(
            "positions in a video depend on tokens_per_second of the model's vision_config: load the processor from a"
            " folder with the model's config.json, or give the encoder tokens_per_second=..."
        )
    return rope.tokens_per_second


@lru_cache(64)  # many images are of one size
def _grid_rows(time: int, height: int, width: int, step: float) -> Tensor:
    """Return the rows [3, time · height · width] of one medium, from 0."""
    grid = torch.empty((3, time, height, width), dtype=torch.int64)
    grid[0] = (torch.arange(time) * step).long()[:, None, None]
    grid[1] = torch.arange(height)[:, None]
    grid[2] = torch.arange(width)
    return grid.view(3, -1)


def _grids(grids: Tensor | None) -> list[tuple[int, int, int]]:
    return [] if grids is None else [(t, h, w) for t, h, w in grids.tolist()]
