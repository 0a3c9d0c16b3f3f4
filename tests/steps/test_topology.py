"""Which packs ranks and workers read together, as Energon deals them: else a planned step is read in pieces."""

import json
from dataclasses import asdict, replace
from itertools import pairwise, permutations
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.energon import WorkerConfig
from megatron.energon.flavors.webdataset.sharder import Sharder

from energon_pack.errors import PackError
from energon_pack.steps.cost import cost_model_or_default
from energon_pack.steps.evenness import CostSpreadOverRanks, evenness_figures, measure_cost_spread
from energon_pack.steps.journal import Consumed, Journal, find_position_to_resume
from energon_pack.steps.position import PackOrder, Position, TakenNumbers, combine_taken_numbers
from energon_pack.steps.topology import Topology, num_packs_by_worker, reading_order
from support.packed import demo_config, packed

_SMALL = st.integers(1, 12)


@given(st.integers(0, 3000), st.integers(1, 100))
def test_stretches_are_those_of_energon(num: int, row: int) -> None:
    """Energon's own sharder says which packs a worker reads; a rule of ours that differed would mix up steps."""
    of_energon = Sharder.split_samples_to_workers(0, num, WorkerConfig(rank=0, world_size=1, num_workers=row))
    assert np.diff(of_energon).tolist() == num_packs_by_worker(num, row).tolist()


def test_the_stream_by_head() -> None:
    """Two ranks of two workers: they have 0-2, 3-4, 5-6, 7-8; of both ranks the first reads, then the second."""
    assert reading_order(9, Topology(2, 2)).tolist() == [0, 5, 3, 7, 1, 6, 4, 8, 2]
    assert reading_order(3, Topology()).tolist() == [0, 1, 2]


