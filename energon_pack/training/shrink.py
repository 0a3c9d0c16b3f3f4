"""Shrink a config to few and small layers, and let its RoPE change with length within a few tokens."""

from collections.abc import Iterator
from typing import Any

from energon_pack.training.sizes import shrink_sizes
from energon_pack.training.wrapped import parts

#: standard deviation of random weights: with the 0.02 of most configs, a leak between members would hardly show
_INITIALIZER_RANGE = 0.1
#: kinds of RoPE whose angles depend on the longest position of a batch, and so on other members
_BY_LENGTH = ("dynamic", "longrope")
_SHORT = 12


def shrink(config: Any, longest: int | None = None) -> Any:
    """Shrink a config to few and small layers; vocabulary, special tokens and patches stay.

    Args:
        config: a config of transformers; it is changed.
        longest: tokens of the longest pack; None: any length. Some RoPE changes for texts longer than the model was
            trained for. If packs can be that long, it changes here within members of a few tokens.
    """
    shrink_sizes(config)
    for part in parts(config):
        if isinstance(getattr(part, "initializer_range", None), float):
            part.initializer_range = max(_INITIALIZER_RANGE, part.initializer_range)
        for rope in _ropes(getattr(part, "rope_parameters", None)):
            _shorten(rope, part, longest)
    return config


def _ropes(parameters: Any) -> Iterator[dict[str, Any]]:
    """Yield the RoPE settings of a config; some configs have them for each kind of layer."""
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
