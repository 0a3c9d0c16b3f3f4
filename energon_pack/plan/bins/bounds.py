"""How few bins any packing can have."""

import numpy as np

from energon_pack.run.seeded import AnyInts, Ints


def lower_bound(costs: AnyInts, caps: int | Ints) -> int:
    """No packing has fewer bins than this: the sum of a cost, divided by what a bin holds of it.

    Args:
        costs: [n], or [k, n] for several costs, of which the most demanding counts.
        caps: one for each row.
    """
    totals = np.atleast_2d(costs).sum(axis=1, dtype=np.int64)
    return int((-(-totals // np.atleast_1d(caps))).max())


def lower_bound_l2(lens: AnyInts, capacity: int) -> int:
    """A bound that also sees items too large to share a bin; never below `lower_bound`.

    For a threshold t ≤ capacity / 2: items > capacity - t have a bin each, in which nothing ≥ t fits; items in
    (capacity / 2, capacity - t] have one each, too, and what room these leave is all there is for items in
    [t, capacity / 2] before new bins are needed. The maximum over t, on the histogram: O(n + longest length).

    Source: Martello, Toth, "Lower bounds and reduction procedures for the bin packing problem", 1990.
    """
    return l2_of_histogram(np.bincount(lens), capacity) if len(lens) else 0


def l2_of_histogram(histogram: Ints, capacity: int) -> int:
    """The same, of the number of items of each length."""
    counts = np.concatenate(([0], np.cumsum(histogram)))  # of items < length
    tokens = np.concatenate(([0], np.cumsum(histogram * np.arange(len(histogram)))))
    top = len(histogram)

    lengths = np.flatnonzero(histogram)
    thresholds = np.append(lengths[lengths <= capacity // 2], 0)
    half = min(capacity // 2 + 1, top)  # the first length that shares with none of its own
    alone = np.minimum(capacity - thresholds + 1, top)
    alone = np.maximum(alone, half)
    num_alone = counts[top] - counts[alone]
    num_large = counts[alone] - counts[half]
    room = num_large * capacity - (tokens[alone] - tokens[half])
    small = tokens[half] - tokens[thresholds]
    return int((num_alone + num_large - np.minimum(-(small - room) // capacity, 0)).max())
