"""Bins keep their limits and lose no item, and are as few as the docstrings promise."""

import zlib
from bisect import bisect_left, insort
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_pack.plan.bins import Bins, lower_bound, lower_bound_l2, pack_bins
from energon_pack.plan.bins.balanced import FillOrder, fill_gaps
from energon_pack.plan.bins.planned_bins import argsort_with_random_ties
from energon_pack.plan.settings import Algorithm
from energon_pack.run.seeded_random import RandomStream, random_keys

#: a capacity, and lengths that fit it
cases = st.integers(1, 60).flatmap(lambda c: st.tuples(st.just(c), st.lists(st.integers(1, c), max_size=120)))
few = st.integers(4, 30).flatmap(
    lambda c: st.tuples(st.just(c), st.lists(st.integers(1, c), min_size=1, max_size=9)),
)


def best_fit_by_item(lens: list[int], capacity: int) -> int:
    """The textbook algorithm, one item at a time: the number of bins."""
    free: list[int] = []
    for length in sorted(lens, reverse=True):
        at = bisect_left(free, length)
        insort(free, (free.pop(at) if at < len(free) else capacity) - length)
    return len(free)


def fewest(lens: list[int], capacity: int) -> int:
    """By trying all ways."""

    def fits(rest: list[int], free: tuple[int, ...]) -> bool:
        if not rest:
            return True
        return any(
            fits(rest[1:], (*free[:i], space - rest[0], *free[i + 1 :]))
            for i, space in enumerate(free)
            if space >= rest[0] and space not in free[:i]
        )

    lens = sorted(lens, reverse=True)
    return next(num for num in range(1, len(lens) + 1) if fits(lens, (capacity,) * num))


def contents(bins: Bins) -> list[list[int]]:
    return [bins.items[a:b].tolist() for a, b in zip(bins.starts[:-1], bins.starts[1:], strict=True)]


def pack(lens: list[int], capacity: int, algorithm: Algorithm = Algorithm.auto, seed: int = 0) -> list[list[int]]:
    return contents(pack_bins(np.array(lens, np.int64), capacity, algorithm, seed))


def filled(lens: list[int], packed: list[list[int]]) -> list[list[int]]:
    return sorted(sorted(lens[i] for i in items) for items in packed)


# ------------------------------------------------------------------------------------------------- cases by head


def test_best_fit_by_head() -> None:
    """10: 6+4, 5+3+2, 3 — the 4 goes to the 6 (exact), the 3 to the 5, the 2 into the gap."""
    lens = [2, 3, 4, 5, 6, 3]
    assert filled(lens, pack(lens, 10, Algorithm.best_fit_decreasing)) == [[2, 3, 5], [3], [4, 6]]


def test_first_fit_is_another_word_for_best_fit() -> None:
    """20: 12, 10+9, and the 1 goes to the 10+9. A setting that users have stays, and packs as well."""
    lens = [12, 10, 9, 1]
    for algorithm in (Algorithm.best_fit_decreasing, Algorithm.first_fit_decreasing):
        assert filled(lens, pack(lens, 20, algorithm)) == [[1, 9, 10], [12]]


def test_exact_fit_finds_what_greedy_misses() -> None:
    """30: 11+10+9 twice; best fit begins with 11+11 and needs a third bin."""
    lens = [11, 11, 10, 10, 9, 9]
    assert len(pack(lens, 30, Algorithm.best_fit_decreasing)) == 3
    assert filled(lens, pack(lens, 30, Algorithm.optimal)) == [[9, 10, 11], [9, 10, 11]]


def test_balanced_parts_the_long_ones() -> None:
    """6: best fit puts both 3s together; the cost of attention is then 18 and 6 instead of 12 and 12."""
    lens = [3, 3, 1, 1, 1, 1, 1, 1]
    assert filled(lens, pack(lens, 6, Algorithm.best_fit_decreasing)) == [[1, 1, 1, 1, 1, 1], [3, 3]]
    assert filled(lens, pack(lens, 6, Algorithm.balanced)) == [[1, 1, 1, 3], [1, 1, 1, 3]]


