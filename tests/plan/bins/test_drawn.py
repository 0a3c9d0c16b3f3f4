"""Bins filled as a stream fills them: the fullest sum there is, and a plan that no stream beats."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_pack.plan.bins import drawn, lower_bound_l2, pack_bins
from energon_pack.plan.bins.drawn import drawn_fit
from energon_pack.plan.bins.planned_bins import count_bins, fullest_sum
from energon_pack.plan.pool import Pool
from energon_pack.plan.settings import Algorithm, PackingConfig
from energon_pack.run.seeded import Ints, random_keys

#: capacity, the shortest and the longest of lengths of which none is short: there the exact fit uses up what fits
HARD = {"thirds": (4096, 700, 2600), "halves": (4096, 300, 1400), "videos": (8192, 1024, 4000)}


def lengths(name: str, num: int) -> Ints:
    _, least, most = HARD[name]
    return least + (random_keys(num, 8) % np.uint64(most + 1 - least)).astype(np.int64)


def packs_of_stream(lens: Ints, capacity: int, buffer_size: int) -> int:
    pool = Pool(PackingConfig(max_token_len=capacity), buffer_size)
    for number, length in enumerate(lens.tolist()):
        pool.add(number, (length,))
        while not pool.num_missing:
            pool.take()
    pool.end()
    return pool.num_packs + pool.num_planned


@given(st.lists(st.integers(1, 20), max_size=9), st.integers(0, 40))
def test_no_choice_is_fuller(lens: list[int], room: int) -> None:
    """A sum over the room would break a pack, one below the best leave it emptier than it has to be."""
    chosen = fullest_sum(lens, room)
    sums = {sum(some) for size in range(len(lens) + 1) for some in combinations(lens, size)}
    assert sum(lens[number] for number in chosen) == max(total for total in sums if total <= room)
    assert chosen == sorted(set(chosen))


@given(st.lists(st.integers(1, 30), max_size=80), st.integers(30, 60), st.integers(2, 9), st.integers(3, 30))
@settings(max_examples=60)
def test_each_item_is_in_a_bin_or_left(lens: list[int], capacity: int, waiting: int, most: int) -> None:
    """If items are many, each drawn one stands for several; none may be lost or counted twice."""
    histogram = np.bincount(lens, minlength=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawn, "_WAITING", waiting)
        patch.setattr(drawn, "_MOST", most)
        runs, left = drawn_fit(histogram, capacity, 0)
    fill, counts = np.zeros(count_bins(runs), np.int64), left.copy()
    for length, copies, first, num_bins in runs:
        fill[first : first + num_bins] += length * copies
        counts[length] += copies * num_bins
    assert counts.tolist() == histogram.tolist()
    assert (fill <= capacity).all()
    assert (fill > 0).all()
    assert left.sum() < waiting


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("buffer_size", [20, 100])
def test_no_stream_needs_fewer_packs(name: str, buffer_size: int) -> None:
    """From 20,000 samples, a stream made 5,754 packs of 4k while the plan of all made 5,883."""
    lens, capacity = lengths(name, 2000), HARD[name][0]
    even = 1.0001 * lower_bound_l2(lens, capacity) + 1  # `auto` takes even packs for so many more
    assert pack_bins(lens, capacity).num_bins <= max(packs_of_stream(lens, capacity, buffer_size), even)
    assert pack_bins(lens, capacity, Algorithm.optimal).num_bins <= packs_of_stream(lens, capacity, buffer_size)
