"""Pack by the space that is left: best fit, exact fit, and exact fit of items that are drawn, as a stream does.

`pack_by_exact_fit` has the idea of minimum bin slack (Gupta, Ho, "A new heuristic algorithm for the one-dimensional
bin-packing problem", 1999), with at most three items to complete a bin, and sets of lengths as bits of one integer. It
fills several bins alike at once, as long as enough is left for the others. It is a heuristic: no bound is proven.
Measured, bins over the lower bound L2, best fit in brackets: long-tailed mixtures 0 (0 to 0.05 %); uniform 700-2600 in
8k 0.14 % (1.8 %); tiles of 256 in 8k 0.03 % (0.35 %); video of 4-16k in 32k 0.3 % (2.9 %). It costs 2 to 10 times best
fit: 0.1 to 1 s for 1M items.

`best_fit_decreasing` handles bins with the same space left as one range. One step fills as many bins of a range with as
many copies of a length as the textbook algorithm would, one item after the other: about 10^4 steps whatever the number
of items. The number of bins is the same as for the item-by-item algorithm: at most 11/9 · optimum + 4 (Johnson,
"Near-Optimal Bin Packing Algorithms", 1973), and the lower bound on long-tailed sets.

`pack_in_random_order` gives bins the same mixture from the first to the last. So items that complete bins are not used
up, as they are when the longest items go first. Measured for 20,000 items, none short, as bins over the lower bound L2,
exact fit in brackets: uniform 700-2600 in 4k 0.2 % (1.0 %); InternVL's tiles in 4k 0.1 % (2.6 %); video of 4-16k in 32k
0.02 % (0.4 %). It is the slowest way, so with many items it draws several of one length at once.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from energon_pack.plan.bins.planned_bins import ItemsOfOneLength, OpenBins, choose_fullest_sum
from energon_pack.run.seeded_random import Ints, RandomStream, random_keys

_TRIPLE_TRIES = 6  # first items tried for a completion with three


class RemainingItems:
    """The items that are not packed yet: how many of each length, and the set of lengths as one integer.

    Bit r is set if an item of length r is left. This finds all pairs of lengths that fill a gap at once: shift the
    mirrored set, and AND both.
    """

    def __init__(self, histogram: Ints, chance: RandomStream):
        there = np.asarray(histogram) > 0
        self._counts: list[int] = histogram.tolist()
        self._top = len(histogram) - 1
        self._lengths = _as_bits(there)
        self._mirrored = _as_bits(there[::-1])  # bit top - length
        self._chance = chance

    @property
    def largest(self) -> int:
        """The longest remaining length; 0 if nothing is left."""
        return max(self._lengths.bit_length() - 1, 0)

    @property
    def smallest(self) -> int:
        """The shortest remaining length; -1 if nothing is left."""
        return (self._lengths & -self._lengths).bit_length() - 1

    def count(self, length: int) -> int:
        return self._counts[length] if length <= self._top else 0

    def histogram(self) -> Ints:
        return np.array(self._counts, np.int64)

    def count_fillable_bins(self, copies_by_length: dict[int, int], max_bins: int) -> int:
        """Return how many bins (at most `max_bins`) the remaining items can fill with a content (length → copies)."""
        for length, copies in copies_by_length.items():
            max_bins = min(max_bins, self._counts[length] // copies)
        return max_bins

    def content_with_more(self, content: dict[int, int], more: tuple[int, ...]) -> dict[int, int] | None:
        """Add the lengths `more` to a bin's content (length → copies); None: `more` is empty, or too few are left."""
        together = dict(content)
        for length in more:
            together[length] = copies = together.get(length, 0) + 1
            if copies > self._counts[length]:
                return None
        return together if more else None

    def take(self, copies_by_length: dict[int, int], first_bin: int, num_bins: int) -> list[ItemsOfOneLength]:
        """Remove the items that fill `num_bins` bins, from `first_bin` on, with a content (length → copies)."""
        runs = []
        for length, copies in copies_by_length.items():
            self._counts[length] -= num_bins * copies
            if not self._counts[length]:
                self._lengths ^= 1 << length
                self._mirrored ^= 1 << (self._top - length)
            runs.append(ItemsOfOneLength(length, copies, first_bin, num_bins))
        return runs

    def largest_within(self, gap: int) -> int:
        """Return the longest remaining length of at most `gap`; 0: there is none."""
        return max((self._lengths & ((2 << gap) - 1)).bit_length() - 1, 0)

    def random_within(self, gap: int) -> int:
        """Return a random remaining length of at most `gap`; 0: there is none."""
        return self._pick(self._lengths & ((2 << gap) - 1), gap)

    def find_lengths_filling_gap(self, gap: int) -> tuple[int, ...]:
        """Return one to three remaining lengths, as few as possible, whose sum is `gap`; empty: none was found."""
        if self.count(gap):
            return (gap,)
        lengths = self._lengths
        largest = lengths.bit_length() - 1
        pair = self._pair(gap) if gap <= 2 * largest else ()
        if pair or gap > 3 * largest:
            return pair
        choices = lengths & ((1 << gap) - 1)
        if not choices:
            return ()
        if gap < 3 * self.smallest:  # all tries would fail
            self._chance.skip(_TRIPLE_TRIES)
            return ()
        for _ in range(_TRIPLE_TRIES):
            one = self._pick(choices, gap - 1)
            shift = self._top - gap + one
            if lengths & (self._mirrored >> shift if shift >= 0 else self._mirrored << -shift):
                pair = self._pair(gap - one)
                if pair and self._counts[one] > pair.count(one):
                    return (one, *pair)
        return ()

    def _pair(self, gap: int) -> tuple[int, ...]:
        shift = self._top - gap
        partners = self._mirrored >> shift if shift >= 0 else self._mirrored << -shift  # bit gap - length
        choices = self._lengths & partners
        if not choices:
            return ()
        one = self._pick(choices, gap)
        if one and (2 * one != gap or self._counts[one] > 1):
            return one, gap - one
        return ()

    def _pick(self, choices: int, top: int) -> int:
        """Return the number of a set bit of `choices`: the first from a random place on; 0 if there is none."""
        if not choices:
            return 0
        place = self._chance.below(top + 1)
        upper = choices >> place
        if not upper:
            upper, place = choices, 0
        return place + (upper & -upper).bit_length() - 1