@given(st.integers(0, 300), _SMALL, _SMALL)
def test_the_stream_is_what_ranks_read_by_turns(num: int, data_parallel: int, workers: int) -> None:
    """Each rank takes from its workers by turns, as torch's loader does, each worker from its stretch."""
    edges = [0, *np.cumsum(num_packs_by_worker(num, data_parallel * workers)).tolist()]
    stretches = [list(range(first, end)) for first, end in pairwise(edges)]
    read = []
    for turn in range(max(map(len, stretches)) * workers):
        for rank in range(data_parallel):
            read += stretches[rank * workers + turn % workers][turn // workers :][:1]
    assert reading_order(num, Topology(data_parallel, workers)).tolist() == read


@given(st.integers(1, 200), _SMALL, st.integers(1, 4), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_every_epoch_has_every_pack_once(
    num: int, data_parallel: int, workers: int, rounds: int, reorders: bool
) -> None:
    topology = Topology(data_parallel, workers, workers * rounds)
    packs = PackOrder(num, topology, reorders)
    for epoch in range(4):
        assert sorted(packs.pack_at(epoch * num + place) for place in range(num)) == list(range(num))


@given(st.integers(1, 400), _SMALL, st.integers(1, 4), st.booleans())
def test_units_stay_whole_over_epochs(num: int, data_parallel: int, micro_batches: int, reorders: bool) -> None:
    """Otherwise the packs left over from an epoch would shift all steps of the next one, which would mix two steps."""
    topology = Topology(data_parallel, 1, micro_batches)
    packs, unit = PackOrder(num, topology, reorders), topology.unit_size
    first = {frozenset(packs.pack_at(start + i) for i in range(unit)) for start in range(0, num // unit * unit, unit)}
    for epoch in range(1, 4):
        start = -(-epoch * num // unit) * unit
        steps = [frozenset(packs.pack_at(start + unit * k + i) for i in range(unit)) for k in range(num // unit - 2)]
        assert all(step in first for step in steps)


def test_later_epochs_have_the_steps_in_another_order() -> None:
    """The second epoch of a run was the first once more. A stretch of 64 steps is still one of the first epoch."""
    topology = Topology(4, 1, 1)
    packs = PackOrder(4 * 640, topology, reorders=True)
    epochs = [[packs.pack_at(epoch * 2560 + place) for place in range(2560)] for epoch in range(3)]
    steps = [[tuple(epoch[start : start + 4]) for start in range(0, 2560, 4)] for epoch in epochs]
    assert set(steps[0]) == set(steps[1]) == set(steps[2])
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert sum(a == b for a, b in zip(steps[one], steps[other], strict=True)) < 10
    place = {step: number for number, step in enumerate(steps[0])}
    blocks = [{place[step] // 64 for step in steps[1][start : start + 64]} for start in range(0, 640, 64)]
    assert all(len(block) == 1 for block in blocks)


def test_a_unit_is_of_whole_rows() -> None:
    """Whichever factors ranks and workers have: 8 × 4 with 8 packs a step are 16 × 2 with 4."""
    assert Topology(8, 4, 8).unit_size == Topology(16, 2, 4).unit_size == Topology(32, 1, 2).unit_size == 64
    assert Topology(8, 4, 1).unit_size == Topology(8, 4, 2).unit_size == 32


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        (Topology(0), r"packing\.topology\.data_parallel=0: at least 1"),
        (Topology(2, 4, 6), r"packing\.topology\.workers=4 and micro_batches=6: one has to be a multiple"),
    ],
)
def test_what_is_no_topology(topology: Topology, says: str) -> None:
    with pytest.raises(PackError, match=says):
        topology.check()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, demo: tuple[Path, Path], cache: Path) -> Path:
    """The demo in some 110 packs, laid out for two ranks."""
    config = demo_config(demo, cache, tmp_path_factory.mktemp("topology"), max_skipped=0.5)
    config.packing.max_token_len, config.packing.topology = 512, Topology(2)
    return packed(config)


def test_the_figures_of_a_report_by_hand(dataset: Path) -> None:
    """Two ranks read the halves side by side: FLOPs of each pack, added up row by row."""
    model = cost_model_or_default(None)
    costs: dict[str, float] = {}
    for row in pq.read_table(dataset / "pack_plan.parquet").to_pylist():
        num_images = sum(part["kind"] == "image" for part in row["parts"])
        lm = model.lm_flops(np.array([row["token_len"]]))[0]
        vision = model.vision_flops(np.array([row["num_visual_tokens"]]), np.array([num_images]))[0]
        costs[row["pack"]] = costs.get(row["pack"], 0.0) + lm + vision
    half = -(-len(costs) // 2)
    steps = [*zip([*costs.values()][:half], [*costs.values()][half:], strict=False)]
    figures = json.loads((dataset / "report.json").read_text())["steps"]["in_order"]
    assert figures["both"]["epoch"] == round(2 * sum(map(max, steps)) / sum(map(sum, steps)), 4)
    assert figures["steps"] == len(steps) > 50


def cost(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def test_spreads_by_head() -> None:
    # steps 1|3 and 4|4 of five packs: 3 + 4 of 2 + 4. No order is better, and 4 beside 4 is even
    assert measure_cost_spread(cost(1, 3, 4, 4, 9), 2) == CostSpreadOverRanks(
        1.1667, 1.25, 1.5, bound=1.1667, worst_bound=1.0
    )
    # two packs a rank: rank 0 has the first and the third. With the second and third swapped 5|5 would be 8|2
    assert measure_cost_spread(cost(4, 4, 1, 1), 2, 2) == CostSpreadOverRanks(1.0, 1.0, 1.0, 1.0, 1.0)
    assert measure_cost_spread(cost(4, 1, 4, 1), 2, 2).epoch == 1.6
    # steps of text alone have no cost of vision: 0/0 would be no figure, and 1 would hide the others
    assert measure_cost_spread(cost(0, 0, 1, 3), 2).mean == 1.5
    assert (
        measure_cost_spread(cost(0, 0), 2)
        == measure_cost_spread(cost(), 2)
        == CostSpreadOverRanks(1.0, 1.0, 1.0, 1.0, 1.0)
    )
    # beside 100 there are 10 and 10 at most: 100 / 40 in the best case, and Σ max is 100 + 10 of Σ mean 130 / 3
    spread = measure_cost_spread(cost(100, 1, 10, 1, 10, 8), 3)
    assert (spread.worst_bound, spread.bound) == (2.5, round(3 * 108 / 130, 4))


@settings(max_examples=40)
@given(st.lists(st.integers(0, 9), min_size=6, max_size=6), st.sampled_from([2, 3]))
def test_no_order_trains_more_evenly_than_its_bound(values: list[int], size: int) -> None:
    """The bound stands beside what was planned: one that an order beats says nothing."""
    zeros = np.zeros((2, 6))
    for order in set(permutations(values)):
        trained = evenness_figures(zeros, np.array(order), size)["trained"]
        assert trained["worst"] >= trained["bound"] - 1.1e-4


@settings(max_examples=40)
@given(st.lists(st.integers(0, 9), min_size=6, max_size=6), st.sampled_from([(2, 1), (3, 1), (1, 2), (3, 2), (2, 3)]))
def test_no_order_beats_the_bounds(values: list[int], size: tuple[int, int]) -> None:
    """A bound that an order beats would call a layout the best there is that is not."""
    orders = [measure_cost_spread(cost(*order), *size) for order in set(permutations(values))]
    for spread in orders:
        assert spread.epoch >= spread.bound - 1.1e-4  # both are rounded
        assert spread.worst >= spread.worst_bound - 1.1e-4  # both are rounded
    if size[1] == 1:
        in_order = measure_cost_spread(cost(*sorted(values)), *size)
        assert in_order.epoch == pytest.approx(in_order.bound, abs=1.1e-4)


def test_figures_by_head() -> None:
    """Trained tokens of steps: 30 and 10, each half away from 20."""
    costs = np.stack((cost(1, 1, 3, 5, 7), cost(1, 3, 0, 0, 0)))
    found = evenness_figures(costs, np.array([10, 20, 5, 5, 1]), ranks=2)
    assert (found["steps"], found["left_over"]) == (2, 1)
    assert found["lm"]["epoch"] == 1.2  # 1 + 5 of 1 + 4
    assert found["vision"]["epoch"] == 1.5
    assert found["both"]["epoch"] == round((4 + 5) / (3 + 4), 4)
    assert found["trained"] == {"worst": 0.5, "bound": 0.25, "beyond": 1.0}  # 20 has 5 beside it at least, of 20


def test_packs_are_taken_in_the_order_in_which_they_are_read() -> None:
    costs, trained = np.stack((np.arange(64.0), np.zeros(64))), np.ones(64, np.int64)
    by_chance = np.random.default_rng(0).permutation(64)
    assert (
        evenness_figures(costs, trained, 8)["lm"]["epoch"]
        < 1.15
        < evenness_figures(costs, trained, 8, read=by_chance)["lm"]["epoch"]
    )
    assert evenness_figures(np.zeros((2, 0)), np.zeros(0, np.int64), 4)["steps"] == 0


START = Position("10 packs")


def of_ranks(ranks: int, before: Position = START) -> list[Position]:
    return [replace(before, ranks=ranks, rank=rank) for rank in range(ranks)]


def test_what_is_left_where_some_were_taken_ahead() -> None:
    """0, 1, 2, 4 and 7 are taken."""
    taken = TakenNumbers(3, [4, 7])
    assert [taken.number_at(index) for index in range(5)] == [3, 5, 6, 8, 9]
    assert [taken.index_of(number) for number in (3, 5, 6, 8, 9)] == [0, 1, 2, 3, 4]
    assert taken.with_taken(1, [3]) == TakenNumbers(5, [7, 8])


def test_two_ranks_of_two_workers_take_turns() -> None:
    """Rank 0 reads the even positions; worker 1 skipped a pack, so it is one ahead, which is not read again."""
    first, second = of_ranks(2)
    assert [first.number_at(index) for index in range(4)] == [0, 2, 4, 6]
    after = first.after(1, 2)  # 0 by worker 0; 2 and 6 by worker 1
    assert [after.number_at(index) for index in range(3)] == [4, 8, 10]
    assert after.index_of(8) == 1
    assert (first.last, after.last) == (-1, 2)
    with pytest.raises(ValueError, match=r"pack 3 of the stream is rank 1's, not rank 0's of 2"):
        first.index_of(3)
    assert combine_taken_numbers([second.after(1, 1), after]) == TakenNumbers(4, [6])  # 1 and 3
    assert Position.from_dict(asdict(after)) == after


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
    find_position_to_resume([GOOD], START, 10)
    Journal(dataset, [GOOD])
    with pytest.raises(ValueError, match=r"^a state that is damaged"):
        find_position_to_resume([change], START, 10)
    if "own" not in change:
        with pytest.raises(ValueError, match=r"^a state that is damaged"):
            Journal(dataset, [change])


def test_states_that_do_not_belong_together() -> None:
    """Otherwise packs would be lost, or come twice, in silence."""
    positions = [position.after(2) for position in of_ranks(3)]
    with pytest.raises(ValueError, match=r"states of rank 0, 2, but 3 ranks have trained"):
        combine_taken_numbers([positions[0], positions[2]])
    with pytest.raises(ValueError, match="rank 0, 0, 1"):
        combine_taken_numbers([positions[0], positions[0], positions[1]])
    for other in (replace(START, stream="11 packs"), replace(START, before=TakenNumbers(1))):
        with pytest.raises(ValueError, match="not of the same run"):
            combine_taken_numbers([*positions[:2], of_ranks(3, other)[2]])


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
                seen += map(position.number_at, turns)
                assert [position.index_of(position.number_at(turn)) for turn in turns] == turns
            ends.append(position.after(*read))
        begun = replace(begun, before=combine_taken_numbers(ends))
        assert len(set(seen)) == len(seen)
        top = max(seen, default=-1)
        left = [begun.number_at(index) for index in range(top + 2)]
        assert sorted({*seen, *(number for number in left if number <= top)}) == list(range(top + 1))
    seen += map(begun.number_at, range(3 * num))
    stream = PackOrder(num, topology)
    for epoch in range(2):
        packs = [stream.pack_at(number) for number in seen if number // num == epoch]
        assert sorted(packs) == list(range(num))
