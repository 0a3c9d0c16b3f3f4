"""Which items go into which pack, in which order, and which are left out. Pure: arrays in, arrays out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_pack.errors import PackError
from energon_pack.plan import caps
from energon_pack.plan.bins import Bins, lower_bound, pack_bins
from energon_pack.plan.even_steps import lay_out
from energon_pack.plan.items import AnyInts, Items, Lengths
from energon_pack.plan.order import order_packs
from energon_pack.plan.settings import GroupBy, PackingConfig
from energon_pack.plan.splits import SPLITS
from energon_pack.run.seeded import Ints
from energon_pack.samples.skip import Reason
from energon_pack.steps.cost import CostModel, cost_model

#: `PackPlan.left_out` by code
LEFT_OUT = (None, Reason.OVERLONG, Reason.OVER_CAP)


@dataclass(frozen=True)
class PackPlan:
    """Pack p holds the items `items[starts[p]:starts[p + 1]]`, in that order."""

    starts: Ints  # num_packs + 1
    items: Ints
    left_out: npt.NDArray[np.int8]  # per item: index into LEFT_OUT
    lower_bound: int  # packs, summed over the groups that may not mix

    @property
    def num_packs(self) -> int:
        return len(self.starts) - 1

    def per_pack(self, values: npt.NDArray[Any]) -> Ints:
        """Sums over the members of each pack of one value an item."""
        if not self.num_packs:
            return np.zeros(0, np.int64)
        sums: Ints = np.add.reduceat(values[self.items].astype(np.int64), self.starts[:-1])
        return sums


def no_plan(items: Items) -> PackPlan:
    """One without packs, that leaves nothing out."""
    nothing = np.zeros(0, np.int64)
    return PackPlan(np.zeros(1, np.int64), nothing, np.zeros(len(items), np.int8), 0)


def plan_packs(items: Items, packing: PackingConfig, seed: int = 0, cost: CostModel | None = None) -> PackPlan:
    """Pack items into sequences of at most `max_token_len` tokens, and put the packs in order.

    Every item with a length is in exactly one pack, or left out: `overlong`, or `over_cap` where it alone is more
    than a pack may hold of something else. Items of different groups (`group_by`, `window`) or splits
    share no pack; packs of one split come in a row.

    Args:
        cost: that is even over the ranks of a step, for `packing.topology`; None: of a common model.

    Raises:
        PackError: `need_image`, and there are too few items with images.
    """
    costs, limits = caps.costs(items.counts, packing)
    left_out = np.zeros(len(items), np.int8)
    is_there = items.lens > 0
    over_cap = is_there & (costs[1:] > limits[1:, None]).any(axis=0)
    left_out[over_cap] = LEFT_OUT.index(Reason.OVER_CAP)
    overlong = is_there & (costs[0] > limits[0])
    own = np.flatnonzero(overlong & (costs[0] <= packing.longest[1]) & (left_out == 0))
    overlong[own] = False
    left_out[overlong] = LEFT_OUT.index(Reason.OVERLONG)
    group = groups(items, packing)

    to_pack = is_there & (left_out == 0)
    to_pack[own] = False
    packs: list[Bins] = [Bins(np.arange(len(own) + 1), own)]
    bound = len(own)
    candidates = np.flatnonzero(to_pack)
    candidates = candidates[np.argsort(group[candidates], kind="stable")]
    edges = np.flatnonzero(np.diff(group[candidates])) + 1
    for members in np.split(candidates, edges) if len(candidates) else []:
        of_members = costs[:, members]
        has_image = items.counts["num_images"][members] > 0
        try:
            bins = pack_bins(of_members, limits, packing.algorithm, seed, has_image if packing.need_image else None)
        except ValueError as error:
            num = int(has_image.sum())
            raise PackError(f"packing.need_image: {num} samples with images are too few: {error}") from None
        bound += max(lower_bound(values, limit) for values, limit in zip(of_members, limits, strict=True))
        packs.append(Bins(bins.starts, members[bins.items]))
    return in_order(_joined(packs, left_out, bound), items, packing, seed, cost)


def in_order(
    plan: PackPlan, items: Items, packing: PackingConfig, seed: int, cost: CostModel | None = None
) -> PackPlan:
    """The packs of a plan in the order they are written: by a seed, for the steps of `packing.topology`."""
    if not plan.num_packs:
        return plan
    split = split_of_packs(items, plan)
    of_splits = [np.flatnonzero(split == number) for number in np.unique(split)]
    if packing.topology.has_steps:
        flops, trained = costs_of_packs(items, plan, cost or cost_model(None)), plan.per_pack(items.num_supervised)
        return taken(plan, [of[lay_out(flops[:, of], trained[of], packing.topology, seed)] for of in of_splits])
    first = plan.items[plan.starts[:-1]]
    kind = groups(items, packing)[first]
    if packing.group_by is not GroupBy.dataset:
        kind = media_of_packs(items, plan).astype(np.int64)
    window, features = _window(items, packing)[first], list(features_of_packs(items, plan).values())
    by_split = [order_packs([values[of] for values in features], kind[of], window[of], seed) for of in of_splits]
    return taken(plan, [of[order] for of, order in zip(of_splits, by_split, strict=True)])


def split_of_packs(items: Items, plan: PackPlan) -> AnyInts:
    """Index into SPLITS for each pack."""
    return items.split[plan.items[plan.starts[:-1]]]


def split_counts(items: Items, plan: PackPlan) -> dict[str, dict[str, int]]:
    """Packs, samples and tokens of each split that has any."""
    split, of_member = split_of_packs(items, plan), items.split[plan.items]
    return {
        name: {
            "packs": int((split == number).sum()),
            "samples": int((of_member == number).sum()),
            "tokens": int(items.lens[plan.items[of_member == number]].sum()),
        }
        for number, name in enumerate(SPLITS)
        if (split == number).any()
    }


def check_splits(lengths: Lengths, plan: PackPlan, shares: Sequence[float]) -> None:
    """Raises PackError where a split that was asked for gets no pack."""
    counts = split_counts(lengths.items, plan)
    for name, share in zip(SPLITS, shares, strict=True):
        if share and plan.num_packs and name not in counts:
            raise PackError(
                f"output.splits.{name}={share:g}: none of the {len(plan.items)} samples is in it; a larger share,"
                " or another seed"
            )


def without_window(items: Items, packing: PackingConfig, seed: int) -> int:
    """How many packs there would be without `packing.window`."""
    return plan_packs(items, replace(packing, window=None), seed).num_packs


def features_of_packs(items: Items, plan: PackPlan) -> dict[str, Ints]:
    """What makes packs alike: attention cost Σ len², visual tokens, members."""
    return {
        "attention_cost": plan.per_pack(items.lens.astype(np.int64) ** 2),
        "visual_tokens": plan.per_pack(items.counts["num_visual_tokens"]),
        "members": np.diff(plan.starts),
    }


def costs_of_packs(items: Items, plan: PackPlan, cost: CostModel) -> npt.NDArray[np.float64]:
    """float64[2, num_packs]: of the language model and of the vision encoder."""
    visual = cost.vision(items.counts["num_visual_tokens"], items.counts["num_images"])
    return np.stack([plan.per_pack(cost.lm(items.lens)), plan.per_pack(visual)]).astype(np.float64)


def media_of_packs(items: Items, plan: PackPlan) -> npt.NDArray[Any]:
    """Index into MEDIA_TYPES for each pack: text and image make image, image and video make mix. The codes are bits."""
    if not plan.num_packs:
        return np.zeros(0, np.int64)
    media: npt.NDArray[Any] = np.bitwise_or.reduceat(items.media[plan.items], plan.starts[:-1])
    return media


def groups(items: Items, packing: PackingConfig) -> Ints:
    """A number an item; items with different numbers share no pack."""
    group = np.zeros(len(items), np.int64)
    if packing.group_by is GroupBy.media:
        group += items.media
    elif packing.group_by is GroupBy.dataset:
        group += items.dataset
    return group + (_window(items, packing) + items.split.astype(np.int64) * (1 << 24)) * (1 << 32)


def _window(items: Items, packing: PackingConfig) -> Ints:
    shard = items.shard.astype(np.int64)
    return shard // packing.window if packing.window else np.zeros_like(shard)


def _joined(packs: list[Bins], left_out: npt.NDArray[np.int8], bound: int) -> PackPlan:
    sizes = np.concatenate([np.diff(bins.starts) for bins in packs])
    return PackPlan(np.concatenate(([0], np.cumsum(sizes))), np.concatenate([b.items for b in packs]), left_out, bound)


def taken(plan: PackPlan, packs: Sequence[Ints]) -> PackPlan:
    """Some packs of a plan, in this order."""
    order = np.concatenate(packs)
    size = np.diff(plan.starts)[order]
    starts = np.concatenate(([0], np.cumsum(size)))
    flat = np.arange(starts[-1]) + np.repeat(plan.starts[order] - starts[:-1], size)
    return replace(plan, starts=starts, items=plan.items[flat])
