"""A window is planned for itself, so memory holds one at a time; and a plan is the same in memory and on disk."""

import tracemalloc
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from energon_pack.plan.items import Items
from energon_pack.plan.packs import split_of_packs
from energon_pack.plan.plan import plan_packs
from energon_pack.plan.settings import GroupBy, PackingConfig
from energon_pack.run.scratch import Scratch
from energon_pack.steps.topology import Topology
from support.plans import items, packs

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
    monkeypatch.setattr("energon_pack.run.scratch.AT_WORK", 17)
    on_disk = plan_packs(some(9), packing, scratch=Scratch(tmp_path))
    assert packs(on_disk) == packs(there)
    assert on_disk.left_out.tolist() == there.left_out.tolist()


def test_memory_does_not_grow_with_the_number_of_windows(tmp_path: Path) -> None:
    """With ten times the samples, memory stays the same; planned together, it would be ten times as much."""

    def peak(num_shards: int, packing: PackingConfig) -> int:
        all_items = some(num_shards, each=1000)
        tracemalloc.start()
        plan_packs(all_items, packing, scratch=Scratch(tmp_path))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    few, many = peak(4, PACKING), peak(40, PACKING)
    assert many < 2.5 * few
    assert peak(40, PackingConfig(max_token_len=1000, group_by=GroupBy.none)) > 2 * many