def _as_bits(there: npt.NDArray[np.bool_]) -> int:
    return int.from_bytes(np.packbits(there, bitorder="little").tobytes(), "little")


def pack_by_exact_fit(histogram: Ints, capacity: int, seed: int) -> list[ItemsOfOneLength]:
    """Pack items (a histogram of lengths), longest first; complete each bin exactly, else with the longest that fit.

    The completion is random: always taking the longest uses up one end of the histogram, and then nothing fits the last
    bins.
    """
    stock = RemainingItems(histogram, RandomStream(seed, stream=2))
    runs: list[ItemsOfOneLength] = []
    num_bins = 0
    while longest := stock.largest:
        # Not all items of this length at once: that would use up the lengths that complete the next bins.
        wanted = max(1, stock.count(longest) // (capacity // longest))
        content = _complete_bin(stock, capacity - longest, {longest: 1})
        number = stock.count_fillable_bins(content, wanted)
        runs += stock.take(content, num_bins, number)
        num_bins += number
    return runs


def _complete_bin(stock: RemainingItems, gap: int, content: dict[int, int]) -> dict[int, int]:
    """Add items to a bin's content (length → copies) until nothing fits its gap, exactly if possible."""
    while gap:
        completed = stock.content_with_more(content, stock.find_lengths_filling_gap(gap))
        if completed:
            return completed
        length = stock.largest_within(gap)
        while length and stock.count(length) <= content.get(length, 0):
            length = stock.largest_within(length - 1)
        if not length:
            break
        left = stock.count(length) - content.get(length, 0)
        copies = max(1, min(left, gap // length - 2))  # leaves a gap that two or three items may fill
        content[length] = content.get(length, 0) + copies
        gap -= copies * length
    return content


def best_fit_decreasing(
    histogram: Ints, capacity: int, open_bins: Iterable[OpenBins] = (), num_bins: int = 0
) -> list[ItemsOfOneLength]:
    """Put items, longest first, each into the fullest bin that still has room.

    Args:
        histogram: number of items of each length.
        open_bins: bins with free space to start with.
        num_bins: number of bins that exist already; it is also the number of the first new bin.
    """
    by_space: dict[int, list[tuple[int, int]]] = {}  # space left → ranges of bins: first, number
    spaces = 0  # bit r is set where by_space[r] is not empty
    runs = []

    def put(space: int, first: int, number: int) -> None:
        nonlocal spaces
        by_space.setdefault(space, []).append((first, number))
        spaces |= 1 << space

    for bins in open_bins:
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
            runs.append(ItemsOfOneLength(length, copies, first, used))
            count -= used * copies
    return runs


_MAX_WAITING = 200  # items that wait; after so many bins the oldest begins the next one, else items that fit badly stay
_MAX_DRAWS = 20_000  # items that are drawn one by one; if there are more, each draw stands for several of its length


def pack_in_random_order(histogram: Ints, capacity: int, seed: int) -> tuple[list[ItemsOfOneLength], Ints]:
    """Pack items that come in random order; waiting items fill each bin, and a few are left at the end.

    Returns:
        The bins, and the histogram of the lengths of the items that are in none: fewer than `_MAX_WAITING`.
    """
    runs: list[ItemsOfOneLength] = []
    num_bins, left, copies = 0, np.asarray(histogram), 2 * int(histogram.sum())
    while copies > 1:
        copies = max(1, min(int(left.sum()) // _MAX_DRAWS, copies // 2))
        bins, over = _pack_as_stream(left // copies, capacity, seed)
        left = left % copies + copies * over
        for content in bins:
            runs += [
                ItemsOfOneLength(length, content.count(length), num_bins, copies) for length in dict.fromkeys(content)
            ]
            num_bins += copies
    return runs, left


def _pack_as_stream(histogram: Ints, capacity: int, seed: int) -> tuple[list[list[int]], Ints]:
    """Return the lengths in each bin, and the histogram of the items that still wait at the end."""
    lens = np.repeat(np.arange(len(histogram)), histogram)
    order: list[int] = lens[np.argsort(random_keys(len(lens), seed, 4), kind="stable")].tolist()
    bins: list[list[int]] = []
    since: dict[int, int] = {}  # for each waiting item, the oldest first: how many bins there were when it came
    longest: list[tuple[int, int]] = []
    for number, length in enumerate(order):
        since[number] = len(bins)
        heappush(longest, (-length, number))
        if len(since) < _MAX_WAITING:
            continue
        while longest[0][1] not in since:
            heappop(longest)
        oldest = next(iter(since))
        first = oldest if len(bins) - since[oldest] >= _MAX_WAITING else longest[0][1]
        del since[first]
        waiting = [*since]
        chosen = [waiting[i] for i in choose_fullest_sum((order[i] for i in waiting), capacity - order[first])]
        for i in chosen:
            del since[i]
        bins.append([order[i] for i in (first, *chosen)])
    return bins, np.bincount([order[i] for i in since], minlength=len(histogram))
