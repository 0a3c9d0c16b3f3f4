"""Sizes of a config that count tokens, made smaller than members are: what begins behind them shows in a probe.

They are found by what they do, not by their names. Such a size shapes no weights, and where it is smaller, the first
tokens of a text stay as they were: windows, blocks, chunks, how many keys an indexer picks, lengths at which a scale
changes.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from energon_pack.training.sizes import parts

#: tokens: two sizes that are multiplied, blocks and their number, are still fewer than those of a member
SMALL = 3
_Model = TypeVar("_Model")
_Answer = TypeVar("_Answer")
#: surely widths, counts of layers, ids, pixels, factors, or limits of positions (these are `shrink`'s)
_OTHER = re.compile(
    r"\w*(dim|head|hidden|intermediate|inner|width|rank|vocab|layer|expert|position_embeddings|scalar)\w*"
    r"|\w*(image|video|audio|patch|crop|resolution)\w*|\w*(_id|_ids|_index|seed)|_\w*"
)


@dataclass(frozen=True)
class Size:
    """A number of a config."""

    holder: dict[str, Any]
    name: str
    value: int

    def set(self, value: int) -> None:
        """Change it in the config."""
        self.holder[self.name] = value


def with_small_sizes(
    config: Any,
    longest: int | None,
    shapes: Callable[[Any], object],
    build: Callable[[Any], _Model],
    logits: Callable[[_Model], Tensor],
) -> _Model:
    """A model in which all sizes are small that count tokens of the text, but those that no pack reaches.

    Args:
        config: of few and small layers; it is changed.
        longest: tokens of the longest pack; None: packs may be of any length.
        shapes: of the weights of a model of a config.
        build: a model of a config; its weights are the same where their shapes are.
        logits: [L, vocabulary] of a text of more than `SMALL` tokens, alone in a model; raises where it can't be run.
    """
    model = build(config)
    sizes = [size for size in _numbers(config) if longest is None or size.value < longest]
    shaped = shapes(config) if sizes else None
    sizes = [size for size in sizes if _with([size], lambda: shapes(config) == shaped or None)]
    if not sizes:
        return model
    first = logits(model)[: SMALL - 1]
    tolerance = (2e-2 if first.dtype.itemsize < 4 else 1e-4) * max(1.0, float(first.abs().max()))

    def alike() -> _Model | None:
        other = build(config)
        return other if torch.allclose(logits(other)[: SMALL - 1], first, rtol=0, atol=tolerance) else None

    small = _with(sizes, alike)
    if small is None:
        sizes = [size for size in sizes if _with([size], alike) is not None]
    for size in sizes:
        size.set(SMALL)
    return build(config) if small is None else small


def _with(sizes: list[Size], question: Callable[[], _Answer | None]) -> _Answer | None:
    """The answer while sizes are small; None where the class refuses them."""
    try:
        for size in sizes:
            size.set(SMALL)
        return question()
    except Exception:  # foreign code, with a config that may not fit it
        return None
    finally:
        for size in sizes:
            size.set(size.value)


def _numbers(config: Any) -> Iterator[Size]:
    """Numbers of the config of a text and of what is around it; those of a vision tower count no tokens of a row."""
    text = config.get_text_config()
    for part in {id(part): part for part in (config, *parts(text))}.values():
        yield from _within(vars(part))


def _within(holder: dict[str, Any]) -> Iterator[Size]:
    for name, value in list(holder.items()):
        if _OTHER.fullmatch(str(name)):
            continue
        if type(value) is int and value > SMALL:
            yield Size(holder, name, value)
        elif isinstance(value, dict):
            yield from _within(value)
