"""Make M-RoPE rows: by a known rule if a processor's models follow one, or by the model class itself."""

import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from energon_pack.samples.media.kinds import IMAGE, VIDEO
from energon_pack.training.encoded import USE_AUDIO_IN_VIDEO, has_audio_in_video
from energon_pack.training.layout import Member

_log = logging.getLogger(__name__)

#: name of an input in `forward` → its name in `get_rope_index`
_INPUT_ALIASES = {"second_per_grids": "video_second_per_grid"}
#: input of `get_rope_index` with lengths of sounds → the mask whose sums they are
_LENGTHS_FROM_MASKS = {"audio_seqlens": "feature_attention_mask"}
NUM_ROPE_ROWS = 3
_VISUAL_TYPES = torch.tensor([IMAGE.token_type, VIDEO.token_type])
#: values of `model.rope` with M-RoPE; all others mean plain positions
ROPE_KINDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


@dataclass(frozen=True)
class RopeRule:
    """A known rule by which models number M-RoPE positions, and its settings."""

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
    """Return the M-RoPE rows [3, L] of one member.

    Args:
        types: [L]: 0 text, 1 image, 2 video.
        image_grid_thw, video_grid_thw: [media, 3] in patches.
        second_per_grid_ts: [videos] seconds from one row of a video's grid to the next.
    """
    if image_grid_thw is None and video_grid_thw is None and not bool(types.any()):
        return torch.arange(len(types)).expand(3, -1)
    grids = {1: _grid_sizes(image_grid_thw), 2: _grid_sizes(video_grid_thw)}
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


def _grid_sizes(grids: Tensor | None) -> list[tuple[int, int, int]]:
    return [] if grids is None else [(t, h, w) for t, h, w in grids.tolist()]


class RopeRowsError(ValueError):
    """A model class can't make M-RoPE rows from its processor's outputs."""


class OwnRope:
    """Makes M-RoPE rows by a model class's own `get_rope_index`."""

    def __init__(self, make: Any, config: Any):
        """Build the model without weights."""
        self._make, self._config = make, config
        with torch.device("meta"):
            model = make._from_config(config)
        self.get_rope_index = next(part for part in model.modules() if hasattr(part, "get_rope_index")).get_rope_index
        self._takes = frozenset(inspect.signature(self.get_rope_index).parameters)

    def __reduce__(self) -> tuple[type["OwnRope"], tuple[Any, Any]]:
        """Pickle only the class and the config; another process makes its own model."""
        return OwnRope, (self._make, self._config)

    def __call__(self, ids: Tensor, types: Tensor, media: Mapping[str, Tensor]) -> Tensor:
        """Return the M-RoPE rows [3, L] of one member."""
        if not media:
            return torch.arange(len(ids)).expand(NUM_ROPE_ROWS, -1)
        arguments = {
            "input_ids": ids[None],
            "mm_token_type_ids": types[None],
            "attention_mask": torch.ones_like(ids)[None],
            **media,
            **{name: media[other] for name, other in _INPUT_ALIASES.items() if other in media},
            **{name: media[mask].sum(-1) for name, mask in _LENGTHS_FROM_MASKS.items() if mask in media},
            USE_AUDIO_IN_VIDEO: has_audio_in_video(types),
        }
        try:
            taken = {name: value for name, value in arguments.items() if name in self._takes}
            rows: Tensor = self.get_rope_index(**taken)[0]
        except Exception as error:  # foreign code, with a config that may say too little
            why = " ".join(f"{type(error).__name__} {error}".split())[:200]
            raise RopeRowsError(f"{self._make.__name__} makes no positions of its processor's tokens: {why}") from None
        if rows.shape != (NUM_ROPE_ROWS, 1, len(ids)):
            raise RopeRowsError(
                f"{self._make.__name__} has {len(rows)} rows of positions, batches have room for {NUM_ROPE_ROWS} beside"
                " that of the text: train it on unpacked samples"
            )
        return rows[:, 0].long()

    def refuse_unseen_media(self, members: Sequence[Member]) -> None:
        """Raise RopeRowsError if images or videos have the same positions as text; sounds are numbered as text is."""
        for member in members:
            is_seen = bool(torch.isin(member.types, _VISUAL_TYPES).any())
            if is_seen and member.rope is not None and bool((member.rope == member.rope[0]).all()):
                raise RopeRowsError(
                    f"{self._make.__name__} finds no media in the tokens of this processor: config.json of the model in"
                    " the processor's folder says which tokens it looks for"
                )
