"""The plan: every sample in one pack or left out for its length, packs of one medium, mixed over the whole order."""

import math
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.errors import PackError
from energon_pack.plan.pack_lengths import Tally
from energon_pack.plan.packs import LEFT_OUT, PackPlan, shard_bounds
from energon_pack.plan.plan import count_packs_if_no_window, plan_packs
from energon_pack.plan.settings import GroupBy, Overlong, PackingConfig
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.samples.skip import Reason
from energon_pack.steps.evenness import measure_cost_spread
from energon_pack.steps.topology import Topology, reading_order
from support.plans import items, packs

OVERLONG, OVER_CAP = LEFT_OUT.index(Reason.OVERLONG), LEFT_OUT.index(Reason.OVER_CAP)


def make(lens: list[int], media: list[int] | None = None, seed: int = 0, **settings: Any) -> PackPlan:
    return plan_packs(items(lens, media), PackingConfig(**{"max_token_len": 10, **settings}), seed)


def test_a_plan_to_check_by_head() -> None:
    """Text (0): 6+4 and 5. Image (1): 9. A skipped sample (length 0) and one of 11 tokens are out."""
    plan = make([6, 0, 4, 9, 11, 5], [0, 0, 0, 1, 1, 0])
    assert sorted(map(sorted, packs(plan))) == [[0, 2], [3], [5]]
    assert plan.left_out.tolist() == [0, 0, 0, 0, OVERLONG, 0]
    assert plan.lower_bound == 3


def test_padding_counts_in_the_capacity() -> None:
    """Each of two members of 5 takes 8 of 10 where members are padded to multiples of 4: one pack each."""
    assert len(packs(make([5, 5]))) == 1
    assert len(packs(make([5, 5], pad_to_multiple_of=4, max_token_len=12))) == 2
    assert make([9], pad_to_multiple_of=4, max_token_len=8).left_out.tolist() == [OVERLONG]


def test_media_are_kept_apart_unless_asked() -> None:
    assert len(packs(make([5, 5], [0, 1]))) == 2
    assert packs(make([5, 5], [0, 1], group_by=GroupBy.none)) in ([[0, 1]], [[1, 0]])


