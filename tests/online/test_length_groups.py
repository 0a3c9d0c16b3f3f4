"""Batches of samples of like lengths: each sample once in an epoch, even steps, little padding, and resuming."""

import logging
from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from energon_pack.trainers.samplers import LengthGroupedSampler, LengthGroups, group_by_length

LENS = np.minimum(np.random.default_rng(0).lognormal(6, 1, 1000), 8000).astype(np.int64) + 1


def samplers(ranks: int, lens: Any = LENS, **settings: Any) -> list[LengthGroupedSampler]:
    return [LengthGroupedSampler(lens, rank=rank, world_size=ranks, **settings) for rank in range(ranks)]


def flat(batches: Iterable[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


def padding(lens: Any, groups: LengthGroups) -> float:
    """The share of padding in batches that are as wide as their longest sample."""
    starts, items = groups.batches
    return 1 - float(lens.sum()) / float((np.diff(starts) * np.maximum.reduceat(lens[items], starts[:-1])).sum())


# ----------------------------------------------------------------------------------------------------- arithmetic


def test_ten_samples_for_two_ranks_by_head() -> None:
    """One window, four batches in two steps: sizes differ by one, and each step has neighbours in length."""
    lens = np.array([5, 90, 6, 80, 7, 70, 8, 60, 9, 50])
    groups = group_by_length(lens, 2, 3, None, window=100, seed=0)
    batches = [sorted(lens[groups.samples_at_order_index(place)].tolist()) for place in range(4)]
    assert sorted(batches) == [[5, 6], [7, 8, 9], [50, 60], [70, 80, 90]]
    assert sorted([sorted(groups.order[:2]), sorted(groups.order[2:])]) == [[0, 1], [2, 3]]
    assert padding(lens, groups) == pytest.approx(1 - lens.sum() / (2 * 6 + 3 * 9 + 2 * 60 + 3 * 90))


def test_a_limit_of_tokens_counts_padding_by_head() -> None:
    """12 tokens: 3 × 4, 2 × 6 and one of 12; a batch is halved for the rank that would have none."""
    lens = np.array([4, 3, 4, 6, 6, 12])
    groups = group_by_length(lens, 1, None, 12, window=100, seed=0)
    assert sorted(sorted(lens[groups.samples_at_order_index(place)].tolist()) for place in range(3)) == [
        [3, 4, 4],
        [6, 6],
        [12],
    ]
    halved = group_by_length(lens, 2, None, 12, window=100, seed=0)
    assert sorted(sorted(lens[halved.samples_at_order_index(place)].tolist()) for place in range(4)) == [
        [3],
        [4, 4],
        [6, 6],
        [12],
    ]


@given(
    lens=st.lists(st.integers(1, 50), min_size=1, max_size=60),
    ranks=st.integers(1, 7),
    size=st.integers(1, 9),
    tokens=st.none() | st.integers(20, 400),
    window=st.integers(1, 70),
    seed=st.integers(0, 9),
)
def test_each_sample_once_and_each_rank_as_many_batches(
    lens: list[int], ranks: int, size: int, tokens: int | None, window: int, seed: int
) -> None:
    """A lost sample would go unnoticed, and ranks with different numbers of steps would hang."""
    array = np.array(lens)
    groups = group_by_length(array, ranks, None if tokens else size, tokens, window, seed)
    batches = [groups.samples_at_order_index(place).tolist() for place in range(len(groups.order))]
    assert sorted(flat(batches)) == list(range(len(lens)))
    assert len(batches) % ranks == 0 or all(len(batch) == 1 for batch in batches)
    for batch in batches:
        assert 0 < len(batch) <= (size if tokens is None else len(lens))
        assert tokens is None or len(batch) == 1 or len(batch) * max(array[batch]) <= tokens


@pytest.mark.parametrize("limits", [(8, None), (None, 8192)])
def test_like_lengths_meet_and_steps_come_in_random_order(limits: tuple[int | None, int | None]) -> None:
    """Padding is small; neither short nor long samples come first."""
    groups = group_by_length(LENS, 2, *limits, window=500, seed=0)
    assert padding(LENS, groups) < 0.1 < 0.3 < padding(LENS, group_by_length(LENS, 2, *limits, window=1, seed=0))
    of_ranks = np.array(
        [LENS[groups.samples_at_order_index(place)].max() for place in range(len(groups.order))]
    ).reshape(-1, 2)
    longest = of_ranks[:, 0]
    quarter = len(longest) // 4
    assert 0.5 < longest[:quarter].mean() / longest.mean() < 2
    assert (longest[1:] > longest[:-1]).any()
    assert (longest[1:] < longest[:-1]).any()
    assert np.ptp(of_ranks, axis=1).mean() < 0.2 * longest.mean()  # ranks wait for each other for little


# -------------------------------------------------------------------------------------------------------- sampler


@pytest.mark.parametrize("settings", [{"batch_size": 8}, {"max_batch_tokens": 8192}])
def test_ranks_share_each_epoch(settings: dict[str, int]) -> None:
    """In other batches and another order each time; the same with the same seed."""
    ranks = samplers(3, **settings)
    first, second = ([list(sampler) for sampler in ranks] for _ in range(2))
    for epoch in (first, second):
        assert len({len(batches) for batches in epoch}) == 1
        assert sorted(sample for batches in epoch for sample in flat(batches)) == list(range(1000))
    assert first != second
    assert first == [list(sampler) for sampler in samplers(3, **settings)]
    assert len(ranks[0]) > 0
    again = samplers(3, **settings)[1]
    again.set_epoch(1)
    assert list(again) == second[1]


@pytest.mark.parametrize("settings", [{"batch_size": 8}, {"max_batch_tokens": 8192}])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_other_ranks_train_what_is_left_of_the_epoch(settings: dict[str, int], ranks: int) -> None:
    """Two ranks had seven steps, then others five: no sample is lost or seen twice.

    After an odd number of batches the last one makes no whole step of two; it comes first in the next epoch.
    """
    found: list[int] = []
    state: dict[str, Any] | None = None
    for number, steps in ((2, 7), (ranks, 5), (2, 10_000)):
        group_of = samplers(number, **settings)
        for sampler in group_of:
            if state is not None:
                sampler.load_state_dict(state)
            found += flat(list(islice(sampler, steps)))
        state = group_of[-1].state_dict()
    following = [list(sampler) for sampler in group_of]
    left_over = set(range(1000)) - {*found}
    assert len({*found}) == len(found)
    assert bool(left_over) == (ranks != 2)
    assert left_over <= {*following[0][0], *following[1][0]}
    both = Counter(found + flat(chain(*following)))
    assert {*both} == set(range(1000))
    assert {*both.values()} <= ({1, 2} if left_over else {2})
    if not left_over:
        expected = samplers(2, **settings)
        for sampler in expected:
            sampler.set_epoch(1)
        assert following == [list(sampler) for sampler in expected]


class Numbers(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


def ends(*first: int, others: tuple[int, ...]) -> pytest.MarkDecorator:
    """Where a loader ends, and with how many workers; the others, with workers, are slow."""
    quick = [(at, num) for at in (*first, *others) for num in (0, 2) if num == 0 or at in first]
    return pytest.mark.parametrize(
        ("at", "num_workers"), [*quick, *(pytest.param(at, 2, marks=pytest.mark.slow) for at in others)]
    )


@ends(1, 63, others=(0, 40, 62, 70))
def test_a_plain_loader_goes_on_by_the_batches_it_gave(num_workers: int, at: int) -> None:
    """Its workers read ahead of them; 63 batches are an epoch."""

    def loader(sampler: LengthGroupedSampler) -> Any:
        return DataLoader(Numbers(), batch_sampler=sampler, num_workers=num_workers, collate_fn=list)

    def endless(sampler: LengthGroupedSampler) -> Any:
        while True:
            yield from loader(sampler)

    sampler = samplers(2, batch_size=8)[1]
    assert len(loader(sampler)) == 63
    stream = endless(sampler)
    list(islice(stream, at))
    state = sampler.state_dict(num_batches=at)
    expected = list(islice(stream, 80))
    again = samplers(2, batch_size=8)[1]
    for damaged, said in (
        (None, "states: a list"),
        ({"position": {**state["position"], "turns": [None]}}, "a state that is"),
    ):
        with pytest.raises(ValueError, match=f"^{said}"):
            again.load_state_dict(damaged)  # type: ignore[arg-type]
    again.load_state_dict(state)
    assert list(islice(endless(again), 80)) == expected


def test_a_sample_that_makes_no_whole_step_is_not_lost() -> None:
    """Batches of one sample for three ranks: the tenth of each epoch was in none."""
    ranks = samplers(3, range(1, 11), batch_size=1)
    epochs = [[list(sampler) for sampler in ranks] for _ in range(3)]
    assert [[len(batches) for batches in epoch] for epoch in epochs] == [[3] * 3, [3] * 3, [4] * 3]
    assert Counter(flat(chain(*chain(*epochs)))) == dict.fromkeys(range(10), 3)


@pytest.mark.parametrize(("overlong", "batches"), [("alone", [[0, 3], [1], [2]]), ("drop", [[0, 3], [2]])])
def test_a_sample_above_the_limit_goes_alone_or_is_left_out(
    overlong: Any, batches: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    """One sample of 20 tokens among 500,000 refused the whole training with max_batch_tokens=9."""
    with caplog.at_level(logging.WARNING):
        (sampler,) = samplers(1, [4, 20, 9, 3], max_batch_tokens=9, overlong=overlong)
    assert sorted(map(sorted, sampler)) == batches
    assert "1 of 4 samples have more than max_batch_tokens=9 tokens, at most 20" in caplog.text
    assert f"overlong='{overlong}'" in caplog.text


def test_what_is_left_of_an_epoch_has_no_sample_that_was_left_out() -> None:
    """Two ranks had four steps, one has the rest: numbers stay those of `lens`."""
    settings: dict[str, Any] = {"max_batch_tokens": 2000, "overlong": "drop"}
    pair = samplers(2, **settings)
    had = [sample for sampler in pair for sample in flat(list(islice(sampler, 4)))]
    (rest,) = samplers(1, **settings)
    rest.load_state_dict(pair[0].state_dict())
    assert sorted(had + flat(list(rest))) == np.flatnonzero(LENS <= 2000).tolist()
    with pytest.raises(ValueError, match=r"states of another dataset, of 1000 samples .*overlong='drop'"):
        samplers(1, max_batch_tokens=2000)[0].load_state_dict(pair[0].state_dict())


def test_settings_that_are_none() -> None:
    for settings, said in (
        ({}, "give one of the two"),
        ({"batch_size": 2, "max_batch_tokens": 9}, "give one of the two"),
        ({"batch_size": 0}, "at least 1"),
        ({"max_batch_tokens": 9, "overlong": "cut"}, "overlong='cut'; there are: alone, drop"),
        ({"max_batch_tokens": 9, "overlong": "drop", "rank": 0, "world_size": 3}, "2 samples for 3 ranks"),
        ({"batch_size": 2, "rank": 0, "world_size": 4}, "3 samples for 4 ranks"),
        ({"batch_size": 2, "window": 0}, "window=0"),
    ):
        with pytest.raises(ValueError, match=said):
            LengthGroupedSampler([5, 20, 7], **settings)
    state = LengthGroupedSampler([5, 20, 7], 2).state_dict()
    with pytest.raises(ValueError, match=r"of 3 samples \(.*, batch_size=2, .*; this one has 3 samples"):
        LengthGroupedSampler([5, 20, 8], 2).load_state_dict(state)
