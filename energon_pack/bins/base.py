"""What the packers share: bins as flat arrays, chance that never changes, and items dealt to bins that were planned."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
#: Of any width: inside, arrays are as narrow as their values allow.
AnyInts = npt.NDArray[np.integer[Any]]


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


_MULTIPLY = 0xD1342543DE82EF95, 0xAF251AF3B0F025B5
_STEP, _MIX_1, _MIX_2, _WORD = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 2**64 - 1


def random_keys(num: int, seed: int, stream: int = 0) -> npt.NDArray[np.uint64]:
    """uint64[num] that look random and depend on `seed` and `stream` alone: not on the machine or NumPy's version.

    Source: SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
    """
    z = np.arange(1, num + 1, dtype=np.uint64)
    z *= np.uint64(_STEP)
    z += np.uint64((seed * _MULTIPLY[0] + stream * _MULTIPLY[1]) & _WORD)
    return mixed(z)


def mixed(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Numbers whose bits look random and depend on all bits of those given, which are written over."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(_MIX_1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_MIX_2)
    z ^= z >> np.uint64(31)
    return z


class Chance:
    """One number of the same generator at a time."""

    def __init__(self, seed: int, stream: int = 0):
        self._state = (seed * _MULTIPLY[0] + stream * _MULTIPLY[1]) & _WORD

    def below(self, bound: int) -> int:
        """An integer in [0, bound)."""
        self._state = (self._state + _STEP) & _WORD
        z = self._state
        z = ((z ^ (z >> 30)) * _MIX_1) & _WORD
        z = ((z ^ (z >> 27)) * _MIX_2) & _WORD
        return (z ^ (z >> 31)) % bound


def shuffled_argsort(keys: AnyInts, seed: int, stream: int = 0) -> AnyInts:
    """Indices in ascending order of non-negative keys, equal ones by chance.

    Key, chance and index are packed into one word, so that plain sorting (which has vector instructions, unlike
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
    """As int32 where that holds them all, to halve the memory."""
    return values.astype(np.int32) if values.max(initial=0) < 2**31 else values


def count_bins(runs: Sequence[Run]) -> int:
    return max((run.first + run.num_bins for run in runs), default=0)


def bins_of(runs: Sequence[Run]) -> AnyInts:
    """The bin of each item a plan has a place for: items in ascending order of length."""
    table = np.array(runs, dtype=np.int64).reshape(-1, 4)
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
    """Bins from the bin of each item: empty ones left out, the order inside a bin by chance."""
    sizes = np.bincount(bin_of)
    order = shuffled_argsort(bin_of, seed, stream=1)
    starts = np.concatenate(([0], np.cumsum(sizes[sizes > 0])))
    return Bins(starts, items[order].astype(np.int64))
