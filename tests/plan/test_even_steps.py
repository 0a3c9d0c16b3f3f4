"""Steps whose ranks have as much to do: else all wait for the slowest, in every step."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_pack.plan.even_steps import deal_items_evenly_to_bins, order_packs_for_even_steps
from energon_pack.plan.similar_packs import even_out_trained_tokens, put_alike_costs_together
from energon_pack.run.seeded_random import Ints
from energon_pack.steps.evenness import evenness_figures
from energon_pack.steps.topology import Topology, reading_order

Costs = np.ndarray[Any, np.dtype[np.float64]]


def packs(num: int, seed: int = 0) -> tuple[Costs, Ints]:
    """A third text, the others with images; those without train on more tokens."""
    rng = np.random.default_rng(seed)
    vision = np.where(rng.random(num) < 0.33, 0.0, rng.lognormal(2, 0.4, num))
    language = rng.lognormal(3, 0.05, num)
    return np.stack([language, vision]), (1000 * language / (1 + vision)).astype(np.int64)


def read(num: int, order: Ints, topology: Topology) -> Ints:
    """Return packs by step, micro-batch and rank, as Energon reads an order; only whole steps."""
    together = order[reading_order(num, topology)]
    size = topology.data_parallel * topology.micro_batches
    return together[: num // size * size].reshape(-1, topology.micro_batches, topology.data_parallel)


def evenness(costs: Costs, trained: Ints, order: Ints, topology: Topology) -> tuple[float, float, float]:
    """Return the report's figures: time of an epoch by both costs, and the worst distance of a step's trained
    tokens.
    """
    together = order[reading_order(len(trained), topology)]
    found = evenness_figures(costs, trained, topology.data_parallel, topology.micro_batches, together)
    return found["lm"]["epoch"], found["vision"]["epoch"], found["trained"]["worst"]


def max_over_mean(costs: Costs, steps: Ints) -> list[float]:
    """Return, for each cost, the sum over steps of the largest rank's cost, relative to the mean rank's."""
    of_ranks = costs[:, steps].sum(axis=2)
    ratios: list[float] = (of_ranks.max(axis=2).sum(axis=1) / of_ranks.mean(axis=2).sum(axis=1)).tolist()
    return ratios


def test_like_packs_by_head() -> None:
    """Pairs of the same cost lie together, whether they differ in one cost or the other."""
    costs = np.array([[1, 1, 5, 5, 1, 1, 5, 5], [2, 9, 2, 9, 2, 9, 2, 9]], float)
    pairs = put_alike_costs_together(costs, np.arange(8), 2).reshape(-1, 2).tolist()
    assert sorted(map(sorted, pairs)) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_a_trade_by_head() -> None:
    """By cost alone 8 9 | 1 2 train on 2 and 6: the cheapest of the dear goes for what trains on most."""
    costs, trained = np.array([[1.0, 2.0, 8.0, 9.0]]), np.array([1.4, 1.6, 0.4, 0.6])
    assert put_alike_costs_together(costs, np.arange(4), 2, trained=trained).tolist() == [0, 1, 2, 3]
    assert put_alike_costs_together(costs, np.arange(4), 2, trained=trained, most_off=0.5).tolist() == [0, 1, 2, 3]
    assert sorted(put_alike_costs_together(costs, np.arange(4), 2, trained=trained, most_off=0.2)[:2].tolist()) == [
        0,
        2,
    ]


def test_sums_by_head() -> None:
    """4 and 3, 2 and 1: the bin with 4 gets 1."""
    dealt = deal_items_evenly_to_bins(np.array([[4.0, 3.0, 2.0, 1.0]]), np.array([[[0, 1]], [[2, 3]]]))
    assert dealt[:, 0].T.tolist() == [[0, 3], [1, 2]]


@pytest.mark.parametrize(
    "topology",
    [
        Topology(5),
        Topology(8, 4),
        Topology(8, 4, 8),
        Topology(8, 1, 8),
        Topology(16, 2),
    ],
)
def test_both_costs_are_even_in_every_step(topology: Topology) -> None:
    """And for twice the ranks with half the workers: the loader's order is the same then."""
    costs, trained = packs(20_000)
    order = order_packs_for_even_steps(costs, np.ones_like(trained), topology, 0)
    by_chance = np.random.default_rng(0).permutation(20_000)
    assert max(max_over_mean(costs, read(20_000, order, topology))) < 1.025
    assert max(max_over_mean(costs, read(20_000, by_chance, topology))) > 1.1
    if topology.workers % 2 == 0:
        half = max(1, topology.micro_batches // 2)
        others = Topology(2 * topology.data_parallel, topology.workers // 2, half)
        assert max(max_over_mean(costs, read(20_000, order, others))) < 1.035


worlds = st.tuples(st.integers(1, 9), st.sampled_from([(1, 1), (1, 4), (2, 1), (2, 2), (3, 6), (4, 2), (4, 1)])).map(
    lambda world: Topology(world[0], *world[1])
)


@settings(max_examples=100)
@given(st.integers(0, 200), worlds, st.integers(0, 99))
def test_no_step_is_less_even_than_as_packs_come(num: int, topology: Topology, seed: int) -> None:
    """With one pack a rank trained tokens of a step got less even by the layout: 40 % off the mean, 30 % without."""
    costs, trained = packs(num, seed)
    laid, before = (evenness(costs, trained, order, topology) for order in (
        order_packs_for_even_steps(costs, trained, topology, seed, jitter=0.005), np.arange(num)
    ))  # fmt: skip
    assert all(ours <= theirs for ours, theirs in zip(laid, before, strict=True))


def test_steps_of_several_rows_train_evenly_much() -> None:
    costs, trained = packs(20_000)
    topology = Topology(8, 1, 16)
    of_steps = trained[read(20_000, order_packs_for_even_steps(costs, trained, topology, 0), topology)].sum(axis=(1, 2))
    assert (np.abs(of_steps / of_steps.mean() - 1) < 0.02).all()


def test_every_stretch_has_about_the_mixture() -> None:
    """No curriculum: dear steps are spread over the epoch, and every rank has as many dear packs as the others."""
    costs, trained = packs(20_000)
    steps = read(20_000, order_packs_for_even_steps(costs, trained, Topology(8), 0), Topology(8))[:, 0]
    by_time = [costs[1, part].mean() for part in np.array_split(steps, 20)]
    assert max(by_time) / min(by_time) < 1.2
    by_rank = costs[:, steps].mean(axis=1)
    assert (by_rank.max(axis=1) / by_rank.min(axis=1)).max() < 1.02


@pytest.mark.parametrize("topology", [Topology(16, 1, 64), Topology(100_000)])
def test_packs_that_make_no_whole_step_are_no_curriculum(topology: Topology) -> None:
    """A validation split, or a typing error in `data_parallel`: they came from the cheapest to the dearest."""
    costs, trained = packs(1000)
    read_first = order_packs_for_even_steps(costs, trained, topology, 0)[reading_order(1000, topology)]
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
    """No pack is lost or repeated, however few there are; the same seed gives the same order."""
    topology = Topology(data_parallel, *others)
    order = order_packs_for_even_steps(*packs(num, seed), topology, seed)
    assert sorted(order.tolist()) == list(range(num))
    assert order.tolist() == order_packs_for_even_steps(*packs(num, seed), topology, seed).tolist()


def test_one_swap_mends_a_step_by_head() -> None:
    """The first of 8 steps trains on 18, the mean is 9.25: a 9 is swapped for a 4 of the step with equal cost."""
    trained, costs = np.array([9, 9, *[4] * 14]), np.ones((1, 16))
    costs[0, [0, 1, 6, 7]] = 5
    assert even_out_trained_tokens(costs, trained, np.arange(16), 2, 0.5).tolist() == [
        6,
        1,
        2,
        3,
        4,
        5,
        0,
        *range(7, 16),
    ]
    assert even_out_trained_tokens(costs, trained, np.arange(16), 2, 2.0).tolist() == [*range(16)]