@given(
    st.lists(st.tuples(st.integers(0, 70), st.integers(-1, 3)), max_size=100),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([GroupBy.media, GroupBy.none]),
    st.integers(0, 9),
)
def test_nothing_is_lost(samples: list[tuple[int, int]], multiple: int, group_by: GroupBy, seed: int) -> None:
    lens, media = ([s[i] for s in samples] for i in (0, 1))
    lens = [length if code >= 0 else 0 for length, code in samples]  # what can't be told was not measured
    plan = make(lens, media, max_token_len=64, pad_to_multiple_of=multiple, group_by=group_by, seed=seed)
    packed = sorted(plan.items.tolist())
    assert packed == [i for i, length in enumerate(lens) if length > 0 and -(-length // multiple) * multiple <= 64]
    assert (plan.left_out > 0).tolist() == [-(-length // multiple) * multiple > 64 for length in lens]
    for pack in packs(plan):
        assert sum(-(-lens[i] // multiple) * multiple for i in pack) <= 64
        assert group_by is GroupBy.none or len({media[i] for i in pack}) == 1
    assert plan.num_packs >= plan.lower_bound


def test_every_stretch_looks_like_the_whole() -> None:
    """Energon deals each rank a contiguous stretch: one with text only would train on text only."""
    rng = np.random.default_rng(0)
    lens = np.clip(rng.lognormal(5, 1, 20_000), 1, 2048).astype(np.int64)
    media = (rng.random(20_000) < 0.3).astype(np.int64)
    plan = plan_packs(items(lens, media), PackingConfig(max_token_len=2048))
    is_image = media[plan.items[plan.starts[:-1]]]
    num_members = np.diff(plan.starts)
    for stretch in np.array_split(np.arange(plan.num_packs), 16):
        assert abs(is_image[stretch].mean() - is_image.mean()) < 0.02
        assert abs(num_members[stretch].mean() / num_members.mean() - 1) < 0.15


def test_the_order_follows_the_seed() -> None:
    lens = list(range(1, 11)) * 20
    assert packs(make(lens, seed=3)) == packs(make(lens, seed=3))
    assert packs(make(lens, seed=3)) != packs(make(lens, seed=4))


def test_caps_hold_together_and_name_what_is_over() -> None:
    """Two images a pack at most, 9 visual tokens, Σ len² ≤ 40: an item of 7 tokens alone is over the last."""
    some = items([2, 2, 2, 2, 7, 5], num_images=[1, 1, 1, 0, 0, 3], num_visual_tokens=[4, 4, 4, 0, 0, 1])
    plan = plan_packs(some, PackingConfig(max_token_len=10, max_images=2, max_visual_tokens=9, max_attention_cost=40))
    assert plan.left_out.tolist() == [0, 0, 0, 0, OVER_CAP, OVER_CAP]
    assert sorted(sum(i < 3 for i in pack) for pack in packs(plan)) == [1, 2]
    assert plan.num_packs == plan.lower_bound == 2


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=60),
    st.tuples(*[st.none() | st.integers(3, 40)] * 4),
    st.integers(1, 4),
)
def test_no_constraint_is_broken(
    values: list[tuple[int, int, int]], caps: tuple[int | None, ...], multiple: int
) -> None:
    lens, num_images, visual = (np.array(column) for column in zip(*values, strict=True))
    names = ("max_images", "max_visual_tokens", "max_members", "max_attention_cost")
    limits: dict[str, Any] = dict(zip(names, caps, strict=True))
    settings = PackingConfig(max_token_len=32, pad_to_multiple_of=multiple, **limits)
    plan = plan_packs(items(lens, num_images=num_images, num_visual_tokens=visual), settings)
    assert sorted(plan.items.tolist()) == np.flatnonzero(plan.left_out == 0).tolist()
    for pack in packs(plan):
        held = (num_images[pack].sum(), visual[pack].sum(), len(pack), (lens[pack] ** 2).sum())
        assert all(cap is None or value <= cap for value, cap in zip(held, caps, strict=True))
        assert (-(-lens[pack] // multiple) * multiple).sum() <= 32
    assert plan.num_packs >= plan.lower_bound


def test_datasets_and_windows_are_kept_apart() -> None:
    some = items([5] * 8, media=[0, 1] * 4, shard=[0, 0, 1, 1, 2, 2, 3, 3], dataset=[0, 0, 0, 0, 1, 1, 1, 1])
    by_dataset = packs(plan_packs(some, PackingConfig(max_token_len=10, group_by=GroupBy.dataset)))
    assert {frozenset(i // 4 for i in pack) for pack in by_dataset} == {frozenset([0]), frozenset([1])}
    in_windows = packs(plan_packs(some, PackingConfig(max_token_len=10, group_by=GroupBy.none, window=2)))
    assert [i // 4 for pack in in_windows for i in pack] in ([0] * 4 + [1] * 4, [1] * 4 + [0] * 4)
    assert len(packs(plan_packs(some, PackingConfig(max_token_len=10, window=1)))) == 8
    assert count_packs_if_no_window(some, PackingConfig(max_token_len=10, window=1), 0) == 4


def test_overlong_items_may_have_packs_of_their_own() -> None:
    plan = make([11, 25, 6, 4], overlong=Overlong.own_pack, hard_limit=20)
    assert sorted(map(sorted, packs(plan))) == [[0], [2, 3]]
    assert plan.left_out.tolist() == [0, OVERLONG, 0, 0]


def test_every_pack_may_need_an_image() -> None:
    some = items([6, 6, 2, 2, 2, 2], num_images=[1, 1, 0, 0, 0, 0])
    packing = PackingConfig(max_token_len=10, group_by=GroupBy.none, need_image=True)
    plan = plan_packs(some, packing)
    assert sorted(len(set(pack) & {0, 1}) for pack in packs(plan)) == [1, 1]
    with pytest.raises(PackError, match=r"packing\.need_image"):
        plan_packs(
            items([9, 9, 9], num_images=[1, 0, 0]),
            PackingConfig(max_token_len=10, group_by=GroupBy.none, need_image=True),
        )


def test_a_topology_puts_like_packs_in_a_step() -> None:
    """Packs of one long sample and packs of many short ones, by the same bins; in each step of 4 they are alike."""
    rng = np.random.default_rng(0)
    lens = np.concatenate((np.full(200, 100_000), rng.integers(5, 5000, 8000)))
    plans = [plan_packs(items(lens), PackingConfig(max_token_len=100_000, topology=Topology(n))) for n in (1, 4)]
    assert len({plan.num_packs for plan in plans}) == 1
    costs = [plan.sum_per_pack(lens**2).astype(float)[reading_order(plan.num_packs, Topology(4))] for plan in plans]
    by_default, even = (measure_cost_spread(cost, 4).epoch for cost in costs)
    assert even - 1 < (by_default - 1) / 5


def test_nothing_to_pack() -> None:
    assert packs(make([])) == packs(make([0, 99])) == []


@pytest.mark.parametrize(
    ("num_packs", "max_packs", "max_bytes", "sizes"),
    [(10, 4, 1e9, [3, 3, 4]), (10, 100, 50, [5, 5]), (5, 100, 30, [2, 3]), (3, 100, 1, [1, 1, 1]), (1, 1, 1, [1])],
)
def test_shards_are_even_and_within_limits(num_packs: int, max_packs: int, max_bytes: float, sizes: list[int]) -> None:
    bounds = shard_bounds(np.full(num_packs, 10), np.zeros(num_packs, np.int8), max_packs, max_bytes)
    assert np.diff(bounds).tolist() == sizes


@given(st.lists(st.integers(1, 100), min_size=1, max_size=50), st.integers(1, 9), st.integers(1, 200))
def test_no_shard_is_over_a_limit(sizes: list[int], max_packs: int, max_bytes: int) -> None:
    bounds = shard_bounds(np.array(sizes), np.zeros(len(sizes), np.int8), max_packs, max_bytes)
    assert (bounds[0], bounds[-1]) == (0, len(sizes))
    for first, end in pairwise(bounds):
        assert 0 < end - first <= max_packs
        assert end - first == 1 or sum(sizes[first:end]) <= max_bytes


def test_media_codes_are_bits() -> None:
    """The report joins them with `or`: text and image make image, image and video make mix."""
    text, image, video, mix = range(4)
    assert MEDIA_TYPES[text | image] == "image"
    assert MEDIA_TYPES[image | video] == MEDIA_TYPES[mix] == "mix"


@given(st.lists(st.lists(st.integers(0, 20), max_size=9), max_size=6))
def test_counted_in_parts_or_together(parts: list[list[int]]) -> None:
    tally, other = Tally(), Tally()
    for part in parts:
        tally.add(np.array(part, np.int32))
        other.merge(Tally(np.array(part, np.int32)))
    ordered = sorted(chain.from_iterable(parts))
    assert np.repeat(tally.values, tally.counts).tolist() == ordered
    assert (other.values.tolist(), other.counts.tolist()) == (tally.values.tolist(), tally.counts.tolist())
    assert (len(tally), tally.total) == (len(ordered), sum(ordered))
    if ordered:
        ranks = {"min": 0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1}
        assert tally.spread() == {name: ordered[math.ceil(rank * (len(ordered) - 1))] for name, rank in ranks.items()}
    else:
        assert tally.spread() == {}
