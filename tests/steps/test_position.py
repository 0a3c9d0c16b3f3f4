"""Turns of a stream that ranks share: each is read once, for any ranks that continue it."""

from dataclasses import asdict, replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.steps.journal import Consumed, Journal, resume
from energon_pack.steps.position import Position, Stream, Taken, taken_by
from energon_pack.steps.topology import Topology

START = Position("10 packs")


def of_ranks(ranks: int, before: Position = START) -> list[Position]:
    return [replace(before, ranks=ranks, rank=rank) for rank in range(ranks)]


def test_what_is_left_where_some_were_taken_ahead() -> None:
    """0, 1, 2, 4 and 7 are taken."""
    taken = Taken(3, [4, 7])
    assert [taken.left(index) for index in range(5)] == [3, 5, 6, 8, 9]
    assert [taken.index(number) for number in (3, 5, 6, 8, 9)] == [0, 1, 2, 3, 4]
    assert taken.and_of_left(1, [3]) == Taken(5, [7, 8])


def test_two_ranks_of_two_workers_take_turns() -> None:
    """Rank 0 reads the even positions; worker 1 skipped a pack, so it is one ahead, which is not read again."""
    first, second = of_ranks(2)
    assert [first.number(index) for index in range(4)] == [0, 2, 4, 6]
    after = first.after(1, 2)  # 0 by worker 0; 2 and 6 by worker 1
    assert [after.number(index) for index in range(3)] == [4, 8, 10]
    assert after.index(8) == 1
    assert (first.last, after.last) == (-1, 2)
    with pytest.raises(ValueError, match=r"pack 3 of the stream is rank 1's, not rank 0's of 2"):
        first.index(3)
    assert taken_by([second.after(1, 1), after]) == Taken(4, [6])  # 1 and 3
    assert Position.of(asdict(after)) == after


GOOD: dict[str, Any] = {
    "before": asdict(Consumed()),
    "own": asdict(Consumed()),
    "batches": 0,
    "ranks": 1,
    "rank": 0,
    "workers": 1,
    "position": asdict(START),
}


@pytest.mark.parametrize(
    "change",
    [
        *({"position": 1}, {**GOOD, "position": {}}, {**GOOD, "ranks": 2, "batches": None}),
        *(
            {**GOOD, "position": GOOD["position"] | other}
            for other in ({"turns": None}, {"ranks": 0}, {"rank": "0"}, {"epoch": 1.5}, {"turns": {"first": -1}})
        ),
    ],
)
def test_a_state_that_is_none_is_refused_in_one_line(change: Any) -> None:
    """A file that was cut, or another one: `[null]` was a TypeError somewhere inside."""
    dataset = SimpleNamespace(worker_config=SimpleNamespace(world_size=1, rank=0, num_workers=1))
    resume([GOOD], START, 10)
    Journal(dataset, [GOOD])
    with pytest.raises(ValueError, match=r"^a state that is damaged"):
        resume([change], START, 10)
    if "own" not in change:
        with pytest.raises(ValueError, match=r"^a state that is damaged"):
            Journal(dataset, [change])


def test_states_that_do_not_belong_together() -> None:
    """Otherwise packs would be lost, or come twice, in silence."""
    positions = [position.after(2) for position in of_ranks(3)]
    with pytest.raises(ValueError, match=r"states of rank 0, 2, but 3 ranks have trained"):
        taken_by([positions[0], positions[2]])
    with pytest.raises(ValueError, match="rank 0, 0, 1"):
        taken_by([positions[0], positions[0], positions[1]])
    for other in (replace(START, stream="11 packs"), replace(START, before=Taken(1))):
        with pytest.raises(ValueError, match="not of the same run"):
            taken_by([*positions[:2], of_ranks(3, other)[2]])


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
    begun, seen = Position("a"), list[int]()
    for ranks, workers, steps, random in runs:
        ends = []
        for position in of_ranks(ranks, begun):
            read = [0] * workers
            for step in range(steps):
                worker, first = step % workers, read[step % workers]
                read[worker] += random.choice([1, 1, 1, 2, 4])
                turns = [k * workers + worker for k in range(first, read[worker])]
                seen += map(position.number, turns)
                assert [position.index(position.number(turn)) for turn in turns] == turns
            ends.append(position.after(*read))
        begun = replace(begun, before=taken_by(ends))
        assert len(set(seen)) == len(seen)
        top = max(seen, default=-1)
        left = [begun.number(index) for index in range(top + 2)]
        assert sorted({*seen, *(number for number in left if number <= top)}) == list(range(top + 1))
    seen += map(begun.number, range(3 * num))
    stream = Stream(num, topology)
    for epoch in range(2):
        packs = [stream.index(number) for number in seen if number // num == epoch]
        assert sorted(packs) == list(range(num))
