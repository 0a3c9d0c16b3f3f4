"""The pool makes packs of samples that wait: none is lost, doubled or kept waiting, and no limit is broken."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from energon_pack.online.stream_packs import Draw, SampleDraws, permuted_number
from energon_pack.plan.pool import WaitingPool, WaitingSample, costs_of_sample, fill_pack_from_first
from energon_pack.plan.settings import Overlong, PackingConfig
from energon_pack.steps.position import Position, combine_taken_numbers


def names(pack: Sequence[WaitingSample]) -> list[Any]:
    return [sample.name for sample in pack]


def packs_of(pool: WaitingPool, samples: Sequence[tuple[Any, tuple[int, ...], str]]) -> Iterator[list[WaitingSample]]:
    """All packs of some samples that come one after the other."""
    for sample in samples:
        pool.add(*sample)
        while not pool.num_samples_to_add:
            yield pool.take()
    pool.plan_rest()
    while len(pool):
        yield pool.take()


@pytest.mark.parametrize(
    ("lens", "room", "chosen"),
    [
        ([5, 4, 3, 2], 10, [0, 2, 3]),  # 5 + 3 + 2; the greedy 5 + 4 would leave a token
        ([5, 5, 5, 5], 10, [0, 1]),  # of equal ones the earlier
        ([3, 9, 4, 2], 10, [0, 2, 3]),  # the first stays, though 9 alone is as full
        ([10, 1], 10, [0]),
        ([1], 10, [0]),
    ],
)
def test_the_fullest_pack_to_check_by_head(lens: list[int], room: int, chosen: list[int]) -> None:
    assert fill_pack_from_first([(length,) for length in lens], (room,)) == chosen


def test_a_cap_that_the_fullest_choice_breaks_is_kept_by_another() -> None:
    """Two images are too many: of 4 + 6 tokens with three, and 4 + 5 with one, the latter is a pack."""
    assert fill_pack_from_first([(4, 1), (6, 2), (5, 0)], (10, 1)) == [0, 2]
    assert fill_pack_from_first([(4, 0), (2, 1), (3, 1), (4, 1)], (10, 1)) == [0, 3], "the frugal one, not the earlier"


@hypothesis.given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(12, 30))
def test_no_choice_is_fuller(lens: list[int], room: int) -> None:
    """A pack that could be fuller would be unnoticed padding."""
    best = max(
        sum(some)
        for number in range(len(lens))
        for rest in combinations(lens[1:], number)
        if sum(some := (lens[0], *rest)) <= room
    )
    assert sum(lens[i] for i in fill_pack_from_first([(length,) for length in lens], (room,))) == best


COUNTS = st.tuples(st.integers(1, 30), st.integers(0, 3), st.integers(0, 20), st.sampled_from("ab"))


@hypothesis.given(
    st.lists(COUNTS, max_size=60),
    st.integers(1, 12),
    st.tuples(st.none() | st.integers(3, 6), st.none() | st.integers(20, 40), st.none() | st.integers(1, 4)),
    st.none() | st.integers(900, 2000),
)
def test_every_sample_is_in_one_pack_that_breaks_no_limit(
    drawn: list[tuple[int, int, int, str]], buffer_size: int, caps: tuple[int | None, ...], cost: int | None
) -> None:
    """A sample lost, doubled, or in a pack that is over a limit ends up in training, or out of memory."""
    packing = PackingConfig(
        max_token_len=30, max_images=caps[0], max_visual_tokens=caps[1], max_members=caps[2], max_attention_cost=cost
    )
    columns = ("token_len", "num_images", "num_visual_tokens")
    samples = [
        (number, costs_of_sample(dict(zip(columns, counts, strict=True)), packing), group)
        for number, (*counts, group) in enumerate(drawn)
    ]
    pool = WaitingPool(packing, buffer_size)
    packs = list(packs_of(pool, samples))
    assert sorted(name for pack in packs for name in names(pack)) == list(range(len(samples)))
    for pack in packs:
        assert pack
        assert len({sample.group for sample in pack}) == 1
        counts = [drawn[sample.name] for sample in pack]
        assert sum(count[0] for count in counts) <= 30
        assert sum(count[1] for count in counts) <= (caps[0] or 1000)
        assert sum(count[2] for count in counts) <= (caps[1] or 10000)
        assert len(pack) <= (caps[2] or 1000)
        assert sum(count[0] ** 2 for count in counts) <= (cost or 10**6)
    assert pool.num_packs == len(packs)


@hypothesis.given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from("abc")), max_size=80), st.integers(1, 9))
def test_a_pool_goes_on_from_its_state_and_nobody_waits_for_ever(
    drawn: list[tuple[int, str]], buffer_size: int
) -> None:
    """Through JSON, after each pack, the end among them; own packs and waiting times are in it, too."""
    packing = PackingConfig(max_token_len=30, overlong=Overlong.own_pack, hard_limit=40)
    pool = WaitingPool(packing, buffer_size)
    most_waiting = 0
    for number, (length, group) in enumerate(drawn):
        pool.add(number, (length,), group)
        most_waiting = max(most_waiting, len(pool))
        while not pool.num_samples_to_add:
            pool, before = WaitingPool(packing, buffer_size), pool
            pool.load(json.loads(json.dumps(before.state())))
            assert pool.take() == before.take()
    pool.plan_rest()
    while len(pool):
        pool, before = WaitingPool(packing, buffer_size), pool
        pool.load(json.loads(json.dumps(before.state())))
        assert pool.take() == before.take()
    assert pool.num_taken == len(drawn)
    num_own = sum(length > 30 for length, _ in drawn)  # which go at once, whoever waits
    assert pool.longest_wait <= buffer_size + most_waiting + num_own


def test_a_small_buffer_waits_until_it_fills_a_pack() -> None:
    """Packs of two short samples would be padding, because the buffer happens to be counted in samples."""
    pool = WaitingPool(PackingConfig(max_token_len=10), 2)
    packs = list(packs_of(pool, [(number, (2,), "text") for number in range(20)]))
    assert list(map(names, packs)) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]


def test_a_rare_medium_waits_for_its_like_but_not_for_ever() -> None:
    """One video comes with every twenty texts: two share a pack; the last one leaves alone after waiting for eight
    packs.
    """
    samples = [(number, (5,), "video" if number % 20 == 0 and number < 60 else "text") for number in range(120)]
    pool = WaitingPool(PackingConfig(max_token_len=10), 8)
    packs = list(packs_of(pool, samples))
    videos = [(at, names(pack)) for at, pack in enumerate(packs) if pack[0].group == "video"]
    assert [members for _, members in videos] == [[0, 20], [40]]
    assert pool.longest_wait < 16


def test_a_sample_that_fits_no_pack_is_refused() -> None:
    """It would wait for ever."""
    pool = WaitingPool(PackingConfig(max_token_len=10, max_images=1), 8)
    with pytest.raises(ValueError, match=r"a takes \(3, 2\), a pack holds \(10, 1\)"):
        pool.add("a", (3, 2))
    with pytest.raises(ValueError, match="buffer_size=0: a whole number of samples, at least 1"):
        WaitingPool(PackingConfig(), 0)


def draws_of(
    sizes: list[int], weights: Any = None, epoch: int = 0, lane: int = 0, lanes: int = 1, **settings: Any
) -> SampleDraws:
    position = Position("datasets", epoch=epoch, ranks=lanes, rank=lane)
    return SampleDraws(sizes, [position] * len(sizes), weights, **{"replacement": True, **settings})


def drawn(draws: SampleDraws, most: int = 10_000) -> list[Draw]:
    found: list[Draw] = []
    while len(found) < most and (draw := draws.next()):
        found.append(draw)
    return found


@hypothesis.given(st.integers(1, 300), st.integers(0, 2**70))
def test_a_permutation_has_each_item_once(size: int, key: int) -> None:
    """A place outside of it, or one twice, is a sample that is never trained on."""
    assert sorted(permuted_number(place, size, key) for place in range(size)) == list(range(size))


def test_small_permutations_are_all_as_likely() -> None:
    """An order that comes more often than others is no shuffling; 24 of 4, about 250 times each."""
    times = Counter(tuple(permuted_number(place, 4, key * 1_000_003) for place in range(4)) for key in range(6000))
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
        first = Counter(draw.number for draw in draws if draw.dataset == dataset and draw.num_earlier_passes == 0)
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
    other = SampleDraws(sizes, draws.positions, replacement=replacement)
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
            draws = SampleDraws(sizes, here, replacement=False)
            found += drawn(draws, 10_000 if number == len(worlds) else nums[4 * number + lane])
            ends.append(draws.positions)
        begun = [replace(begun[0], before=combine_taken_numbers(positions)) for positions in zip(*ends, strict=True)]
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
