"""Pack by best fit and first fit, longest first, on the histogram of the lengths.

Bins with the same space left are handled as one range, and one step fills as many bins of a range with as many copies
of a length as the textbook algorithm would, one item after the other: about 10^4 steps whatever the number of items.
The number of bins is the same as for the item-by-item algorithm: at most 11/9 · optimum + 4 (Johnson, "Near-Optimal Bin
Packing Algorithms", 1973), and the lower bound on long-tailed sets.
"""

from collections.abc import Iterable

import numpy as np

from energon_pack.plan.bins.planned_bins import OpenBins, SameBins
from energon_pack.run.seeded_random import Ints


def best_fit_decreasing(
    histogram: Ints, capacity: int, opened: Iterable[OpenBins] = (), num_bins: int = 0
) -> list[SameBins]:
    """Put items, longest first, each into the fullest bin that still has room.

    Args:
        histogram: number of items of each length.
        opened: bins with free space to start with.
        num_bins: number of bins that exist already; it is also the number of the first new bin.
    """
    by_space: dict[int, list[tuple[int, int]]] = {}  # space left → ranges of bins: first, number
    spaces = 0  # bit r is set where by_space[r] is not empty
    runs = []

    def put(space: int, first: int, number: int) -> None:
        nonlocal spaces
        by_space.setdefault(space, []).append((first, number))
        spaces |= 1 << space

    for bins in opened:
        put(*bins)
    lengths = np.flatnonzero(histogram)[::-1]
    for length, count in zip(lengths.tolist(), histogram[lengths].tolist(), strict=True):
        while count:
            fitting = spaces >> length
            if fitting:
                space = length + (fitting & -fitting).bit_length() - 1
                first, available = by_space[space].pop()
                if not by_space[space]:
                    spaces ^= 1 << space
            else:
                space, first, available = capacity, num_bins, count
            # Best fit stays with a bin while it has room: after an item its space is the smallest again.
            copies = min(space // length, count)
            used = min(available, count // copies)
            if not fitting:
                num_bins += used
            elif used < available:
                put(space, first + used, available - used)
            put(space - copies * length, first, used)
            runs.append(SameBins(length, copies, first, used))
            count -= used * copies
    return runs


def first_fit_decreasing(histogram: Ints, capacity: int) -> list[SameBins]:
    """Put items (a histogram of lengths), longest first, each into the first bin that has room.

    Shorter items never make room, so the copies of one length go through the bins once, from the first to the last.
    """
    space = np.zeros(0, np.int64)  # left in each bin of a range; ranges in the order of their bins
    size = np.zeros(0, np.int64)  # bins of each range
    first = np.zeros(0, np.int64)
    num_bins = 0
    runs = []
    lengths = np.flatnonzero(histogram)
    for length in lengths[::-1].tolist():
        count = int(histogram[length])
        fitting = np.flatnonzero(space >= length)
        copies = space[fitting] // length
        upto = np.cumsum(copies * size[fitting])
        whole = int(np.searchsorted(upto, count, side="right"))  # ranges that are filled from end to end
        for at in range(whole):
            runs.append(SameBins(length, int(copies[at]), int(first[fitting[at]]), int(size[fitting[at]])))
        space[fitting[:whole]] -= copies[:whole] * length
        count -= int(upto[whole - 1]) if whole else 0
        if not count:
            continue
        if whole < len(fitting):  # the rest ends inside this range
            at = int(fitting[whole])
            parts = _fill_first_bins(OpenBins(int(space[at]), int(first[at]), int(size[at])), length, count, runs)
        else:
            at = len(space)
            per_bin = capacity // length
            new = OpenBins(capacity, num_bins, -(-count // per_bin))
            num_bins += new.num_bins
            parts = _fill_first_bins(new, length, count, runs)
        table = np.array(parts, np.int64)
        space, first, size = (
            np.concatenate((old[:at], new_part, old[at + 1 :]))
            for old, new_part in zip((space, first, size), table.T, strict=True)
        )
    return runs


def _fill_first_bins(bins: OpenBins, length: int, count: int, runs: list[SameBins]) -> list[OpenBins]:
    """Put `count` items of a length into the first of these bins, in `runs`; return ranges of bins by space left."""
    copies = bins.space // length
    parts = []
    first = bins.first
    for per_bin, number in ((copies, count // copies), (count % copies, 1)):
        if per_bin and number:
            runs.append(SameBins(length, per_bin, first, number))
            parts.append(OpenBins(bins.space - per_bin * length, first, number))
            first += number
    left = bins.first + bins.num_bins - first
    return [*parts, OpenBins(bins.space, first, left)] if left else parts
