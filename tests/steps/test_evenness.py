"""Figures of steps: small ones by head, and bounds that no order beats."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.steps.evenness import Spread, figures, spread_of


def cost(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def test_a_step_takes_as_long_as_its_dearest_rank() -> None:
    """Steps 1|3 and 4|4 of five packs: 3 + 4 of 2 + 4. No order is better, and 4 beside 4 is even."""
    assert spread_of(cost(1, 3, 4, 4, 9), 2) == Spread(1.1667, 1.25, 1.5, bound=1.1667, worst_bound=1.0)


def test_ranks_read_in_turn() -> None:
    """Two packs a rank: rank 0 has the first and the third. With the second and third swapped 5|5 would be 8|2."""
    assert spread_of(cost(4, 4, 1, 1), 2, 2) == Spread(1.0, 1.0, 1.0, 1.0, 1.0)
    assert spread_of(cost(4, 1, 4, 1), 2, 2).epoch == 1.6


def test_steps_without_a_cost_are_left_out() -> None:
    """Steps of text alone have no cost of vision: 0/0 would be no figure, and 1 would hide the others."""
    assert spread_of(cost(0, 0, 1, 3), 2).mean == 1.5
    assert spread_of(cost(0, 0), 2) == spread_of(cost(), 2) == Spread(1.0, 1.0, 1.0, 1.0, 1.0)


def test_one_dear_pack_sets_a_bound() -> None:
    """Beside 100 there are 10 and 10 at most: 100 / 40 in the best case, and Σ max is 100 + 10 of Σ mean 130 / 3."""
    spread = spread_of(cost(100, 1, 10, 1, 10, 8), 3)
    assert (spread.worst_bound, spread.bound) == (2.5, round(3 * 108 / 130, 4))


@given(st.lists(st.integers(0, 9), min_size=6, max_size=6), st.sampled_from([2, 3]))
def test_no_order_trains_more_evenly_than_its_bound(values: list[int], size: int) -> None:
    """The bound stands beside what was planned: one that an order beats says nothing."""
    zeros = np.zeros((2, 6))
    for order in set(permutations(values)):
        trained = figures(zeros, np.array(order), size)["trained"]
        assert trained["worst"] >= trained["bound"] - 1.1e-4


@given(st.lists(st.integers(0, 9), min_size=6, max_size=6), st.sampled_from([(2, 1), (3, 1), (1, 2), (3, 2), (2, 3)]))
def test_no_order_beats_the_bounds(values: list[int], size: tuple[int, int]) -> None:
    """A bound that an order beats would call a layout the best there is that is not."""
    orders = [spread_of(cost(*order), *size) for order in set(permutations(values))]
    for spread in orders:
        assert spread.epoch >= spread.bound - 1.1e-4  # both are rounded
        assert spread.worst >= spread.worst_bound - 1.1e-4  # both are rounded
    if size[1] == 1:
        in_order = spread_of(cost(*sorted(values)), *size)
        assert in_order.epoch == pytest.approx(in_order.bound, abs=1.1e-4)


def test_figures_by_head() -> None:
    """Trained tokens of steps: 30 and 10, each half away from 20."""
    costs = np.stack((cost(1, 1, 3, 5, 7), cost(1, 3, 0, 0, 0)))
    found = figures(costs, np.array([10, 20, 5, 5, 1]), ranks=2)
    assert (found["steps"], found["left_over"]) == (2, 1)
    assert found["lm"]["epoch"] == 1.2  # 1 + 5 of 1 + 4
    assert found["vision"]["epoch"] == 1.5
    assert found["both"]["epoch"] == round((4 + 5) / (3 + 4), 4)
    assert found["trained"] == {"worst": 0.5, "bound": 0.25, "beyond": 1.0}  # 20 has 5 beside it at least, of 20


def test_packs_are_taken_in_the_order_in_which_they_are_read() -> None:
    costs, trained = np.stack((np.arange(64.0), np.zeros(64))), np.ones(64, np.int64)
    by_chance = np.random.default_rng(0).permutation(64)
    assert figures(costs, trained, 8)["lm"]["epoch"] < 1.15 < figures(costs, trained, 8, read=by_chance)["lm"]["epoch"]
    assert figures(np.zeros((2, 0)), np.zeros(0, np.int64), 4)["steps"] == 0
