"""Which packs ranks and workers read together, as Energon deals them: else a planned step is read in pieces."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from megatron.energon import WorkerConfig
from megatron.energon.flavors.webdataset.sharder import Sharder

from energon_pack.errors import PackError
from energon_pack.steps.cost import cost_model
from energon_pack.steps.position import Stream
from energon_pack.steps.topology import Topology, sizes_of_stretches, stream
from support.packed import demo_config, packed

_SMALL = st.integers(1, 12)


@given(st.integers(0, 3000), st.integers(1, 100))
def test_stretches_are_those_of_energon(num: int, row: int) -> None:
    """Energon's own sharder says which packs a worker reads; a rule of ours that differed would mix up steps."""
    of_energon = Sharder.split_samples_to_workers(0, num, WorkerConfig(rank=0, world_size=1, num_workers=row))
    assert np.diff(of_energon).tolist() == sizes_of_stretches(num, row).tolist()


def test_the_stream_by_head() -> None:
    """Two ranks of two workers: they have 0-2, 3-4, 5-6, 7-8; of both ranks the first reads, then the second."""
    assert stream(9, Topology(2, 2)).tolist() == [0, 5, 3, 7, 1, 6, 4, 8, 2]
    assert stream(3, Topology()).tolist() == [0, 1, 2]


@given(st.integers(0, 300), _SMALL, _SMALL)
def test_the_stream_is_what_ranks_read_by_turns(num: int, data_parallel: int, workers: int) -> None:
    """Each rank takes from its workers by turns, as torch's loader does, each worker from its stretch."""
    edges = [0, *np.cumsum(sizes_of_stretches(num, data_parallel * workers)).tolist()]
    stretches = [list(range(first, end)) for first, end in pairwise(edges)]
    read = []
    for turn in range(max(map(len, stretches)) * workers):
        for rank in range(data_parallel):
            read += stretches[rank * workers + turn % workers][turn // workers :][:1]
    assert stream(num, Topology(data_parallel, workers)).tolist() == read


@given(st.integers(1, 200), _SMALL, st.integers(1, 4), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_every_epoch_has_every_pack_once(
    num: int, data_parallel: int, workers: int, rounds: int, reorders: bool
) -> None:
    topology = Topology(data_parallel, workers, workers * rounds)
    packs = Stream(num, topology, reorders)
    for epoch in range(4):
        assert sorted(packs.index(epoch * num + place) for place in range(num)) == list(range(num))


@given(st.integers(1, 400), _SMALL, st.integers(1, 4), st.booleans())
def test_units_stay_whole_over_epochs(num: int, data_parallel: int, micro_batches: int, reorders: bool) -> None:
    """Otherwise the packs left over from an epoch would shift all steps of the next one, which would mix two steps."""
    topology = Topology(data_parallel, 1, micro_batches)
    packs, unit = Stream(num, topology, reorders), topology.unit
    first = {frozenset(packs.index(start + i) for i in range(unit)) for start in range(0, num // unit * unit, unit)}
    for epoch in range(1, 4):
        start = -(-epoch * num // unit) * unit
        steps = [frozenset(packs.index(start + unit * k + i) for i in range(unit)) for k in range(num // unit - 2)]
        assert all(step in first for step in steps)


def test_later_epochs_have_the_steps_in_another_order() -> None:
    """The second epoch of a run was the first once more. A stretch of 64 steps is still one of the first epoch."""
    topology = Topology(4, 1, 1)
    packs = Stream(4 * 640, topology, reorders=True)
    epochs = [[packs.index(epoch * 2560 + place) for place in range(2560)] for epoch in range(3)]
    steps = [[tuple(epoch[start : start + 4]) for start in range(0, 2560, 4)] for epoch in epochs]
    assert set(steps[0]) == set(steps[1]) == set(steps[2])
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert sum(a == b for a, b in zip(steps[one], steps[other], strict=True)) < 10
    place = {step: number for number, step in enumerate(steps[0])}
    blocks = [{place[step] // 64 for step in steps[1][start : start + 64]} for start in range(0, 640, 64)]
    assert all(len(block) == 1 for block in blocks)


def test_a_unit_is_of_whole_rows() -> None:
    """Whichever factors ranks and workers have: 8 × 4 with 8 packs a step are 16 × 2 with 4."""
    assert Topology(8, 4, 8).unit == Topology(16, 2, 4).unit == Topology(32, 1, 2).unit == 64
    assert Topology(8, 4, 1).unit == Topology(8, 4, 2).unit == 32


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
    model = cost_model(None)
    costs: dict[str, float] = {}
    for row in pq.read_table(dataset / "pack_plan.parquet").to_pylist():
        num_images = sum(part["kind"] == "image" for part in row["parts"])
        lm = model.lm(np.array([row["token_len"]]))[0]
        vision = model.vision(np.array([row["num_visual_tokens"]]), np.array([num_images]))[0]
        costs[row["pack"]] = costs.get(row["pack"], 0.0) + lm + vision
    half = -(-len(costs) // 2)
    steps = [*zip([*costs.values()][:half], [*costs.values()][half:], strict=False)]
    figures = json.loads((dataset / "report.json").read_text())["steps"]["in_order"]
    assert figures["both"]["epoch"] == round(2 * sum(map(max, steps)) / sum(map(sum, steps)), 4)
    assert figures["steps"] == len(steps) > 50
