"""The usual ways to pack, one step per item, as references for `planner.py`.

    emptiest_bin   a heap of bins, longest item to the emptiest   (NeMo Automodel's greedy_knapsack)
    best_fit       a sorted list of what bins have left           (LoongForge, LLaVA-OneVision-2, OLMo-core)
    first_fit      the first bin with room, by a tree of maxima   (Megatron-Bridge)

Each returns the number of bins; the first two also collect what is in them, as packers must.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable

import numpy as np

from energon_pack.run.seeded_random import Ints


def emptiest_bin(lens: Ints, capacity: int) -> int:
    bins: list[tuple[int, int]] = []
    members: list[list[int]] = []
    for item in np.argsort(-lens, kind="stable").tolist():
        length = int(lens[item])
        if bins and bins[0][0] + length <= capacity:
            fill, at = bins[0]
            heapq.heapreplace(bins, (fill + length, at))
            members[at].append(item)
        else:
            heapq.heappush(bins, (length, len(members)))
            members.append([item])
    return len(members)


def best_fit(lens: Ints, capacity: int) -> int:
    left: list[tuple[int, int]] = []
    members: list[list[int]] = []
    for item in np.argsort(-lens, kind="stable").tolist():
        length = int(lens[item])
        at = bisect_left(left, (length, 0))
        if at < len(left):
            space, number = left.pop(at)
            members[number].append(item)
        else:
            space, number = capacity, len(members)
            members.append([item])
        insort(left, (space - length, number))
    return len(members)


def first_fit(lens: Ints, capacity: int) -> int:
    width = 1 << (len(lens) - 1).bit_length()
    most = [capacity] * (2 * width)
    used = 0
    for length in np.sort(lens)[::-1].tolist():
        at = 1
        while at < width:
            at *= 2
            if most[at] < length:
                at += 1
        used = max(used, at - width + 1)
        most[at] -= length
        while at > 1:
            at //= 2
            most[at] = max(most[2 * at], most[2 * at + 1])
    return used


def trl(lens: Ints, capacity: int) -> Callable[[], int]:
    """pack_dataset as users call it: tokens and all, in batches of 1000."""
    import datasets
    from trl import pack_dataset

    datasets.disable_progress_bars()
    tokens = datasets.Dataset.from_dict({"input_ids": [[0] * length for length in lens.tolist()]})
    return lambda: len(pack_dataset(tokens, capacity, "bfd"))
