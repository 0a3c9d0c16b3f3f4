"""Helpers of all packers: bins as flat arrays, reproducible shuffling, and dealing items to planned bins."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from energon_pack.run.seeded import AnyInts, Ints, random_keys

_WORD = 2**64 - 1


class Bins(NamedTuple):
    """Bin b holds the items `items[starts[b]:starts[b + 1]]`."""

    starts: Ints  # num_bins + 1
    items: Ints  # indices into the lengths

    @property
    def num_bins(self) -> int:
        return len(self.starts) - 1


class Run(NamedTuple):
    """`num_bins` bins from `first` on take `copies` items of `length` each. A plan is a list of these."""

    length: int
    copies: int
    first: int
    num_bins: int


class OpenBins(NamedTuple):
    """`num_bins` bins from `first` on, each with `space` left."""

    space: int
    first: int
    num_bins: int


def shuffled_argsort(keys: AnyInts, seed: int, stream: int = 0) -> AnyInts:
    """Return indices in ascending order of non-negative keys; equal keys come in random order.

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
    words &= np.uint64(_WORD << index_bits & _WORD)
    words |= np.arange(num, dtype=np.uint64)
    high = keys.astype(np.uint64)
    high <<= np.uint64((64 - key_bits) % 64)
    words |= high
    del high
    words.sort()
    words &= np.uint64((1 << index_bits) - 1)
    return words.astype(np.int32 if num < 2**31 else np.int64)


def narrow(values: AnyInts) -> AnyInts:
    """Return the values as int32 if they fit, to halve the memory."""
    return values.astype(np.int32) if values.max(initial=0) < 2**31 else values


def count_bins(runs: Sequence[Run]) -> int:
    return max((run.first + run.num_bins for run in runs), default=0)


def bins_of(runs: Sequence[Run]) -> AnyInts:
    """Return the bin of each planned item; items in ascending order of length."""
    table = np.fromiter(chain.from_iterable(runs), np.int64, 4 * len(runs)).reshape(-1, 4)
    table = table[np.argsort(table[:, 0], kind="stable")]
    _, copies, first, num_bins = table.T
    num_items = copies * num_bins
    ends = np.cumsum(num_items)
    # Place p of a run is in bin first + p // copies.
    place = np.arange(num_items.sum()) - np.repeat(ends - num_items, num_items)
    place //= np.repeat(copies, num_items)
    place += np.repeat(first, num_items)
    return narrow(place)


def gather(bin_of: AnyInts, items: AnyInts, seed: int) -> Bins:
    """Make bins from the bin of each item: empty bins are left out, and the order inside a bin is random."""
    sizes = np.bincount(bin_of)
    order = shuffled_argsort(bin_of, seed, stream=1)
    starts = np.concatenate(([0], np.cumsum(sizes[sizes > 0])))
    return Bins(starts, items[order].astype(np.int64))
