"""Put packs of like cost side by side, so that no rank of a step waits and steps train on about as many tokens.

    packs ──halved by cost, again and again──► blocks of like cost
          └─ halves trade packs where one would train on too few tokens ─┘

Expensive packs hold many visual tokens, and train on few. Sorted by cost alone, steps would differ more in trained
tokens than in a random order. So the expensive half trades its cheapest packs for the packs of the other half that
train on most tokens.
"""

from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_pack.run.seeded_random import Ints

Floats = npt.NDArray[np.float64]


def put_alike_costs_together(
    costs: Floats,
    packs: Ints,
    size: int,
    start: int | None = None,
    trained: Floats | None = None,
    most_off: float = inf,
) -> Ints:
    """Sort packs so that each `size` packs in a row cost about the same, in all costs.

    Halves the packs, at a multiple of `size`, by the cost for which ranks would wait longest, and then each half again.
    Source: Bentley, "Multidimensional binary search trees used for associative searching", 1975.

    Args:
        costs: float64[num_costs, num_packs].
        packs: numbers of the packs to sort; as many as a multiple of `size`.
        start: sort within blocks of so many packs; None: over all packs.
        trained: float64[num_packs] trained tokens of each pack, relative to their mean.
        most_off: how far the mean of `trained` of a half may be from 1, if the halves can trade packs to achieve it.
    """
    edges = np.arange(0, len(packs) + 1, max(1, start or len(packs)))
    while np.diff(edges).max(initial=0) > size:
        sizes = np.diff(edges)
        each_cost = costs[:, packs]
        waits = (
            np.maximum.reduceat(each_cost, edges[:-1], axis=1) - np.add.reduceat(each_cost, edges[:-1], axis=1) / sizes
        )
        block = np.repeat(np.arange(len(sizes)), sizes)
        cost = each_cost[waits.argmax(axis=0)[block], np.arange(len(packs))]
        order = _sorted_within(block, cost)
        packs, middles = packs[order], edges[:-1] + -(-sizes // (2 * size)) * size
        if trained is not None and most_off < inf:
            packs = packs[_trade_packs(cost[order], trained[packs], edges, middles, most_off)]
        edges = np.union1d(edges, middles)
    return packs


def _trade_packs(cost: Floats, trained: Floats, edges: Ints, middles: Ints, most_off: float) -> Ints:
    """Let the two halves of each block trade packs until the mean of `trained` in each is near enough to 1.

    Each block trades as few packs as that takes. Returns the new order, as places in the old one.
    """
    order = np.arange(len(cost))
    low, high = middles - edges[:-1], edges[1:] - middles
    upto = np.concatenate(([0], np.cumsum(trained)))
    of_low, of_high = upto[middles] - upto[edges[:-1]], upto[edges[1:]] - upto[middles]
    off = np.where(high > 0, _deviation(of_low, low, of_high, np.maximum(high, 1)), 0)
    chosen = np.flatnonzero(off > most_off)
    if not len(chosen):
        return order
    low, high, of_low, of_high, off = (values[chosen] for values in (low, high, of_low, of_high, off))
    sign = np.where(of_low * high > of_high * low, 1.0, -1.0)  # 1: the cheap half trains on more
    mean = (of_low + of_high) / (low + high)

    block = np.repeat(np.arange(len(chosen)), low)
    cheap = _joined_ranges(edges[chosen], low)
    cheap = cheap[_sorted_within(block, -sign[block] * trained[cheap])][_joined_ranges(np.cumsum(low) - low, high)]
    block, starts = np.repeat(np.arange(len(chosen)), high), np.cumsum(high) - high
    dear = _joined_ranges(middles[chosen], high)
    helps = sign[block] * (mean[block] - trained[dear]) > 0
    by_cost = _sorted_within(block, np.where(helps, cost[dear], 2 * cost.max()))
    dear, helps = dear[by_cost], helps[by_cost]

    moved = np.where(helps, trained[cheap] - trained[dear], 0.0)
    gone = np.cumsum(moved)
    gone -= (gone[starts] - moved[starts])[block]
    then = np.maximum(_deviation(of_low[block] - gone, low[block], of_high[block] + gone, high[block]), most_off)
    best = np.minimum.reduceat(then, starts)
    place = np.arange(len(dear)) - starts[block]
    last = np.minimum.reduceat(np.where(then == best[block], place, len(dear)), starts)
    goes = (place <= last[block]) & (best < off)[block]
    order[cheap[goes]], order[dear[goes]] = dear[goes], cheap[goes]
    return order


def _deviation(of_low: Floats, low: Ints, of_high: Floats, high: Ints) -> Any:
    """Return how far the mean of a half (sum / size) is from 1, for the worse of two halves."""
    return np.maximum(np.abs(of_low / low - 1), np.abs(of_high / high - 1))


def _sorted_within(block: Ints, values: Floats) -> Ints:
    """Return the order by value within each block. One number is the key, which sorts twice as fast as two keys."""
    least = values.min()
    order: Ints = np.argsort(block + (values - least) / max(1.001 * float(values.max() - least), 1e-300), kind="stable")
    return order


def _joined_ranges(starts: Ints, sizes: Ints) -> Ints:
    """Return `sizes` consecutive numbers from each start."""
    before = np.cumsum(sizes) - sizes
    numbers: Ints = np.arange(sizes.sum()) + np.repeat(starts - before, sizes)
    return numbers


_MAX_MENDED_STEPS = 16  # steps, and one of so many: if more steps are off, all are laid out anew
_MENDED_ONE_OF = 8
_MAX_TRIED_PACKS = 8  # packs of a step that are tried: those that contribute most to its distance


def even_out_trained_tokens(costs: Floats, trained: Ints, read: Ints, size: int, most_off: float) -> Ints:
    """Swap packs between steps until each trains on about as many tokens; take the swaps that cost least waiting.

    Returns `read` unchanged if too many steps are off, or no swap helps one of them.

    Args:
        costs: float64[num_costs, num_packs].
        trained: int64[num_packs] trained tokens.
        read: the packs in the order in which all ranks together read them.
        size: packs of a step, one per rank.
        most_off: how far the trained tokens of a step may be from the mean of all steps, as a share of it.
    """
    if len(read) < size or most_off == np.inf:
        return read
    num = len(read) // size * size
    steps = read[:num].reshape(-1, size).copy()
    sums = trained[steps].sum(axis=1)
    least, most = sums.mean() * (1 - most_off), sums.mean() * (1 + most_off)
    astray = np.flatnonzero((sums < least) | (sums > most))
    if len(astray) > min(_MAX_MENDED_STEPS, len(steps) // _MENDED_ONE_OF):
        return read
    for step in astray.tolist():
        sign = 1 if sums[step] > most else -1
        ours = np.argsort(-sign * trained[steps[step]], kind="stable")[:_MAX_TRIED_PACKS, None]
        moved = trained[steps[step, ours]] - trained[steps.ravel()]  # [own, packs]
        sums_then = np.repeat(sums, size) + moved
        fits = (sums_then >= least) & (sums_then <= most) & (sums[step] - moved >= least) & (sums[step] - moved <= most)
        fits[:, step * size : (step + 1) * size] = False
        if not fits.any():
            return read
        of_packs = costs[:, steps]
        before, rest = of_packs.max(axis=2), _max_of_others(of_packs)
        after = np.maximum(rest[:, step, ours], of_packs.reshape(len(costs), 1, -1))
        after += np.maximum(rest.reshape(len(costs), 1, -1), of_packs[:, step, ours])
        rise = (after - np.repeat(before, size, axis=1)[:, None]).sum(axis=0)
        one, other = divmod(int(np.where(fits, rise, np.inf).argmin()), num)
        here, place = (step, int(ours[one, 0])), divmod(other, size)
        steps[here], steps[place] = steps[place], steps[here]
        sums[step] -= moved[one, other]
        sums[place[0]] += moved[one, other]
    return np.concatenate((steps.ravel(), read[num:]))


def _max_of_others(values: Floats) -> Floats:
    """Return for each pack the largest value of the other packs in its step: [..., step, pack]; 0 if it is alone."""
    if values.shape[-1] == 1:
        return np.zeros_like(values)
    in_order = np.sort(values, axis=-1)
    return np.where(values == in_order[..., -1:], in_order[..., -2:-1], in_order[..., -1:])