def test_l2_sees_items_that_share_with_none() -> None:
    """Five items of 6 in bins of 10 need five bins, though their sum would fit three: a report would blame us."""
    lens = np.array([6, 6, 6, 6, 6])
    assert lower_bound(lens, 10) == 3
    assert lower_bound_l2(lens, 10) == 5
    assert lower_bound_l2(np.array([7, 7, 4, 4, 4]), 10) == 4  # 7 | 7 | 4 4 | 4
    assert lower_bound_l2(np.zeros(0, np.int64), 10) == 0


def test_the_bound_of_several_costs_is_that_of_the_most_demanding() -> None:
    """Otherwise a plan with a tight image cap would be compared with a bound nobody can reach."""
    assert lower_bound(np.array([[5, 5], [3, 4]]), np.array([10, 4])) == 2


# ------------------------------------------------------------------------------------------------------ invariants


@pytest.mark.parametrize("algorithm", Algorithm)
@given(case=cases, seed=st.integers(0, 3))
@settings(max_examples=60)
def test_every_item_once_no_bin_over_capacity(algorithm: Algorithm, case: tuple[int, list[int]], seed: int) -> None:
    """A lost sample or an overfull pack would go into training unseen."""
    capacity, lens = case
    packed = pack(lens, capacity, algorithm, seed)
    assert sorted(item for items in packed for item in items) == list(range(len(lens)))
    assert all(0 < sum(lens[i] for i in items) <= capacity for items in packed)
    array = np.array(lens, np.int64)
    assert len(packed) >= lower_bound_l2(array, capacity) >= lower_bound(array, capacity)
    assert packed == pack(lens, capacity, algorithm, seed)


@given(cases)
def test_on_the_histogram_as_item_by_item(case: tuple[int, list[int]]) -> None:
    """The proven bounds hold for the textbook algorithm; ranges of bins must not need one bin more."""
    capacity, lens = case
    assert len(pack(lens, capacity, Algorithm.best_fit_decreasing)) == best_fit_by_item(lens, capacity)


@given(few)
@settings(max_examples=150)
def test_optimal_on_little_sets(case: tuple[int, list[int]]) -> None:
    """Never more than best fit, which is within 11/9 · optimum + 4; of nine items at most one bin too many."""
    capacity, lens = case
    best = fewest(lens, capacity)
    assert best >= lower_bound_l2(np.array(lens), capacity)
    assert best <= len(pack(lens, capacity, Algorithm.optimal)) <= min(best + 1, best_fit_by_item(lens, capacity))


@given(cases)
def test_auto_is_no_worse_than_optimal_by_more_than_it_says(case: tuple[int, list[int]]) -> None:
    """Balance must not cost bins: where it would, `auto` takes the exact fit."""
    capacity, lens = case
    if lens:
        allowed = max(
            len(pack(lens, capacity, Algorithm.optimal)), 1.0001 * lower_bound_l2(np.array(lens), capacity) + 1
        )
        assert len(pack(lens, capacity)) <= allowed


@given(cases)
def test_twice_the_capacity(case: tuple[int, list[int]]) -> None:
    """With more capacity there are at most 11/9 as many bins + 4, because the optimum only falls.

    "Never more bins than before" is not promised: greedy packing has such anomalies, and best fit is the fallback.
    """
    capacity, lens = case
    before, after = (len(pack(lens, c, Algorithm.optimal)) for c in (capacity, 2 * capacity))
    assert after <= 11 / 9 * before + 4


