"""Swap packs between steps so that every step has about the shares of the whole, and trains as many tokens. Pure.

step A  charts 45 %, chat 55 %  ──a pack of charts for one of chat──►  40 %, 60 %  both
step B  charts 35 %, chat 65 %
"""

import numpy as np
import numpy.typing as npt

from energon_pack.run.seeded import Ints

Floats = npt.NDArray[np.float64]

_TURNS = 6
_TRIED = 24  # packs of each step that are tried for a swap
_MANY = 500_000  # packs: if there are more, half as many are tried
_TOTAL = 0.3  # weight of even numbers of trained tokens, relative to even shares
_PAIRS = 512  # pairs of steps that are handled together


def with_even_shares(order: Ints, size: int, amounts: Floats) -> Ints:
    """Return packs in an order in which every step has about the shares of the whole.

    Neighbouring steps form pairs: first steps 0 and 1, 2 and 3, …, then 1 and 2, 3 and 4, … In each pair two packs
    change places if that brings both steps nearer to the shares.

    Args:
        order: int64[num_packs].
        size: packs of a step.
        amounts: float64[num_packs, num_kinds], for example the trained tokens of each entry of a mixture.
    """
    num = len(order) // size
    steps = order[: num * size].reshape(num, size).copy()
    total = amounts.sum(axis=1)
    mean = max(1e-9, float(total.mean()))
    off = (amounts - np.outer(total, amounts.sum(axis=0) / max(1e-9, float(total.sum())))) / mean
    tried = min(size, _TRIED if len(order) <= _MANY else _TRIED // 2)
    off = np.column_stack((off, _TOTAL * (total - mean) / mean))
    for turn in range(_TURNS):
        first = np.arange(turn % 2, num - 1, 2)
        places = (np.arange(tried) * max(1, size // tried) + turn * 5) % size
        for start in range(0, len(first), _PAIRS):
            _swap(steps, first[start : start + _PAIRS], places, off)
    return np.concatenate((steps.ravel(), order[num * size :]))


def _swap(steps: Ints, first: Ints, places: Ints, off: Floats) -> None:
    """Swap a pack of each step in `first` with a pack of the next step if that brings both nearer to the shares, in
    place."""
    one, other = steps[first], steps[first + 1]
    gap = (off[one].sum(axis=1) - off[other].sum(axis=1)) / 2
    mine, theirs = one[:, places], other[:, places]
    left = np.zeros((len(first), len(places), len(places)))
    for kind in range(off.shape[1]):  # a sum over an axis would round differently on other machines
        moved = off[mine, kind][:, :, None] - off[theirs, kind][:, None, :]
        left += (gap[:, kind, None, None] - moved) ** 2
    flat = left.reshape(len(first), -1)
    best = flat.argmin(axis=1)
    rows = np.flatnonzero(flat[np.arange(len(first)), best] < (gap**2).sum(axis=1))
    here, there = (places[place[rows]] for place in np.divmod(best, len(places)))
    steps[first[rows], here], steps[first[rows] + 1, there] = other[rows, there], one[rows, here]
