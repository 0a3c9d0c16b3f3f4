"""The order of packs: every stretch like the whole, and no trend from the first to the last.

Energon deals each rank a contiguous stretch: one with text only, or with long samples only, would train on that alone.
"""

import tracemalloc
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.plan.items import Items
from energon_pack.plan.pack_order import mix_packs_evenly, similarity_codes
from energon_pack.plan.packs import split_of_packs
from energon_pack.plan.plan import plan_packs
from energon_pack.plan.settings import GroupBy, PackingConfig
from energon_pack.run.bounded_memory import Scratch
from energon_pack.steps.topology import Topology
from support.plans import items, packs


def features(num: int = 8000, seed: int = 0) -> dict[str, np.ndarray]:
    """Return costs of packs of three kinds, skewed."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(3, num, p=[0.6, 0.3, 0.1])
    visual = np.where(kind > 0, rng.lognormal(7, 0.5, num) * (1 + kind), 0).astype(np.int64)
    cost = rng.lognormal(10 + kind, 1.2, num).astype(np.int64)
    return {"kind": kind, "cost": cost, "visual": visual, "members": rng.integers(1, 60, num)}


def ordered(values: dict[str, np.ndarray], seed: int = 0) -> np.ndarray:
    features = [values["cost"], values["visual"], values["members"]]
    return mix_packs_evenly(features, values["kind"], seed)


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


def shares_off(amounts: np.ndarray, order: np.ndarray, size: int) -> float:
    """Return the root mean square distance between the shares of stretches of so many packs and the shares of all."""
    num = len(order) // size
    sums = amounts[order][: num * size].reshape(num, size, -1).sum(axis=1)
    off = sums / sums.sum(axis=1, keepdims=True) - amounts.sum(axis=0) / amounts.sum()
    return float(np.sqrt((off**2).mean()))


def test_every_stretch_has_the_shares_of_a_mixture() -> None:
    """Else a step trains now this entry, now that one, whatever their weights are in the end."""
    rng, values = np.random.default_rng(0), features()
    amounts = rng.gamma(2, 60, (8000, 5)) * [0.4, 0.3, 0.15, 0.1, 0.05]
    amounts[np.arange(8000), rng.choice(5, 8000, p=[0.4, 0.3, 0.15, 0.1, 0.05])] += rng.gamma(3, 150, 8000)
    columns = [values["cost"], values["visual"], values["members"]]
    plain, mixed = (
        mix_packs_evenly(columns, values["kind"]),
        mix_packs_evenly(columns, values["kind"], entry_tokens=amounts),
    )
    assert sorted(mixed.tolist()) == list(range(8000))
    assert shares_off(amounts, mixed, 80) < 0.01 < 0.02 < shares_off(amounts, plain, 80)
    assert shares_off(amounts, mixed, 800) < 0.002
    for kind in range(3):
        assert unevenness(values["kind"] == kind, mixed) < 0.06


def test_an_order_with_amounts_has_each_pack_once() -> None:
    for num in (1, 2, 3, 63, 64, 65, 4095, 4097):
        amounts = np.random.default_rng(num).random((num, 3))
        order = mix_packs_evenly([np.arange(num)], np.zeros(num, np.int64), 1, amounts)
        assert sorted(order.tolist()) == list(range(num))


def test_near_numbers_are_like_packs() -> None:
    values = features()
    order = np.argsort(similarity_codes([values["cost"], values["visual"]]))
    for name in ("cost", "visual"):
        rank = np.argsort(np.argsort(values[name]))[order]
        assert np.abs(np.diff(rank)).mean() < 8000 / 7  # by chance: 8000 / 3


def test_training_has_no_curriculum() -> None:
    values = features()
    order = ordered(values)
    assert sorted(order.tolist()) == list(range(8000))
    assert abs(np.corrcoef(np.arange(8000), values["cost"][order])[0, 1]) < 0.03
    assert unevenness(values["members"], order, 8) < 0.05


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), max_size=60))
def test_every_pack_has_one_place(packs: list[tuple[int, int]]) -> None:
    group, cost = (np.array([pack[i] for pack in packs], np.int64) for i in range(2))
    order = mix_packs_evenly([cost], group)
    assert sorted(order.tolist()) == list(range(len(packs)))


def test_the_order_follows_the_seed() -> None:
    values = features(500)
    assert ordered(values, 1).tolist() == ordered(values, 1).tolist()
    assert ordered(values, 1).tolist() != ordered(values, 2).tolist()


PACKING = PackingConfig(max_token_len=1000, group_by=GroupBy.none, window=2)


def some(num_shards: int, each: int = 50) -> Items:
    chance = np.random.default_rng(num_shards)
    num = num_shards * each
    return items(
        chance.integers(1, 600, num), media=chance.integers(0, 2, num), shard=np.arange(num) // each,
        split=chance.integers(0, 2, num),
    )  # fmt: skip


def test_each_window_has_the_packs_it_would_have_alone() -> None:
    all_items = some(7)
    plan = plan_packs(all_items, PACKING)
    found = packs(plan)
    assert sorted(chain.from_iterable(found)) == list(range(350))
    for first in range(0, 7, 2):
        mine = np.flatnonzero(all_items.shard // 2 == first // 2)
        alone = [mine[pack].tolist() for pack in packs(plan_packs(all_items.take(mine), PACKING))]
        assert [pack for pack in found if pack[0] in mine] == alone


def test_windows_of_a_split_are_not_torn_and_come_by_chance() -> None:
    all_items = some(40)
    plan = plan_packs(all_items, PACKING)
    split = split_of_packs(all_items, plan)
    assert (np.diff(split) >= 0).all()
    assert set(split.tolist()) == {0, 1}
    window = all_items.shard[plan.items[plan.starts[:-1]]] // 2
    for number in (0, 1):
        seen = window[split == number]
        in_turn = seen[np.flatnonzero(np.diff(seen, prepend=-1))].tolist()
        assert sorted(in_turn) == list(range(20))
        assert in_turn != list(range(20))


@pytest.mark.parametrize("topology", [Topology(), Topology(data_parallel=2, micro_batches=2)])
@pytest.mark.parametrize("window", [None, 3])
def test_a_plan_is_the_same_on_disk_and_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int | None, topology: Topology
) -> None:
    """And whatever is at work at once."""
    packing = PackingConfig(max_token_len=1000, window=window, topology=topology)
    there = plan_packs(some(9), packing)
    monkeypatch.setattr("energon_pack.run.bounded_memory.BLOCK_NUMBERS", 17)
    on_disk = plan_packs(some(9), packing, scratch=Scratch(tmp_path))
    assert packs(on_disk) == packs(there)
    assert on_disk.left_out.tolist() == there.left_out.tolist()


def test_memory_does_not_grow_with_the_number_of_windows(tmp_path: Path) -> None:
    """With ten times the samples, memory stays the same; planned together, it would be ten times as much."""

    def peak(num_shards: int, packing: PackingConfig) -> int:
        all_items = some(num_shards, each=300)
        tracemalloc.start()
        plan_packs(all_items, packing, scratch=Scratch(tmp_path))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    few, many = peak(2, PACKING), peak(20, PACKING)
    assert many < 2.5 * few
    assert peak(20, PackingConfig(max_token_len=1000, group_by=GroupBy.none)) > 2 * many
