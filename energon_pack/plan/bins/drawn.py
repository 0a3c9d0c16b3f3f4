"""Pack as a stream does: items come in a random order, and waiting items fill each bin to the last token.

Bins have the same mixture from the first to the last. So items that complete bins are not used up, as they are when the
longest items go first. Measured for 20,000 items, none short, as bins over the lower bound L2, best fit in
brackets: uniform 700-2600 in 4k 0.2 % (1.4 %); InternVL's tiles in 4k 0.1 % (3.6 %); video of 4-16k in 32k 0.02 %
(2.9 %). It is the slowest way, so with many items several of one length are drawn at once.
"""

from heapq import heappop, heappush

import numpy as np

from energon_pack.plan.bins.base import Run, fullest_sum
from energon_pack.run.seeded import Ints, random_keys

_WAITING = 200  # items that wait; after so many bins the oldest begins the next one, else items that fit badly stay
_MOST = 20_000  # items that are drawn one by one; if there are more, each draw stands for several of its length


def drawn_fit(histogram: Ints, capacity: int, seed: int) -> list[Run]:
    """Fill bins until no item is left."""
    runs: list[Run] = []
    num_bins, rest, copies = 0, np.asarray(histogram), 2 * int(histogram.sum())
    while copies > 1:
        copies = max(1, min(int(rest.sum()) // _MOST, copies // 2))
        bins, waiting = _draw(rest // copies, capacity, seed, least_waiting=_WAITING if copies > 1 else 1)
        rest = rest % copies + copies * waiting
        for content in bins:
            runs += [Run(length, content.count(length), num_bins, copies) for length in dict.fromkeys(content)]
            num_bins += copies
    return runs


def _draw(histogram: Ints, capacity: int, seed: int, least_waiting: int) -> tuple[list[list[int]], Ints]:
    """Return the lengths in each bin, and the histogram of the items that still wait at the end.

    Args:
        least_waiting: no bin is begun while fewer items wait, once all have come.
    """
    lens = np.repeat(np.arange(len(histogram)), histogram)
    order: list[int] = lens[np.argsort(random_keys(len(lens), seed, 4), kind="stable")].tolist()
    bins: list[list[int]] = []
    since: dict[int, int] = {}  # for each waiting item, the oldest first: how many bins there were when it came
    longest: list[tuple[int, int]] = []
    coming = iter(enumerate(order))
    while True:
        for number, length in coming:
            since[number] = len(bins)
            heappush(longest, (-length, number))
            if len(since) == _WAITING:
                break
        if len(since) < least_waiting:
            return bins, np.bincount([order[i] for i in since], minlength=len(histogram))
        while longest[0][1] not in since:
            heappop(longest)
        oldest = next(iter(since))
        first = oldest if len(bins) - since[oldest] >= _WAITING else longest[0][1]
        del since[first]
        waiting = [*since]
        chosen = [waiting[i] for i in fullest_sum((order[i] for i in waiting), capacity - order[first])]
        for i in chosen:
            del since[i]
        bins.append([order[i] for i in (first, *chosen)])
