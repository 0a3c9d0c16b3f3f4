"""Steps whose ranks have as much to do: else all wait for the slowest, in every step."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_pack.plan.even_steps import alike, evened, lay_out
from energon_pack.run.seeded import Ints
from energon_pack.steps.topology import Topology, stream

Costs = np.ndarray[Any, np.dtype[np.float64]]


def packs(num: int, seed: int = 0) -> tuple[Costs, Ints]:
    """A third text, the others with images; those without train on more tokens."""
    rng = np.random.default_rng(seed)
    vision = np.where(rng.random(num) < 0.33, 0.0, rng.lognormal(2, 0.4, num))
    language = rng.lognormal(3, 0.05, num)
    return np.stack([language, vision]), (1000 * language / (1 + vision)).astype(np.int64)


def read(num: int, order: Ints, topology: Topology) -> Ints:
    """Packs by step, micro-batch and rank, as Energon reads what is written in an order: whole steps alone."""
    together = order[stream(num, topology)]
    size = topology.data_parallel * topology.micro_batches
    return together[: num // size * size].reshape(-1, topology.micro_batches, topology.data_parallel)


def max_over_mean(costs: Costs, steps: Ints) -> list[float]:
    """Of a rank's sum in a step, over the epoch."""
    of_ranks = costs[:, steps].sum(axis=2)
    ratios: list[float] = (of_ranks.max(axis=2).sum(axis=1) / of_ranks.mean(axis=2).sum(axis=1)).tolist()
    return ratios


def test_like_packs_by_head() -> None:
    """Pairs of the same cost lie together, whether they differ in one cost or the other."""
    costs = np.array([[1, 1, 5, 5, 1, 1, 5, 5], [2, 9, 2, 9, 2, 9, 2, 9]], float)
    pairs = alike(costs, np.arange(8), 2).reshape(-1, 2).tolist()
    assert sorted(map(sorted, pairs)) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_sums_by_head() -> None:
    """4 and 3, 2 and 1: the bin with 4 gets 1."""
    dealt = evened(np.array([[4.0, 3.0, 2.0, 1.0]]), np.array([[[0, 1]], [[2, 3]]]))
    assert dealt[:, 0].T.tolist() == [[0, 3], [1, 2]]


@pytest.mark.parametrize(
    "topology",
    [
        Topology(5),
        Topology(8),
        Topology(8, 4),
        Topology(8, 4, 4),
        Topology(8, 4, 8),
        Topology(8, 1, 8),
        Topology(16, 2),
    ],
)
def test_both_costs_are_even_in_every_step(topology: Topology) -> None:
    """And for twice the ranks with half the workers: the loader's order is the same then."""
    costs, trained = packs(20_000)
    order = lay_out(costs, trained, topology, 0)
    by_chance = np.random.default_rng(0).permutation(20_000)
    assert max(max_over_mean(costs, read(20_000, order, topology))) < 1.02
    assert max(max_over_mean(costs, read(20_000, by_chance, topology))) > 1.1
    if topology.workers % 2 == 0:
        half = max(1, topology.micro_batches // 2)
        others = Topology(2 * topology.data_parallel, topology.workers // 2, half)
        assert max(max_over_mean(costs, read(20_000, order, others))) < 1.025


def test_steps_of_several_rows_train_evenly_much() -> None:
    costs, trained = packs(20_000)
    topology = Topology(8, 1, 16)
    of_steps = trained[read(20_000, lay_out(costs, trained, topology, 0), topology)].sum(axis=(1, 2))
    assert (np.abs(of_steps / of_steps.mean() - 1) < 0.02).all()


def test_every_stretch_has_about_the_mixture() -> None:
    """No curriculum: dear steps are spread over the epoch, and every rank has as many dear packs as the others."""
    costs, trained = packs(20_000)
    steps = read(20_000, lay_out(costs, trained, Topology(8), 0), Topology(8))[:, 0]
    by_time = [costs[1, part].mean() for part in np.array_split(steps, 20)]
    assert max(by_time) / min(by_time) < 1.2
    by_rank = costs[:, steps].mean(axis=1)
    assert (by_rank.max(axis=1) / by_rank.min(axis=1)).max() < 1.01


@pytest.mark.parametrize("topology", [Topology(16, 1, 64), Topology(100_000)])
def test_packs_that_make_no_whole_step_are_no_curriculum(topology: Topology) -> None:
    """A validation split, or a typing error in `data_parallel`: they came from the cheapest to the dearest."""
    costs, trained = packs(1000)
    read_first = lay_out(costs, trained, topology, 0)[stream(1000, topology)]
    cost = (costs / costs.mean(axis=1, keepdims=True)).sum(axis=0)[read_first]
    by_time = [part.mean() for part in np.array_split(cost, 4)]
    assert max(by_time) / min(by_time) < 1.7
    assert abs(np.corrcoef(np.arange(1000), cost)[0, 1]) < 0.2
    if topology.data_parallel == 16:
        ranks = cost[:992].reshape(-1, 16)
        assert (ranks.max(axis=1).sum() / ranks.mean(axis=1).sum()) < 1.1


@settings(max_examples=60)
@given(
    st.integers(0, 200),
    st.integers(1, 9),
    st.sampled_from([(1, 1), (1, 4), (2, 1), (2, 2), (3, 6), (4, 2)]),
    st.integers(0, 3),
)
def test_every_pack_has_one_place(num: int, data_parallel: int, others: tuple[int, int], seed: int) -> None:
    """None lost, none twice, however few there are; the same order for the same seed."""
    topology = Topology(data_parallel, *others)
    order = lay_out(*packs(num, seed), topology, seed)
    assert sorted(order.tolist()) == list(range(num))
    assert order.tolist() == lay_out(*packs(num, seed), topology, seed).tolist()


def test_packs_without_any_cost() -> None:
    """Text alone has no vision: nothing to divide by."""
    assert sorted(lay_out(np.zeros((2, 20)), np.zeros(20, np.int64), Topology(4), 0).tolist()) == list(range(20))
