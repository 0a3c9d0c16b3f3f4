"""Make sizes that count tokens smaller than the members of a probe, so that the probe shows effects of long packs.

Such sizes are windows, blocks, chunks, the number of keys an indexer picks, lengths at which a scale changes. They are
found by their effect, not by their names: such a size shapes no weights, and making it smaller does not change the
logits of a text's first tokens.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from energon_pack.training.wrapped import parts

#: tokens: the product of two such sizes (block length × number of blocks) is still less than a member's length
SMALL = 3
_Model = TypeVar("_Model")
_Answer = TypeVar("_Answer")
#: names that count no tokens: widths, layers, ids, pixels, rates, factors; and limits of positions, which `shrink` sets
_OTHER = re.compile(
    r"\w*(dim|head|hidden|intermediate|inner|width|rank|vocab|layer|expert|position_embeddings|scalar)\w*"
    r"|\w*(image|video|audio|patch|crop|resolution|second)\w*|\w*(_id|_ids|_index|seed)|_\w*"
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
    """Build a model whose sizes that count text tokens are `SMALL`, except sizes that no pack reaches.

    Args:
        config: a config with few and small layers; it is changed.
        longest: tokens of the longest pack; None: packs may be of any length.
        shapes: returns the shapes of the weights that a model of a config has.
        build: builds a model of a config; equal shapes get equal weights.
        logits: runs a text of more than `SMALL` tokens alone in a model: [L, vocabulary]; raises if it can't be run.
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
    """Answer a question while these sizes are small; None: the class refuses such sizes."""
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
    """Yield the numbers in the text config and the configs around it; a vision tower's count no text tokens."""
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
