"""Mend steps that train on far more or fewer tokens than others, by one swap of packs for each such step."""

import numpy as np

from energon_pack.plan.alike import Floats
from energon_pack.run.seeded import Ints

_MOST = 16  # steps, and one of so many: if more steps are off, all are laid out anew
_ONE_OF = 8
_TRIED = 8  # packs of a step that are tried: those that contribute most to its distance


def mended(costs: Floats, trained: Ints, read: Ints, size: int, most_off: float) -> Ints:
    """Return the packs in reading order, after the swaps that make ranks wait least.

    Args:
        costs: float64[num_costs, num_packs].
        size: packs of a step, one per rank.
        most_off: how far the trained tokens of a step may be from the mean of all steps.
    """
    if len(read) < size or most_off == np.inf:
        return read
    num = len(read) // size * size
    steps = read[:num].reshape(-1, size).copy()
    sums = trained[steps].sum(axis=1)
    least, most = sums.mean() * (1 - most_off), sums.mean() * (1 + most_off)
    astray = np.flatnonzero((sums < least) | (sums > most))
    if len(astray) > min(_MOST, len(steps) // _ONE_OF):
        return read
    for step in astray.tolist():
        sign = 1 if sums[step] > most else -1
        own = np.argsort(-sign * trained[steps[step]], kind="stable")[:_TRIED, None]
        moved = trained[steps[step, own]] - trained[steps.ravel()]  # [own, packs]
        there = np.repeat(sums, size) + moved
        fits = (there >= least) & (there <= most) & (sums[step] - moved >= least) & (sums[step] - moved <= most)
        fits[:, step * size : (step + 1) * size] = False
        if not fits.any():
            return read
        of_packs = costs[:, steps]
        before, others = of_packs.max(axis=2), _most_of_others(of_packs)
        after = np.maximum(others[:, step, own], of_packs.reshape(len(costs), 1, -1))
        after += np.maximum(others.reshape(len(costs), 1, -1), of_packs[:, step, own])
        rise = (after - np.repeat(before, size, axis=1)[:, None]).sum(axis=0)
        one, other = divmod(int(np.where(fits, rise, np.inf).argmin()), num)
        here, place = (step, int(own[one, 0])), divmod(other, size)
        steps[here], steps[place] = steps[place], steps[here]
        sums[step] -= moved[one, other]
        sums[place[0]] += moved[one, other]
    return np.concatenate((steps.ravel(), read[num:]))


def _most_of_others(values: Floats) -> Floats:
    """Return for each pack the largest value of the other packs in its step: [..., step, pack]; 0 if it is alone."""
    if values.shape[-1] == 1:
        return np.zeros_like(values)
    in_order = np.sort(values, axis=-1)
    return np.where(values == in_order[..., -1:], in_order[..., -2:-1], in_order[..., -1:])
