"""Draws are counters: from any of them they go on as if nothing had happened, and lanes share each dataset exactly."""

from collections import Counter
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from energon_pack.online.stream_packs import Draw, Draws, permuted
from energon_pack.steps.position import Position, taken_by


def draws_of(
    sizes: list[int], weights: Any = None, epoch: int = 0, lane: int = 0, lanes: int = 1, **settings: Any
) -> Draws:
    position = Position("datasets", epoch=epoch, ranks=lanes, rank=lane)
    return Draws(sizes, [position] * len(sizes), weights, **{"replacement": True, **settings})


def drawn(draws: Draws, most: int = 10_000) -> list[Draw]:
    found: list[Draw] = []
    while len(found) < most and (draw := draws.next()):
        found.append(draw)
    return found


@hypothesis.given(st.integers(1, 300), st.integers(0, 2**70))
def test_a_permutation_has_each_item_once(size: int, key: int) -> None:
    """A place outside of it, or one twice, is a sample that is never trained on."""
    assert sorted(permuted(place, size, key) for place in range(size)) == list(range(size))


def test_small_permutations_are_all_as_likely() -> None:
    """An order that comes more often than others is no shuffling; 24 of 4, about 250 times each."""
    times = Counter(tuple(permuted(place, 4, key * 1_000_003) for place in range(4)) for key in range(6000))
    assert len(times) == 24
    assert min(times.values()) > 180
    assert max(times.values()) < 320


@hypothesis.given(
    st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(1, 5), st.integers(0, 9), st.integers(0, 3)
)
def test_without_replacement_all_lanes_together_draw_each_sample_once(
    sizes: list[int], lanes: int, seed: int, epoch: int
) -> None:
    """Samples that two ranks see, or none, make the number of epochs a lie."""
    of_lanes = [
        drawn(draws_of(sizes, replacement=False, seed=seed, epoch=epoch, lane=lane, lanes=lanes))
        for lane in range(lanes)
    ]
    pairs = sorted((draw.dataset, draw.number) for draws in of_lanes for draw in draws)
    assert pairs == [(dataset, index) for dataset, size in enumerate(sizes) for index in range(size)]
    assert max(map(len, of_lanes)) - min(map(len, of_lanes)) <= len(sizes)


@hypothesis.given(st.lists(st.integers(1, 7), min_size=1, max_size=3), st.integers(1, 4))
def test_with_replacement_each_turn_has_each_sample_once(sizes: list[int], lanes: int) -> None:
    """A small dataset that is drawn often is shuffled anew each time, over all lanes."""
    num = 3 * lanes * sum(sizes)
    draws = [draw for lane in range(lanes) for draw in drawn(draws_of(sizes, lane=lane, lanes=lanes), num * len(sizes))]
    for dataset, size in enumerate(sizes):
        first = Counter(draw.number for draw in draws if draw.dataset == dataset and draw.turn == 0)
        assert first == dict.fromkeys(range(size), 1)


def test_each_turn_and_epoch_is_another_order() -> None:
    """The same order each time is no shuffling."""
    draws = draws_of([50])
    orders = [[draw.number for draw in drawn(draws, 50)] for _ in range(2)]
    orders.append([draw.number for draw in drawn(draws_of([50], epoch=1), 50)])
    assert len(set(map(tuple, orders))) == 3


@hypothesis.given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.booleans(), st.integers(0, 40))
def test_draws_go_on_from_their_positions(sizes: list[int], replacement: bool, num: int) -> None:
    """A state that forgets something draws samples twice after a restart."""
    draws = draws_of(sizes, replacement=replacement, lane=1, lanes=2)
    drawn(draws, num)
    other = Draws(sizes, draws.positions, replacement=replacement)
    assert drawn(other, 50) == drawn(draws, 50)


@hypothesis.given(
    st.lists(st.integers(1, 30), min_size=1, max_size=3), st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.lists(st.integers(0, 9), min_size=16, max_size=16),
)  # fmt: skip
def test_any_lanes_go_on_and_each_sample_is_drawn_once(sizes: list[int], worlds: list[int], nums: list[int]) -> None:
    """Of each lane another number of draws; a stream went on with as many ranks and workers alone."""
    begun, found = [Position("datasets")] * len(sizes), list[Draw]()
    for number, lanes in enumerate([*worlds, 1]):
        ends = []
        for lane in range(lanes):
            here = [replace(position, ranks=lanes, rank=lane) for position in begun]
            draws = Draws(sizes, here, replacement=False)
            found += drawn(draws, 10_000 if number == len(worlds) else nums[4 * number + lane])
            ends.append(draws.positions)
        begun = [replace(begun[0], before=taken_by(positions)) for positions in zip(*ends, strict=True)]
    assert sorted(draw[:2] for draw in found) == [(of, i) for of, size in enumerate(sizes) for i in range(size)]


def test_every_stretch_has_the_weights() -> None:
    """100 draws are 50, 30 and 20, whatever the sizes; random draws would be off by ten."""
    draws = draws_of([9, 500, 100], [5, 3, 2], seed=3)
    for _ in range(20):
        times = Counter(draw.dataset for draw in drawn(draws, 100))
        assert abs(times[0] - 50) + abs(times[1] - 30) + abs(times[2] - 20) <= 4


def test_a_dataset_of_no_weight_is_never_drawn() -> None:
    assert {draw.dataset for draw in drawn(draws_of([3, 3], [1, 0]), 50)} == {0}


@pytest.mark.parametrize("weights", [[1], [0, 0], [-1, 2], [1, float("inf")], [float("nan"), 1]])
def test_weights_that_are_no_shares_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights="):
        draws_of([3, 3], weights)
    with pytest.raises(ValueError, match=r"weights\[1\]=1 of a dataset that is empty"):
        draws_of([3, 0], [1, 1])
