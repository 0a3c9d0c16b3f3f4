"""The order of packs: every stretch like the whole, and no trend from the first to the last.

Energon deals each rank a contiguous stretch: one with text only, or with long samples only, would train on that alone.
"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.plan.order import likeness, order_packs, spread_of_steps


def features(num: int = 8000, seed: int = 0) -> dict[str, np.ndarray]:
    """Of packs of three kinds with skewed costs."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(3, num, p=[0.6, 0.3, 0.1])
    visual = np.where(kind > 0, rng.lognormal(7, 0.5, num) * (1 + kind), 0).astype(np.int64)
    cost = rng.lognormal(10 + kind, 1.2, num).astype(np.int64)
    return {"kind": kind, "cost": cost, "visual": visual, "members": rng.integers(1, 60, num)}


def ordered(values: dict[str, np.ndarray], seed: int = 0) -> np.ndarray:
    features = [values["cost"], values["visual"], values["members"]]
    return order_packs(features, values["kind"], np.zeros(len(values["kind"]), np.int64), seed)


def unevenness(values: np.ndarray, order: np.ndarray, num_stretches: int = 32) -> float:
    means = np.array([values[stretch].mean() for stretch in np.array_split(order, num_stretches)])
    return float(means.std() / means.mean())


def test_every_stretch_looks_like_the_whole() -> None:
    """In all of media, cost, visual tokens and members: twice as even as by chance, where few packs cost the most."""
    values = features()
    order, chance = ordered(values), np.random.default_rng(1).permutation(8000)
    assert unevenness(values["visual"], order) < unevenness(values["visual"], chance) / 1.8
    assert unevenness(values["members"], order) < unevenness(values["members"], chance) / 2
    assert unevenness(values["cost"], order) < unevenness(values["cost"], chance)
    for kind in range(3):
        assert unevenness(values["kind"] == kind, order) < 0.03


def test_near_numbers_are_like_packs() -> None:
    values = features()
    order = np.argsort(likeness([values["cost"], values["visual"]]))
    for name in ("cost", "visual"):
        rank = np.argsort(np.argsort(values[name]))[order]
        assert np.abs(np.diff(rank)).mean() < 8000 / 7  # by chance: 8000 / 3


def test_training_has_no_curriculum() -> None:
    values = features()
    order = ordered(values)
    assert sorted(order.tolist()) == list(range(8000))
    assert abs(np.corrcoef(np.arange(8000), values["cost"][order])[0, 1]) < 0.03
    assert unevenness(values["members"], order, 8) < 0.05


def test_blocks_stay_together() -> None:
    block = np.arange(100) // 10
    order = order_packs([np.arange(100)], np.zeros(100, np.int64), block, seed=3)
    seen = block[order].reshape(10, 10)
    assert (seen == seen[:, :1]).all()
    assert seen[:, 0].tolist() != list(range(10))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 99)), max_size=60))
def test_every_pack_has_one_place(packs: list[tuple[int, int, int]]) -> None:
    group, block, cost = (np.array([pack[i] for pack in packs], np.int64) for i in range(3))
    order = order_packs([cost], group, block)
    assert sorted(order.tolist()) == list(range(len(packs)))


def test_the_spread_of_steps_by_head() -> None:
    """Two steps of two: (1, 3) has the mean 2, (4, 4) the mean 4."""
    assert spread_of_steps(np.array([1, 3, 4, 4, 9]), 2) == {"max_over_mean": 1.25, "cv": 0.25}
    assert spread_of_steps(np.zeros(4, np.int64), 2) == {"max_over_mean": 1.0, "cv": 0.0}


def test_the_order_follows_the_seed() -> None:
    values = features(500)
    assert ordered(values, 1).tolist() == ordered(values, 1).tolist()
    assert ordered(values, 1).tolist() != ordered(values, 2).tolist()