@given(few, st.lists(st.integers(0, 12), min_size=1, max_size=4), st.sampled_from(FillOrder))
@settings(max_examples=150)
def test_only_what_can_not_win_is_given_up(case: tuple[int, list[int]], gaps: list[int], way: FillOrder) -> None:
    """Given up too early, a tail that gives fewer packs would be lost; too late costs time alone."""
    capacity, lens = case
    histogram, space = np.bincount(lens), np.minimum(gaps, capacity)
    whole = fill_gaps(histogram, space, capacity, 0, way, np.inf)
    assert whole
    again = fill_gaps(histogram, space, capacity, 0, way, whole.num_bins)
    assert again
    assert again.find_bin_of_items().tolist() == whole.find_bin_of_items().tolist()
    assert fill_gaps(histogram, space, capacity, 0, way, whole.num_bins - 1) is None


# -------------------------------------------------------------------------------------------------- larger, known sets


def long_tailed(num: int) -> list[int]:
    """Whole numbers that any machine computes alike."""
    keys = random_keys(num, 7).astype(object)
    return [int(40 + (key % 2000) ** 2 // (100 + key // 5000 % 900)) % 4000 + 8 for key in keys]


def hard(num: int) -> list[int]:
    """From 700 to 2600: nothing small to fill gaps with."""
    return [int(700 + key % 1901) for key in random_keys(num, 8).astype(object)]


@pytest.mark.parametrize("algorithm", [Algorithm.auto, Algorithm.balanced, Algorithm.optimal])
def test_at_the_lower_bound_on_a_long_tailed_set(algorithm: Algorithm) -> None:
    """The fill that the README promises."""
    lens = long_tailed(20_000)
    assert len(pack(lens, 8192, algorithm)) <= 1.0001 * lower_bound(np.array(lens), 8192) + 1


def test_one_bin_is_not_worth_uneven_ones() -> None:
    """`auto` saved one of 749 bins by an exact fit, which sorts lengths into bins: costs were less even by a fifth."""
    lens = np.exp(np.random.default_rng(0).normal(5.5, 1.1, 4300)[1300:]).clip(10).astype(np.int64)
    lens = lens[lens <= 1024]
    costs, found = {}, {}
    for algorithm in (Algorithm.auto, Algorithm.balanced, Algorithm.optimal):
        bins = pack_bins(lens, 1024, algorithm)
        sums = np.add.reduceat(lens[bins.items] ** 2, bins.starts[:-1])
        costs[algorithm], found[algorithm] = sums.std() / sums.mean(), bins.num_bins
    assert found[Algorithm.optimal] == found[Algorithm.balanced] - 1 == lower_bound(lens, 1024)
    assert found[Algorithm.auto] == found[Algorithm.balanced]
    assert costs[Algorithm.auto] == costs[Algorithm.balanced] < 0.9 * costs[Algorithm.optimal]


def test_exact_fit_where_nothing_is_small() -> None:
    """Best fit loses 1.8 % there; taking the longest that fits instead of any that fills exactly would lose 1 %."""
    lens = hard(20_000)
    bound = lower_bound_l2(np.array(lens), 8192)
    lost = [
        len(pack(lens, 8192, algorithm)) / bound - 1 for algorithm in (Algorithm.auto, Algorithm.best_fit_decreasing)
    ]
    assert lost[0] < 0.2 * lost[1]


def test_balanced_evens_attention_and_mixes_lengths() -> None:
    """Without it one rank waits for another: bins of one long sample beside bins of a hundred short ones."""
    lens = long_tailed(20_000)

    def spread(algorithm: Algorithm) -> tuple[float, float]:
        packs = [np.array([lens[i] for i in items]) for items in pack(lens, 32768, algorithm)]
        attention = np.array([(pack**2).sum() for pack in packs])
        sizes = np.array([len(pack) for pack in packs])
        return attention.std() / attention.mean(), sizes.std() / sizes.mean()

    balanced, greedy = spread(Algorithm.balanced), spread(Algorithm.best_fit_decreasing)
    assert balanced[0] < 0.5 * greedy[0]
    assert balanced[1] < 0.5 * greedy[1]


# -------------------------------------------------------------------------------------------------------- the rest


@pytest.mark.parametrize("algorithm", Algorithm)
def test_the_seed_chooses_among_equals(algorithm: Algorithm) -> None:
    """Two epochs of a repeated dataset would otherwise have the same packs."""
    lens = [5] * 100
    assert pack(lens, 10, algorithm, seed=1) == pack(lens, 10, algorithm, seed=1)
    assert pack(lens, 10, algorithm, seed=1) != pack(lens, 10, algorithm, seed=2)


def test_inside_a_bin_items_are_not_longest_first() -> None:
    """A model would learn that the first sample of a pack is the long one."""
    rng = np.random.default_rng(0)
    lens = rng.integers(1, 100, 2000).tolist()
    packs = [[lens[i] for i in items] for items in pack(lens, 1000, Algorithm.best_fit_decreasing)]
    mixed = [pack for pack in packs if len(set(pack)) > 3]
    assert len(mixed) > 5
    assert np.mean([pack[0] == max(pack) for pack in mixed]) < 0.7


@pytest.mark.parametrize("algorithm", Algorithm)
def test_extremes(algorithm: Algorithm) -> None:
    """A capacity beyond all items costs nothing; neither do very many items in few bins, nor none at all."""
    assert len(pack([3, 4, 5], 2**62, algorithm)) == 1
    assert pack([], 10, algorithm) == []
    assert len(pack([1] * 100_000, 50_000, algorithm)) == 2
    assert len(pack([64] * 10, 128 + 63, algorithm)) == 5  # multiples of 64 can't use the last 63


@pytest.mark.parametrize("lens", [[11], [0, 5]])
def test_what_fits_no_bin_is_refused(lens: list[int]) -> None:
    """An overlong sample must be dropped or reported by the caller, by name."""
    with pytest.raises(ValueError, match="do not fit bins of 10"):
        pack(lens, 10)


def test_an_unknown_algorithm_is_named() -> None:
    """A typo in the settings would otherwise pack by some default."""
    with pytest.raises(ValueError, match="'best_fit' is none of auto, balanced"):
        pack([1], 10, cast(Algorithm, "best_fit"))


def test_chance_never_changes() -> None:
    """The order of every packed dataset hangs on it. SplitMix64 from state 0 begins with these."""
    known = [16294208416658607535, 7960286522194355700, 487617019471545679]
    assert random_keys(3, seed=0).tolist() == known
    chance = RandomStream(0)
    assert [chance.below(2**64) for _ in range(3)] == known
    chance = RandomStream(0)
    chance.skip(2)
    assert chance.below(2**64) == known[2]
    assert random_keys(1, seed=1).tolist() != random_keys(1, seed=0).tolist() != random_keys(1, 0, stream=1).tolist()


@given(st.lists(st.integers(0, 9), max_size=50))
def test_sorting_mixes_equals_only(keys: list[int]) -> None:
    """Items of another length in a place would overfill a bin."""
    order = argsort_with_random_ties(np.array(keys, np.int64), 3)
    assert sorted(order.tolist()) == list(range(len(keys)))
    assert [keys[i] for i in order] == sorted(keys)


def test_plans_never_change() -> None:
    """The same lengths and seed give the same packs on any machine, with any version of Python and NumPy.

    Where this fails by intent, all packed datasets change: the changelog has to say so.
    """
    lens = np.array(long_tailed(3000), np.int64)
    digests = []
    for algorithm in Algorithm:
        bins = pack_bins(lens, 8192, algorithm, seed=1)
        digests.append(zlib.crc32(np.concatenate(bins).astype("<i8").tobytes()))
    bins = pack_bins(np.stack([lens, np.ones_like(lens)]), np.array([8192, 6]), seed=1)
    digests.append(zlib.crc32(np.concatenate(bins).astype("<i8").tobytes()))
    assert digests == [4143891197, 4143891197, 3406981691, 174204663, 174204663, 20600173]
    bins = pack_bins(
        np.array(hard(3000), np.int64), 8192, seed=1
    )  # `auto` tries all it has, and fills as a stream does
    assert zlib.crc32(np.concatenate(bins).astype("<i8").tobytes()) == 1906598247
