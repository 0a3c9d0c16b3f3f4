"""A small model of a class: few and narrow layers of the same kinds, with its own vocabulary and media."""

import copy
from collections.abc import Iterator
from typing import Any

import torch

from energon_pack.training.sizes import parts, shrink_sizes

#: shorter than members are, so that what they hide is hidden
_WINDOWS = ("sliding_window", "attention_chunk_size")
_WINDOW = 8
#: scales of attention that change so far into a row, wherever a member begins in it
_BY_ROW = ("floor_scale",)
#: of random weights: with the 0.02 of most configs, what leaks would hardly show
_INITIALIZER_RANGE = 0.1
#: of each token: all 150,000 would take gigabytes, and say the same
_NUM_LOGITS = 256
#: RoPE whose angles depend on the longest position of a batch, and so on other members
_BY_LENGTH = ("dynamic", "longrope")
_SHORT = 12


def small_model(make: Any, config: Any, attention: str | None = None, longest: int | None = None) -> Any:
    """A random small model, in float32 where its attention has it: in bfloat16, packed and alone differ by rounding.

    Args:
        make: its class.
        config: of the full size; it stays as it is.
        attention: attention implementation; None: the class's own choice.
        longest: tokens of the longest pack; see `shrink`.
    """
    small = shrink(copy.deepcopy(config), longest)
    chosen = {"attn_implementation": attention} if attention else {}
    with torch.random.fork_rng():  # the user's own seed stays
        torch.manual_seed(0)
        model = (
            make._from_config(small, dtype=torch.float32, **chosen) if hasattr(make, "_from_config") else make(small)
        )
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if isinstance(head, torch.nn.Linear):
        head.weight = torch.nn.Parameter(head.weight[:_NUM_LOGITS])
        head.bias = None if head.bias is None else torch.nn.Parameter(head.bias[:_NUM_LOGITS])
    return (model.bfloat16() if attention and "flash" in attention else model.float()).eval()


def shrink(config: Any, longest: int | None = None) -> Any:
    """A config of the same class with few and small layers; vocabulary, special tokens and patches stay.

    Args:
        config: of transformers; it is changed.
        longest: tokens of the longest pack: RoPE that changes for longer texts than a model was trained for changes
            here for members of a few tokens, and so does attention whose scale grows along a row (Llama 4), unless
            packs are no longer than that; None: they may be of any length.
    """
    shrink_sizes(config)
    for part in parts(config):
        for name in _WINDOWS:
            if isinstance(getattr(part, name, None), int):
                setattr(part, name, min(_WINDOW, getattr(part, name)))
        for name in _BY_ROW:
            if isinstance(getattr(part, name, None), int) and (longest is None or longest > getattr(part, name)):
                setattr(part, name, min(_WINDOW, getattr(part, name)))
        if isinstance(getattr(part, "initializer_range", None), float):
            part.initializer_range = max(_INITIALIZER_RANGE, part.initializer_range)
        for rope in _ropes(getattr(part, "rope_parameters", None)):
            _shorten(rope, part, longest)
    return config


def is_by_length(config: Any) -> bool:
    """Whether angles of RoPE change with the longest position of a batch."""
    every = (rope for part in parts(config) for rope in _ropes(getattr(part, "rope_parameters", None)))
    return any(rope.get("rope_type") in _BY_LENGTH for rope in every)


def _ropes(parameters: Any) -> Iterator[dict[str, Any]]:
    """The settings of RoPE of a config, which some have by the kind of layer."""
    if isinstance(parameters, dict):
        if "rope_type" in parameters:
            yield parameters
        for value in parameters.values():
            yield from _ropes(value)


def _shorten(rope: dict[str, Any], part: Any, longest: int | None) -> None:
    if rope.get("rope_type") not in _BY_LENGTH:
        return
    trained = rope.get("original_max_position_embeddings") or getattr(part, "max_position_embeddings", None)
    if longest is not None and trained is not None and longest <= trained:
        return
    rope["original_max_position_embeddings"] = _SHORT
    if rope["rope_type"] == "dynamic":
        part.max_position_embeddings = _SHORT
    if hasattr(part, "original_max_position_embeddings"):
        part.original_max_position_embeddings = _SHORT
