"""Take gradients of a loss, and compare those of a batch with those of its samples alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import graph

from energon_pack.training.finding import largest
from energon_pack.training.trial_inputs import Placed

#: values kept of the gradient of each weight
_NUM_VALUES = 4096
_Pair = tuple[Tensor | None, Tensor | None]


class CheckpointError(Exception):
    """A checkpoint would give gradients to all weights: they have to need none."""


@dataclass(frozen=True)
class Gradients:
    """The gradients of one run; those that no loss reaches are None."""

    #: [B, S, width]; None: nothing is followed
    embedded: Tensor | None = None
    #: of pixels and sounds
    media: Sequence[Tensor | None] = ()
    #: by weight, thinned
    weights: Sequence[Tensor | None] = ()


def gradients_of(
    loss: Tensor, embedded: Tensor, media: Sequence[Tensor], weights: Sequence[Tensor], is_frozen: bool
) -> Gradients:
    """Return the gradients of a loss.

    Raises:
        CheckpointError: weights need gradients, and a checkpoint would write them.
    """
    followed = [embedded, *media, *weights]
    if is_frozen:
        embedded.retain_grad()
        torch.autograd.backward(loss)
        taken: Sequence[Tensor | None] = [one.grad for one in followed]
    elif _has_backwards_within(loss):
        raise CheckpointError
    else:
        taken = _followed_back(loss, followed)
    of_media, of_weights = taken[1 : 1 + len(media)], taken[1 + len(media) :]
    return Gradients(taken[0], of_media, [_thinned(one) for one in of_weights])


def _followed_back(loss: Tensor, followed: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """As `torch.autograd.grad`, which leaves `Routing`: checkpoints run parts once more, and choose experts again."""
    start = (torch.ones_like(loss),)
    return graph._engine_run_backward((loss,), start, False, False, tuple(followed), True, accumulate_grad=False)


def _has_backwards_within(loss: Tensor) -> bool:
    """Say whether a checkpoint runs a backward of its own within that of the loss, as those with `use_reentrant` do."""
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            if "checkpoint" in node.name().lower():
                return True
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return False


def _thinned(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.flatten()[:: -(-gradient.numel() // _NUM_VALUES)].clone()


def compare_gradients(packed: Gradients, pairs: Sequence[tuple[Placed, Gradients]]) -> tuple[float, float]:
    """Return the largest difference of a gradient, and the largest one of others' inputs, as shares of the largest."""
    assert packed.embedded is not None
    expected = torch.zeros_like(packed.embedded, dtype=torch.float32)
    is_own = torch.zeros(expected.shape[:2], dtype=torch.bool, device=expected.device)
    waiting = iter(packed.media)
    media: list[_Pair] = []
    strangers: list[Tensor | None] = []
    weights: Sequence[Tensor | None] = [None] * len(packed.weights)
    for one, alone in pairs:
        own = [next(waiting) for _ in one.leaves]
        if not one.in_loss:
            strangers += own
            continue
        media += zip(own, alone.media, strict=True)
        weights = [_sum(first, second) for first, second in zip(weights, alone.weights, strict=True)]
        is_own[one.row, one.places] = True
        expected[one.row, one.places] += 0.0 if alone.embedded is None else alone.embedded[0].float()
    embedded: list[_Pair] = [(packed.embedded.float()[is_own], expected[is_own])]
    kinds: list[list[_Pair]] = [embedded, media, [*zip(packed.weights, weights, strict=True)]]
    others = [_share([packed.embedded[~is_own]], [expected]), _share(strangers, [pair[1] for pair in media])]
    shares = [_share([_difference(*pair) for pair in kind], [pair[1] for pair in kind]) for kind in kinds]
    return largest(shares), largest(others)


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first + second


def _difference(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return _sum(first, None if second is None else -second)


def _share(values: Sequence[Tensor | None], whole: Sequence[Tensor | None]) -> float:
    """Return the largest value as a share of the largest of the whole; None is 0."""
    return _size(values) / max(_size(whole), 1e-30)


def _size(values: Iterable[Tensor | None]) -> float:
    return largest(float(one.abs().max()) for one in values if one is not None and one.numel())
