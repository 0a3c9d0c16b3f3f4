"""Helpers of all packers: bins as flat arrays, reproducible shuffling, and dealing items to planned bins."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from energon_pack.run.seeded_random import AnyInts, Ints, random_keys

_ALL_BITS = 2**64 - 1


class Bins(NamedTuple):
    """Packed bins: bin b holds the items `items[starts[b]:starts[b + 1]]`."""

    starts: Ints  # num_bins + 1
    items: Ints  # indices into the lengths

    @property
    def num_bins(self) -> int:
        return len(self.starts) - 1


class ItemsOfOneLength(NamedTuple):
    """Part of a plan: each of `num_bins` bins from number `first` on takes `copies` items of `length`."""

    length: int
    copies: int
    first: int
    num_bins: int


class OpenBins(NamedTuple):
    """A range of equally full bins: `num_bins` bins from number `first` on, each with `space` left."""

    space: int
    first: int
    num_bins: int


def argsort_with_random_ties(keys: AnyInts, seed: int, stream: int = 0) -> AnyInts:
    """Return the indices that sort non-negative keys in ascending order; equal keys come in random order.

    Key, random bits and index are packed into one word, so that plain sorting (which has vector instructions, unlike
    argsort) gives the same order on every machine. Returns int32, or int64 for more than 2^31 keys.
    """
    num = len(keys)
    index_bits = max(num - 1, 0).bit_length()
    key_bits = int(keys.max(initial=0)).bit_length()
    if index_bits + key_bits > 64:
        raise ValueError(f"{num} keys up to {keys.max()} are too many to sort")
    words = random_keys(num, seed, stream)
    words >>= np.uint64(key_bits)
    words &= np.uint64(_ALL_BITS << index_bits & _ALL_BITS)
    words |= np.arange(num, dtype=np.uint64)
    high = keys.astype(np.uint64)
    high <<= np.uint64((64 - key_bits) % 64)
    words |= high
    del high
    words.sort()
    words &= np.uint64((1 << index_bits) - 1)
    return words.astype(np.int32 if num < 2**31 else np.int64)


def as_int32_if_fits(values: AnyInts) -> AnyInts:
    """Return the values as int32 if they fit, to halve the memory."""
    return values.astype(np.int32) if values.max(initial=0) < 2**31 else values


def count_bins(runs: Sequence[ItemsOfOneLength]) -> int:
    return max((run.first + run.num_bins for run in runs), default=0)


def bin_of_ascending_items(runs: Sequence[ItemsOfOneLength]) -> AnyInts:
    """Return the bin of each item of a plan; items come in ascending order of length."""
    table = np.fromiter(chain.from_iterable(runs), np.int64, 4 * len(runs)).reshape(-1, 4)
    table = table[np.argsort(table[:, 0], kind="stable")]
    _, copies, first, num_bins = table.T
    num_items = copies * num_bins
    ends = np.cumsum(num_items)
    # Place p of a run is in bin first + p // copies.
    place = np.arange(num_items.sum()) - np.repeat(ends - num_items, num_items)
    place //= np.repeat(copies, num_items)
    place += np.repeat(first, num_items)
    return as_int32_if_fits(place)


def group_by_bin(bin_of: AnyInts, items: AnyInts, seed: int) -> Bins:
    """Group items by `bin_of`, the bin of each; empty bins are left out, and the order inside a bin is random."""
    sizes = np.bincount(bin_of)
    order = argsort_with_random_ties(bin_of, seed, stream=1)
    starts = np.concatenate(([0], np.cumsum(sizes[sizes > 0])))
    return Bins(starts, items[order].astype(np.int64))


def lower_bound(costs: AnyInts, caps: int | Ints) -> int:
    """Return a number of bins that no packing can go below: the largest quotient of a sum of costs and its cap.

    `costs`: int[num_items], or int[num_caps, num_items].
    """
    totals = np.atleast_2d(costs).sum(axis=1, dtype=np.int64)
    return int((-(-totals // np.atleast_1d(caps))).max())


def lower_bound_l2(lens: AnyInts, capacity: int) -> int:
    """Return a number of bins that no packing can go below; it is never less than `lower_bound`.

    For a threshold t ≤ capacity / 2: items > capacity - t need a bin each, in which nothing ≥ t fits. Items in
    (capacity / 2, capacity - t] need a bin each, too; items in [t, capacity / 2] can only use the room that these
    leave, or new bins. Takes the maximum over t, on the histogram: O(n + longest length).

    Source: Martello, Toth, "Lower bounds and reduction procedures for the bin packing problem", 1990.
    """
    return tighter_lower_bound_from_histogram(np.bincount(lens), capacity) if len(lens) else 0


def tighter_lower_bound_from_histogram(histogram: Ints, capacity: int) -> int:
    """Return `lower_bound_l2`. `histogram`: int[longest length + 1]; entry n is the number of items of length n."""
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


def choose_fullest_sum(lens: Iterable[int], room: int) -> list[int]:
    """Choose lengths with the largest sum of at most `room`; return their indices, ascending.

    Of equal sums, the one whose last length comes earliest is taken. Stops reading `lens` when the room is filled.
    Source: subset sum by bitset, as in Pisinger, "Dynamic programming on the word RAM", 2003.
    """
    sums, mask = 1, (1 << room + 1) - 1  # bit s of `sums`: some of the lengths so far have the sum s
    reached: list[tuple[int, int, int]] = []  # number, length, and the sums that it was the first to reach
    if room:
        for number, length in enumerate(lens):
            new = sums << length & mask & ~sums
            if new:
                sums |= new
                reached.append((number, length, new))
                if new >> room:
                    break
    total, chosen = sums.bit_length() - 1, []
    for number, length, new in reversed(reached):
        if new >> total & 1:
            chosen.append(number)
            total -= length
    return chosen[::-1]
