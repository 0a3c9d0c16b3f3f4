"""Pack with several caps at once: tokens, images, members, Σ len².

Items with a cost that others lack (images) are dealt first, largest first to the least loaded bins. The others then
fill the remaining room, the smallest exactly to the last token. This is a heuristic: caps are never broken, the number
of bins is not bounded. Measured with an image cap at 90 to 110 % use in 32k: ≤ 1.001 · the lower bound of both, 1 to 3
s for 1M items; in 8k, where a bin holds only 6 images, or with two other tight caps, 0.3 to 15 % more.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from energon_pack.plan.bins.balanced import fill_gaps
from energon_pack.plan.bins.planned_bins import Bins, argsort_with_random_ties, group_by_bin
from energon_pack.run.seeded_random import AnyInts, Ints

_LOAD_LEVELS = 2**16 - 1  # loads are compared as 16-bit shares of a cap: NumPy sorts these by radix
#: Ways to try: the share of the tokens, in small items without special costs, that is dealt last; and whether bins rich
#: in tokens get items rich in other costs. The best way depends on how tight the caps are.
_STRATEGIES = ((0.1, True), (0.5, False), (1.0, False))
_TAIL_SHARE = 0.02  # share of the tokens that fills gaps exactly
_ENOUGH_TIMES_BOUND = 1.0001
_MOST_ROUNDS = 1000
_MOST_PASSES = 20


def pack_capped(costs: Ints, caps: Ints, seed: int, needs: npt.NDArray[np.bool_] | None = None) -> Bins:
    """Pack items into bins with several caps: in a bin no cost sums to more than its cap.

    Args:
        costs: int64[num_caps, num_items]; the first row is the lengths. No item alone may break a cap.
        caps: int64[num_caps].
        needs: bool[num_items]: every bin must hold an item for which this is True; None: bins need no such item.

    Raises:
        ValueError: more bins are needed than there are items in `needs`.
    """
    totals = costs.sum(axis=1)
    matters = totals > caps
    matters[0] = True
    costs, caps, totals = costs[matters], np.minimum(caps, totals)[matters], totals[matters]
    bound = fewest = int((-(-totals // caps)).max())
    size = _load(costs, caps, range(len(caps)))
    order = argsort_with_random_ties(size, seed)[::-1]
    if needs is not None:
        order = order[np.argsort(~needs[order], kind="stable")]

    best: _CappedBins | None = None
    while best is None:
        for light_share, match in _STRATEGIES:
            if needs is not None and fewest > np.count_nonzero(needs):
                raise ValueError(
                    f"at least {fewest} bins, but only {np.count_nonzero(needs)} items that each one needs"
                )
            packing = _CappedBins(costs, caps, size, fewest)
            left = _fill_bins(packing, order, light_share, match, seed, first=0 if needs is None else fewest)
            if needs is None:
                packing.put_in_new_bins(left)
            elif len(left):
                continue
            if best is None or packing.num_bins < best.num_bins:
                best = packing
            if best.num_bins <= bound * _ENOUGH_TIMES_BOUND:
                break
        fewest += -(-fewest // 1000)
    return group_by_bin(best.bin_of, np.arange(costs.shape[1]), seed)


def _fill_bins(
    packing: "_CappedBins", order: AnyInts, light_share: float, match: bool, seed: int, first: int
) -> AnyInts:
    """Put items into the bins of `packing`, and return those that found no room.

    Args:
        order: the items, largest first.
        light_share, match: see `_STRATEGIES`.
        first: so many items of the order have a bin each.
    """
    lens = packing.costs[0]
    rows = range(len(packing.caps))
    packing.spread(order[:first], rows, match)
    order = order[first:]
    common = [row for row in rows if packing.costs[row].min() > 0]
    special = [row for row in rows if row not in common]
    light = order[~packing.costs[special][:, order].any(axis=0)][::-1]  # smallest first
    upto = np.cumsum(lens[light])
    num_tail, num_light = np.searchsorted(upto, [_TAIL_SHARE * lens.sum(), light_share * lens.sum()]).tolist()
    is_light = np.zeros(len(lens), bool)
    is_light[light[:num_light]] = True

    heavy = order[~is_light[order]]
    packing.spread(heavy, rows, match)
    left = packing.place_anywhere(heavy[packing.is_unpacked(heavy)])
    middle = light[num_tail:num_light][::-1]
    packing.spread(middle, common, match)
    left = packing.place_anywhere(np.concatenate((left, middle[packing.is_unpacked(middle)])))
    tail = light[:num_tail]
    packing.fill_exactly(tail, seed)
    return packing.place_anywhere(np.concatenate((left, tail[packing.is_unpacked(tail)])))


class _CappedBins:
    """Bins with several caps, which are being filled."""

    def __init__(self, costs: Ints, caps: Ints, size: npt.NDArray[np.uint16], num_bins: int):
        self.costs = costs
        self.caps = caps
        self.bin_of = np.full(costs.shape[1], -1, np.int32)  # of each item, -1: in none
        self._size = size
        self._fill = np.zeros((len(caps), num_bins), np.int64)

    @property
    def num_bins(self) -> int:
        return self._fill.shape[1]

    def is_unpacked(self, items: AnyInts) -> npt.NDArray[np.bool_]:
        return self.bin_of[items] < 0

    def spread(self, items: AnyInts, rows: Sequence[int], match: bool) -> None:
        """Deal items, in rounds, to the least loaded bins; items that do not fit stay out.

        Args:
            items: largest first.
            rows: indices of the costs that count as load, as rows of `costs`.
            match: within a round, bins rich in tokens get the items rich in other costs; otherwise the emptiest bin
                gets the largest item.
        """
        load = _load(self._fill, self.caps, rows)
        at = 0
        while at < len(items):
            bins = np.flatnonzero(load <= int(load.min()) + int(self._size[items[at]]))
            copies = max(1, (len(items) - at) // (self.num_bins * _MOST_ROUNDS))
            bins = bins[np.argsort(load[bins], kind="stable")][: len(items) - at]
            dealt = items[at : at + copies * len(bins)]
            if match and copies == 1 and len(self.caps) > 1:
                bins = bins[np.argsort(self._excess_token_share(self._fill[:, bins]), kind="stable")]
                dealt = dealt[np.argsort(-self._excess_token_share(self.costs[:, dealt]), kind="stable")]
            self._place(dealt.reshape(copies, -1), bins)
            load[bins] = _load(self._fill[:, bins], self.caps, rows)
            at += len(dealt)

    def place_anywhere(self, items: AnyInts) -> AnyInts:
        """Put items into any bins that have room for them; return the items for which none has."""
        for _ in range(_MOST_PASSES):
            before = len(items)
            for row, cost in enumerate(self.costs):
                if not len(items):
                    return items
                emptiest = np.argsort(self._fill[row], kind="stable")[: len(items)]
                items = items[np.argsort(-cost[items], kind="stable")]
                self._place(items[None, : len(emptiest)], emptiest)
                items = items[self.is_unpacked(items)]
            if len(items) == before:
                break
        return items

    def fill_exactly(self, items: AnyInts, seed: int) -> None:
        """Fill the bins with these items to the last token; a bin that would break another cap stays unchanged."""
        items = items[np.argsort(self.costs[0, items], kind="stable")]
        gaps = fill_gaps(np.bincount(self.costs[0, items]), self.caps[0] - self._fill[0], int(self.caps[0]), seed)
        bins = gaps.find_bin_of_items()
        items, bins = items[bins < self.num_bins], bins[bins < self.num_bins]
        added = [np.bincount(bins, cost[items], self.num_bins) for cost in self.costs]
        filled = self._fill + np.array(added).astype(np.int64)
        is_good = np.asarray((filled <= self.caps[:, None]).all(axis=0))
        self._fill = np.where(is_good, filled, self._fill)
        self.bin_of[items[is_good[bins]]] = bins[is_good[bins]]

    def put_in_new_bins(self, items: AnyInts) -> None:
        """Put items into new bins."""
        while len(items):
            more = int((-(-self.costs[:, items].sum(axis=1) // self.caps)).max())
            self._fill = np.pad(self._fill, ((0, 0), (0, more)))
            items = self.place_anywhere(items)

    def _excess_token_share(self, costs: Ints) -> npt.NDArray[np.float64]:
        """Return the tokens' share of their cap, less the largest such share of another cost, for bins or items."""
        shares = costs / self.caps[:, None]
        return np.asarray(shares[0] - shares[1:].max(axis=0))

    def _place(self, items: AnyInts, bins: AnyInts) -> None:
        """Put the items of each column, `items[:, i]`, into bin `bins[i]` if they fit together; no bin comes twice."""
        filled = self._fill[:, bins] + self.costs[:, items].sum(axis=1)
        fits = (filled <= self.caps[:, None]).all(axis=0)
        self._fill[:, bins[fits]] = filled[:, fits]
        self.bin_of[items[:, fits]] = bins[fits]


def _load(costs: Ints, caps: Ints, rows: Sequence[int]) -> npt.NDArray[np.uint16]:
    """Return for each column of costs its largest share of a cap, in 1/_LOAD_LEVELS; only caps in `rows` count."""
    share = np.zeros(costs.shape[1], np.uint16)
    for row in rows:
        np.maximum(share, (costs[row] * _LOAD_LEVELS // caps[row]).astype(np.uint16), out=share)
    return share
