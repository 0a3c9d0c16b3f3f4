"""A later epoch has the first epoch's items in as many packs, and no pack breaks a limit."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.plan.existing_packs import exchange_members_for_epoch
from energon_pack.plan.items import Items
from energon_pack.plan.packs import PackPlan, select_packs, split_of_packs
from energon_pack.plan.plan import plan_packs
from energon_pack.plan.settings import GroupBy, Overlong, PackingConfig
from support.plans import items, packs

#: tokens, images, visual tokens, medium, folder, shard, split; of few values, so that many are alike
SAMPLE = st.tuples(
    st.integers(0, 12), st.integers(0, 2), st.integers(0, 3), st.integers(0, 1), st.integers(0, 1), st.integers(0, 3),
    st.integers(0, 1),
)  # fmt: skip
COLUMNS = ("token_len", "num_images", "num_visual_tokens", "media", "dataset", "shard", "split")
CAPS = ("max_images", "max_visual_tokens", "max_members", "max_attention_cost")


def made(samples: Sequence[tuple[int, ...]], **settings: Any) -> tuple[Items, PackingConfig, PackPlan]:
    columns: Any = dict(zip(COLUMNS, zip(*samples, strict=True), strict=True))
    some, packing = items(columns.pop("token_len"), columns.pop("media"), **columns), PackingConfig(**settings)
    return some, packing, plan_packs(some, packing)


def test_an_epoch_to_check_by_head() -> None:
    """Packs of 6 + 4, twice, and one of 9: sixes change places with sixes, fours with fours; the nine stays alone."""
    some, packing, plan = made([(n, 0, 0, 0, 0, 0, 0) for n in (6, 4, 9, 6, 4)], max_token_len=10)
    mates = {
        frozenset(map(frozenset, packs(exchange_members_for_epoch(plan, some, packing, 0, epoch))))
        for epoch in range(40)
    }
    assert mates == {
        frozenset({frozenset([0, 1]), frozenset([3, 4]), frozenset([2])}),
        frozenset({frozenset([0, 4]), frozenset([3, 1]), frozenset([2])}),
    }


@given(
    samples=st.lists(SAMPLE, min_size=1, max_size=60),
    caps=st.tuples(*[st.none() | st.integers(1, 60)] * 4),
    multiple=st.sampled_from([1, 2]),
    group_by=st.sampled_from(list(GroupBy)),
    window=st.none() | st.integers(1, 3),
    own_pack=st.booleans(),
    max_packs=st.none() | st.integers(1, 5),
    seed=st.integers(-3, 3),
    epoch=st.integers(1, 3),
)
def test_no_limit_is_broken_in_a_later_epoch(
    samples: list[tuple[int, ...]], caps: tuple[int | None, ...], multiple: int, group_by: GroupBy, window: int | None,
    own_pack: bool, max_packs: int | None, seed: int, epoch: int,
) -> None:  # fmt: skip
    """No pack overflows, mixes groups or splits; no sample is lost or repeated."""
    settings: dict[str, Any] = dict(zip(CAPS, caps, strict=True))
    if own_pack:
        settings |= {"overlong": Overlong.own_pack, "hard_limit": 12}
    some, packing, plan = made(
        samples, max_token_len=8, pad_to_multiple_of=multiple, group_by=group_by, window=window, **settings
    )
    if max_packs is not None:
        plan = select_packs(plan, [np.arange(min(max_packs, plan.num_packs))])
    other = exchange_members_for_epoch(plan, some, packing, seed, epoch)
    assert sorted(other.items) == sorted(plan.items)
    lens = -(-some.lens // multiple) * multiple
    assert Counter(other.sum_per_pack(lens)) == Counter(plan.sum_per_pack(lens))
    if plan.num_packs:
        assert (np.diff(split_of_packs(some, other)) >= 0).all()
    counts = some.counts
    for pack in packs(other):
        media = counts["num_images"][pack].sum(), counts["num_visual_tokens"][pack].sum()
        held = *media, len(pack), (some.lens[pack] ** 2).sum()
        assert all(cap is None or value <= cap for value, cap in zip(held, caps, strict=True))
        assert lens[pack].sum() <= 8 or len(pack) == 1
        assert len({*some.split[pack].tolist()}) == 1
        assert window is None or len({*(some.shard[pack] // window).tolist()}) == 1
        of_group = {GroupBy.media: some.media, GroupBy.dataset: some.dataset, GroupBy.none: np.zeros(len(some))}
        assert len({*of_group[group_by][pack].tolist()}) == 1


@given(
    samples=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 1)), min_size=1, max_size=40), epoch=st.integers(1, 3)
)
def test_every_pack_of_a_later_epoch_has_its_image(samples: list[tuple[int, int]], epoch: int) -> None:
    """A text as long as an image's sample in its place would leave a pack without one."""
    with_image = [(length, 1, 0, 0, 0, 0, 0) for length, _ in samples]  # enough for all packs
    without = [(length, number, 0, 0, 0, 0, 0) for length, number in samples]
    settings = {"max_token_len": 8, "group_by": GroupBy.none, "need_image": True}
    some, packing, plan = made(with_image + without, **settings)
    other = exchange_members_for_epoch(plan, some, packing, 0, epoch)
    assert all(some.counts["num_images"][pack].any() for pack in packs(other))
