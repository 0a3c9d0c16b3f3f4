"""Lower bounds on the number of bins of any packing."""

import numpy as np

from energon_pack.run.seeded import AnyInts, Ints


def lower_bound(costs: AnyInts, caps: int | Ints) -> int:
    """Return a number of bins that no packing can go below: the sum of a cost, divided by its cap.

    Args:
        costs: [n], or [k, n] for several costs; the one that needs most bins decides.
        caps: one for each row.
    """
    totals = np.atleast_2d(costs).sum(axis=1, dtype=np.int64)
    return int((-(-totals // np.atleast_1d(caps))).max())


def lower_bound_l2(lens: AnyInts, capacity: int) -> int:
    """Return a bound that also considers items too large to share a bin; never below `lower_bound`.

    For a threshold t ≤ capacity / 2: items > capacity - t need a bin each, in which nothing ≥ t fits. Items in
    (capacity / 2, capacity - t] need a bin each, too; items in [t, capacity / 2] can only use the room that these
    leave, or new bins. Takes the maximum over t, on the histogram: O(n + longest length).

    Source: Martello, Toth, "Lower bounds and reduction procedures for the bin packing problem", 1990.
    """
    return l2_of_histogram(np.bincount(lens), capacity) if len(lens) else 0


def l2_of_histogram(histogram: Ints, capacity: int) -> int:
    """Return `lower_bound_l2` from the number of items of each length."""
    counts = np.concatenate(([0], np.cumsum(histogram)))  # of items < length
    tokens = np.concatenate(([0], np.cumsum(histogram * np.arange(len(histogram)))))
    top = len(histogram)

    lengths = np.flatnonzero(histogram)
    thresholds = np.append(lengths[lengths <= capacity // 2], 0)
    half = min(capacity // 2 + 1, top)  # the least length such that two items do not fit into a bin
    alone = np.minimum(capacity - thresholds + 1, top)
    alone = np.maximum(alone, half)
    num_alone = counts[top] - counts[alone]
    num_large = counts[alone] - counts[half]
    room = num_large * capacity - (tokens[alone] - tokens[half])
    small = tokens[half] - tokens[thresholds]
    return int((num_alone + num_large - np.minimum(-(small - room) // capacity, 0)).max())
