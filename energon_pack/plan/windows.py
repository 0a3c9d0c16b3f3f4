"""Choose the items that are planned together: the items of `packing.window` consecutive source shards.

Memory holds one window, so with windows it does not grow with the number of samples.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from energon_pack.plan.items import AnyInts, Items
from energon_pack.plan.settings import PackingConfig
from energon_pack.run.scratch import blocks
from energon_pack.run.seeded import Ints, random_keys


def window_of(shard: AnyInts, packing: PackingConfig) -> Ints:
    """Return the number of each item's window, from its source shard."""
    return shard.astype(np.int64) // (packing.window or 1 << 62)


def windows(items: Items, packing: PackingConfig, seed: int) -> Iterator[Ints | slice]:
    """Yield the numbers of the items of each window, ascending; windows come in random order."""
    if packing.window is None:
        yield np.s_[:]
        return
    runs: dict[int, list[Ints]] = {}  # runs of items in each window; few, because items come by shard
    for block in blocks(len(items)):
        window = window_of(items.shard[block], packing)
        edges = [0, *(np.flatnonzero(np.diff(window)) + 1).tolist(), len(window)]
        for start, end in pairwise(edges):
            runs.setdefault(int(window[start]), []).append(np.array([block.start + start, block.start + end]))
    for number in by_chance(sorted(runs), seed):
        yield np.concatenate([np.arange(start, end) for start, end in runs[number]])


def by_chance(windows: Sequence[int], seed: int) -> list[int]:
    """Return the order in which windows are written."""
    return [windows[place] for place in np.argsort(random_keys(len(windows), seed, 11)).tolist()]
