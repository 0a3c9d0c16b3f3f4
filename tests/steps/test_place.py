"""Turns of a stream that ranks share: each is read once, for any ranks that continue it."""

from dataclasses import asdict, replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.steps.journal import Consumed, Journal, begin
from energon_pack.steps.place import Place, Share, Taken, joined
from energon_pack.steps.stream import Stream
from energon_pack.steps.topology import Topology

START = Place(10, "a", Topology())


def test_what_is_left_where_some_were_taken_ahead() -> None:
    """0, 1, 2, 4 and 7 are taken."""
    taken = Taken(3, [4, 7])
    assert [taken.left(index) for index in range(5)] == [3, 5, 6, 8, 9]
    assert [taken.index(number) for number in (3, 5, 6, 8, 9)] == [0, 1, 2, 3, 4]
    assert taken.and_of_left(1, [3]) == Taken(5, [7, 8])


def test_two_ranks_of_two_workers_take_turns() -> None:
    """Rank 0 reads the even positions; worker 1 skipped a pack, so it is one ahead, which is not read again."""
    share = Share(START, 2, 0)
    assert [share.position(index) for index in range(4)] == [0, 2, 4, 6]
    after = share.after([1, 2])  # 0 by worker 0; 2 and 6 by worker 1
    assert [after.position(index) for index in range(3)] == [4, 8, 10]
    assert after.index(8) == 1
    with pytest.raises(ValueError, match=r"pack 3 of the stream is rank 1's, not rank 0's of 2"):
        share.index(3)
    other = Share(START, 2, 1).after([1, 1])  # 1 and 3
    assert joined([other, after]).taken == Taken(4, [6])
    assert Share.of(asdict(after)) == after


GOOD: dict[str, Any] = {
    "before": asdict(Consumed()),
    "own": asdict(Consumed()),
    "batches": 0,
    "ranks": 1,
    "rank": 0,
    "workers": 1,
    "share": asdict(Share(START, 1, 0)),
}


@pytest.mark.parametrize(
    "change",
    [
        *(None, [], 1, "share", {}, {"share": 1}, {**GOOD, "share": {}}, {**GOOD, "batches": None}),
        *({**GOOD, "share": GOOD["share"] | other} for other in ({"taken": None}, {"ranks": 0}, {"rank": "0"})),
        {**GOOD, "share": GOOD["share"] | {"place": GOOD["share"]["place"] | {"num": 1.5}}},
    ],
)
def test_a_state_that_is_none_is_refused_in_one_line(change: Any) -> None:
    """A file that was cut, or another one: `[null]` was a TypeError somewhere inside."""
    dataset = SimpleNamespace(worker_config=SimpleNamespace(world_size=1, rank=0, num_workers=1), share=None)
    begin(START, 1, 0, [GOOD])
    Journal(dataset, [GOOD])
    with pytest.raises(ValueError, match=r"^a state that is damaged"):
        begin(START, 1, 0, [change])
    if not isinstance(change, dict) or "own" not in change:
        with pytest.raises(ValueError, match=r"^a state that is damaged"):
            Journal(dataset, [change])


def test_states_that_do_not_belong_together() -> None:
    """Otherwise packs would be lost, or come twice, in silence."""
    shares = [Share(START, 3, rank).after([2]) for rank in range(3)]
    with pytest.raises(ValueError, match=r"states of rank 0, 2, but 3 ranks have trained"):
        joined([shares[0], shares[2]])
    with pytest.raises(ValueError, match="rank 0, 0, 1"):
        joined([shares[0], shares[0], shares[1]])
    for other in (replace(START, num=11), replace(START, taken=Taken(1))):
        with pytest.raises(ValueError, match="not of the same run"):
            joined([*shares[:2], Share(other, 3, 2)])


worlds = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(0, 9), st.randoms(use_true_random=False)), max_size=5
)
topologies = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)).map(
    lambda factors: Topology(factors[0], factors[1], factors[1] * factors[2])
)


@given(st.integers(1, 40), topologies, worlds)
def test_each_pack_is_read_once_an_epoch_whoever_goes_on(
    num: int, topology: Topology, runs: list[tuple[int, int, int, Random]]
) -> None:
    """Ranks and workers change after any step; a worker gets ahead of others by packs that it skips."""
    place, seen = Place(num, "a", topology), list[int]()
    for ranks, workers, steps, random in runs:
        shares = [Share(place, ranks, rank) for rank in range(ranks)]
        ends = []
        for share in shares:
            read = [0] * workers
            for step in range(steps):
                worker, first = step % workers, read[step % workers]
                read[worker] += random.choice([1, 1, 1, 2, 4])
                turns = [k * workers + worker for k in range(first, read[worker])]
                seen += map(share.position, turns)
                assert [share.index(share.position(turn)) for turn in turns] == turns
            ends.append(share.after(read))
        place = joined(ends)
        assert len(set(seen)) == len(seen)
        top = max(seen, default=-1)
        left = [place.taken.left(index) for index in range(top + 2)]
        assert sorted({*seen, *(position for position in left if position <= top)}) == list(range(top + 1))
    seen += map(Share(place, 1, 0).position, range(3 * num))
    stream = Stream(num, topology)
    for epoch in range(2):
        packs = [stream.index(position) for position in seen if position // num == epoch]
        assert sorted(packs) == list(range(num))
