"""Bin packing: integers in, bins out. No I/O, and no step per item.

`best_fit_decreasing` works on the histogram of the lengths. Bins with the same content so far are one group, and one
step fills as many bins of a group with as many copies of a length as best fit would, one after the other: about 10^4
steps whatever the number of items. Items are then dealt to the groups with two sorts. The number of bins is that of
item-by-item best-fit decreasing, at most 11/9 · optimum + 4 bins (Johnson, "Near-Optimal Bin Packing Algorithms",
1973), and at the lower bound on long-tailed sets.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Bins(NamedTuple):
    """Bin b holds the items `items[starts[b]:starts[b + 1]]`."""

    starts: Ints  # num_bins + 1
    items: Ints  # indices into the lengths

    @property
    def num_bins(self) -> int:
        return len(self.starts) - 1


def lower_bound(lens: Ints, capacity: int) -> int:
    """No packing has fewer bins than this: all tokens, divided by the capacity of a bin."""
    return -(-int(lens.sum()) // capacity)


def best_fit_decreasing(lens: Ints, capacity: int, seed: int = 0) -> Bins:
    """Longest first, each into the fullest bin that still has room.

    Args:
        lens: int64[n], 1 ≤ len ≤ capacity.
        capacity: of a bin.
        seed: which of several equally long items goes where, and the order inside a bin.

    Raises:
        ValueError: a length that fits in no bin.
    """
    lens = np.asarray(lens, dtype=np.int64)
    if len(lens) == 0:
        return Bins(np.zeros(1, np.int64), np.zeros(0, np.int64))
    if lens.min() < 1 or lens.max() > capacity:
        raise ValueError(f"lengths from {lens.min()} to {lens.max()} do not fit bins of {capacity}")
    groups = _group_bins(np.bincount(lens), min(capacity, int(lens.sum())))
    return _deal(groups, lens, seed)


def random_keys(num: int, seed: int, stream: int = 0) -> npt.NDArray[np.uint64]:
    """uint64[num] that look random and depend on `seed` and `stream` alone: not on the machine or NumPy's version.

    Source: SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
    """
    state = (seed * 0xD1342543DE82EF95 + stream * 0xAF251AF3B0F025B5) % 2**64
    z = np.arange(1, num + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(state)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@dataclass
class _Group:
    """`num_bins` bins of the same content: `copies` items of `length`, on top of the content of `below`."""

    num_bins: int
    length: int
    copies: int
    below: "_Group | None"


def _group_bins(histogram: Ints, capacity: int) -> list[_Group]:
    """Best-fit decreasing on counts. Returns the groups of finished bins."""
    by_space: dict[int, list[_Group]] = {}  # space left in each bin of a group → the groups
    spaces = 0  # bit r is set where by_space[r] is not empty

    def put(group: _Group, space: int) -> None:
        nonlocal spaces
        by_space.setdefault(space, []).append(group)
        spaces |= 1 << space

    for length in range(len(histogram) - 1, 0, -1):
        count = int(histogram[length])
        while count:
            fitting = spaces >> length
            if not fitting:  # new bins, filled to the brim with this length, the last one perhaps not
                per_bin = min(capacity // length, count)
                num_bins = count // per_bin
                put(_Group(num_bins, length, per_bin, None), capacity - per_bin * length)
                count -= num_bins * per_bin
                continue
            space = length + (fitting & -fitting).bit_length() - 1
            stack = by_space[space]
            group = stack.pop()
            if not stack:
                spaces &= ~(1 << space)
            # Best fit stays with a bin while it has room: what is left after an item is the smallest space again.
            per_bin = min(space // length, count)
            num_bins = min(group.num_bins, count // per_bin)
            if num_bins < group.num_bins:
                put(_Group(group.num_bins - num_bins, group.length, group.copies, group.below), space)
            put(_Group(num_bins, length, per_bin, group), space - per_bin * length)
            count -= num_bins * per_bin
    return [group for groups in by_space.values() for group in groups]


def _deal(groups: list[_Group], lens: Ints, seed: int) -> Bins:
    """Give every place in the groups an item of its length."""
    # One entry for each (group, length): how many items of that length every bin of the group takes.
    entries: list[tuple[int, int, int, int]] = []  # length, copies, first bin, number of bins
    first_bin = 0
    for group in groups:
        layer: _Group | None = group
        while layer is not None:
            entries.append((layer.length, layer.copies, first_bin, group.num_bins))
            layer = layer.below
        first_bin += group.num_bins
    table = np.array(entries, dtype=np.int64)
    table = table[np.argsort(table[:, 0], kind="stable")]
    _, copies, first, num_bins = table.T
    num_items = copies * num_bins

    # Items sorted by length line up with the entries sorted by length; which of equals comes first is by chance.
    shuffled = np.argsort(random_keys(len(lens), seed), kind="stable")
    items = shuffled[np.argsort(lens[shuffled], kind="stable")]
    starts = np.cumsum(num_items) - num_items
    within = np.arange(len(lens)) - np.repeat(starts, num_items)
    bin_of = np.repeat(first, num_items) + within // np.repeat(copies, num_items)

    mixed = np.argsort(random_keys(len(lens), seed, stream=1), kind="stable")  # so that a bin is not longest first
    order = mixed[np.argsort(bin_of[mixed], kind="stable")]
    sizes = np.bincount(bin_of, minlength=first_bin)
    return Bins(np.concatenate(([0], np.cumsum(sizes))), items[order])


def pack_bins(costs, caps, algorithm="auto", seed=0, needs=None):
    return best_fit_decreasing(costs[0], caps[0], seed)
