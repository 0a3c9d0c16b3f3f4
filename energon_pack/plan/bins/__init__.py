"""Bin packing: integers in, bins out. No I/O, and no step per item.

`pack_bins` is all that others need. Lengths are handled as a histogram, and equal bins as one range of bins; two sorts
then assign the planned places to the items.

    packing ──► greedy, exact, drawn, balanced ──► base          one limit
            └─► capped ─────► balanced                           several
"""

from math import inf

import numpy as np
import numpy.typing as npt

from energon_pack.plan.bins.balanced import pack_balanced_bins
from energon_pack.plan.bins.capped import pack_capped
from energon_pack.plan.bins.fits import best_fit_decreasing, pack_by_exact_fit, pack_in_random_order
from energon_pack.plan.bins.planned_bins import (
    Bins,
    ItemsOfOneLength,
    argsort_with_random_ties,
    as_int32_if_fits,
    bin_of_ascending_items,
    count_bins,
    group_by_bin,
    lower_bound,
    lower_bound_l2,
    tighter_lower_bound_from_histogram,
)
from energon_pack.plan.settings import Algorithm
from energon_pack.run.seeded_random import Ints

__all__ = ["Bins", "lower_bound", "lower_bound_l2", "pack_bins"]


#: The search for a balanced plan ends at this many times the lower bound. `auto` accepts one more bin, too: the little
#: that an exact fit may save is not worth packs sorted by length.
_ENOUGH_TIMES_BOUND = 1.0001


def pack_bins(
    costs: Ints,
    caps: int | Ints,
    algorithm: Algorithm = Algorithm.auto,
    seed: int = 0,
    needs: npt.NDArray[np.bool_] | None = None,
) -> Bins:
    """Pack items into bins in which no cost sums to more than its cap.

    Packs by length alone first. Only if a bin of that plan breaks another cap, or has none of the items in `needs`,
    everything is packed again by `pack_capped`, whatever the algorithm.

    Args:
        costs: int64[n] lengths, or int64[k, n] with the lengths in the first row.
        caps: the largest sum of a bin: int64[k], one for each row of costs, or one number for lengths.
        seed: decides which of several equally long items goes where, and the order inside a bin.
        needs: bool[n]: every bin must hold an item for which this is True; None: bins need no such item.

    Raises:
        ValueError: an item that fits in no bin, an unknown algorithm, fewer items in `needs` than bins.
    """
    costs = np.atleast_2d(np.asarray(costs, dtype=np.int64))
    limits = np.atleast_1d(np.asarray(caps, dtype=np.int64))
    _check_costs(costs, limits, algorithm)
    if not costs.shape[1]:
        return Bins(np.zeros(1, np.int64), np.zeros(0, np.int64))
    bins = _pack_lengths(costs[0], int(limits[0]), algorithm, seed)
    first = bins.starts[:-1]
    is_kept = all(
        np.add.reduceat(cost[bins.items], first).max() <= cap for cost, cap in zip(costs[1:], limits[1:], strict=True)
    )
    if needs is not None and not np.logical_or.reduceat(needs[bins.items], first).all():
        is_kept = False
    return bins if is_kept else pack_capped(costs, limits, seed, needs)


def _check_costs(costs: Ints, caps: Ints, algorithm: Algorithm) -> None:
    if algorithm not in list(Algorithm):
        raise ValueError(f"algorithm {algorithm!r} is none of {', '.join(known.value for known in Algorithm)}")
    if costs.ndim != 2 or caps.shape != (len(costs),):
        raise ValueError(f"costs {costs.shape} and caps {caps.shape}: one cap for each row of costs")
    for row, (cost, cap) in enumerate(zip(costs, caps.tolist(), strict=True)):
        least, most = int(cost.min(initial=cap)), int(cost.max(initial=0))
        if least < (1 if row == 0 else 0) or most > cap:
            what = "lengths" if row == 0 else f"costs in row {row}"
            raise ValueError(f"{what} from {least} to {most} do not fit bins of {cap}")


def _pack_lengths(lens: Ints, capacity: int, algorithm: Algorithm, seed: int) -> Bins:
    histogram = np.bincount(lens)
    unit = int(np.gcd.reduce(np.flatnonzero(histogram)))  # 64 if lengths are rounded up to 64
    histogram = np.concatenate((histogram[:1], histogram[unit::unit]))
    capacity = min(capacity // unit, int(histogram @ np.arange(len(histogram))))
    bound = tighter_lower_bound_from_histogram(histogram, capacity)
    narrow_lens = as_int32_if_fits(lens)
    items = argsort_with_random_ties(narrow_lens, seed)

    if algorithm in (Algorithm.auto, Algorithm.balanced):
        exact: list[ItemsOfOneLength] = []

        def limit() -> float:
            if algorithm == Algorithm.balanced:
                return inf
            enough = bound * _ENOUGH_TIMES_BOUND + 1
            exact.extend(_fewest_bins(histogram, capacity, bound, enough, seed))
            return max(count_bins(exact), enough)

        bin_of = pack_balanced_bins(
            narrow_lens[items[::-1]] // unit, capacity, bound, bound * _ENOUGH_TIMES_BOUND, seed, limit
        )
        return group_by_bin(bin_of_ascending_items(exact) if bin_of is None else bin_of[::-1], items, seed)
    if algorithm == Algorithm.optimal:
        runs = _fewest_bins(histogram, capacity, bound, bound, seed)
    else:
        runs = best_fit_decreasing(histogram, capacity)
    return group_by_bin(bin_of_ascending_items(runs), items, seed)


def _fewest_bins(histogram: Ints, capacity: int, bound: int, enough: float, seed: int) -> list[ItemsOfOneLength]:
    """Pack by several algorithms, from fast to slow, and return the plan with fewest bins.

    Args:
        bound: a number of bins that no packing can go below.
        enough: if a faster algorithm needs only so many bins, the slowest is not tried.
    """
    runs = pack_by_exact_fit(histogram, capacity, seed)
    if count_bins(runs) > bound:  # sets of few items may be luckier with best fit
        runs = min(runs, best_fit_decreasing(histogram, capacity), key=count_bins)
    if count_bins(runs) > enough:
        runs = min(runs, _pack_drawn(histogram, capacity, seed), key=count_bins)
    return runs


def _pack_drawn(histogram: Ints, capacity: int, seed: int) -> list[ItemsOfOneLength]:
    """Pack by `pack_in_random_order`, and then the items that it leaves, into as few bins as possible."""
    runs, left = pack_in_random_order(histogram, capacity, seed)
    rest = min(pack_by_exact_fit(left, capacity, seed), best_fit_decreasing(left, capacity), key=count_bins)
    num_bins = count_bins(runs)
    return runs + [run._replace(first=num_bins + run.first) for run in rest]
