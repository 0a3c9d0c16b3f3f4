"""Which items go into which pack, in which order, and which are left out. Pure: arrays in, arrays out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_pack.errors import PackError, amount
from energon_pack.plan import caps
from energon_pack.plan.bins import lower_bound, pack_bins
from energon_pack.plan.even_steps import lay_out
from energon_pack.plan.items import AnyInts, Items, Lengths
from energon_pack.plan.order import order_packs
from energon_pack.plan.settings import GroupBy, PackingConfig
from energon_pack.plan.splits import SPLITS
from energon_pack.plan.windows import by_chance, window_of, windows
from energon_pack.run.scratch import Scratch, blocks
from energon_pack.run.seeded import Ints, seed_of
from energon_pack.samples.skip import Reason
from energon_pack.steps.cost import CostModel, cost_model

#: `PackPlan.left_out` by code
LEFT_OUT = (None, Reason.OVERLONG, Reason.OVER_CAP)

_IN_MEMORY = Scratch()
_MOST_AT_ONCE = 4_000_000  # items that are planned for a figure alone


def _same(values: Any) -> Any:
    return values


@dataclass(frozen=True)
class PackPlan:
    """Pack p holds the items `items[starts[p]:starts[p + 1]]`, in that order."""

    starts: Ints  # num_packs + 1
    items: Ints
    left_out: npt.NDArray[np.int8]  # per item: index into LEFT_OUT
    lower_bound: int  # packs, summed over the groups that may not mix
    #: where each pack would stand without `packing.topology`; None: there
    places: Ints | None = None

    @property
    def num_packs(self) -> int:
        return len(self.starts) - 1

    @property
    def mean_members(self) -> float:
        return len(self.items) / max(1, self.num_packs)

    def parts(self) -> "Iterator[PackPlan]":
        """The packs, many at a time."""
        for packs in blocks(self.num_packs, self.mean_members):
            starts = self.starts[packs.start : packs.stop + 1]
            yield replace(self, starts=starts - starts[0], items=self.items[starts[0] : starts[-1]], places=None)

    def per_pack(self, *columns: npt.NDArray[Any], of: Callable[..., Any] = _same, add: np.ufunc = np.add) -> Ints:
        """Sums over the members of each pack of one value an item; of `num_packs` int64 alone memory is taken.

        Args:
            columns: of all items.
            of: what makes the value of them; of one column, it is the value.
            add: what takes the place of a sum.
        """
        sums, done = np.zeros(self.num_packs, np.int64), 0
        for part in self.parts():
            values = of(*(column[part.items] for column in columns)).astype(np.int64)
            sums[done : done + part.num_packs] = add.reduceat(values, part.starts[:-1])
            done += part.num_packs
        return sums

    def is_packed(self, scratch: Scratch) -> npt.NDArray[np.bool_]:
        """Of each item whether it is in a pack."""
        found = scratch.zeros(len(self.left_out), np.bool_)
        for block in blocks(len(self.items)):
            found[self.items[block]] = True
        return found


class _Packs:
    """Packs of one plan that are made one after another."""

    def __init__(self, scratch: Scratch):
        self._items = scratch.column(np.int64)
        self._sizes: list[Ints] = [np.zeros(1, np.int64)]

    def add(self, sizes: Ints, items: Ints) -> None:
        self._sizes.append(sizes)
        self._items.add(items)

    def add_all(self, made: "_Packs") -> None:
        self._sizes += made._sizes[1:]
        items = made._items.array()
        for block in blocks(len(items)):
            self._items.add(items[block])

    def plan(self, left_out: npt.NDArray[np.int8], bound: int) -> PackPlan:
        return PackPlan(np.cumsum(np.concatenate(self._sizes)), self._items.array(), left_out, bound)


def no_plan(items: Items) -> PackPlan:
    """One without packs, that leaves nothing out."""
    nothing = np.zeros(0, np.int64)
    return PackPlan(np.zeros(1, np.int64), nothing, np.zeros(len(items), np.int8), 0)


def plan_packs(
    items: Items,
    packing: PackingConfig,
    seed: int = 0,
    cost: CostModel | None = None,
    scratch: Scratch = _IN_MEMORY,
) -> PackPlan:
    """Pack items into sequences of at most `max_token_len` tokens, and put the packs in order.

    Every item with a length is in exactly one pack, or left out: `overlong`, or `over_cap` where it alone is more
    than a pack may hold of something else. Items of different groups (`group_by`, `window`) or splits
    share no pack; packs of one split come in a row. One window is planned at a time.

    Args:
        cost: that is even over the ranks of a step, for `packing.topology`; None: of a common model.
        scratch: where the plan lies.

    Raises:
        PackError: `need_image`, and there are too few items with images.
    """
    of_splits, bound = [_Packs(scratch) for _ in SPLITS], 0
    left_out = scratch.zeros(len(items), np.int8)
    for numbers in windows(items, packing, seed):
        some = items.take(numbers)
        plan = in_order(_packed(some, packing, seed), some, packing, seed, scratch)
        split = split_of_packs(some, plan)
        for number in np.unique(split).tolist():
            of_split = taken(plan, [np.flatnonzero(split == number)], scratch)
            members = of_split.items if isinstance(numbers, slice) else numbers[of_split.items]
            of_splits[number].add(np.diff(of_split.starts), members)
        left_out[numbers] = plan.left_out
        bound += plan.lower_bound
    packs = _Packs(scratch)
    for made in of_splits:
        packs.add_all(made)
    plan = packs.plan(left_out, bound)
    return _in_steps(plan, items, packing, seed, cost or cost_model(None), scratch)


def _packed(items: Items, packing: PackingConfig, seed: int) -> PackPlan:
    """The packs of a window, those with one item that is too long for others first, then by group."""
    costs, limits = caps.costs(items.counts, packing)
    left_out = np.zeros(len(items), np.int8)
    is_there = items.lens > 0
    over_cap = is_there & (costs[1:] > limits[1:, None]).any(axis=0)
    left_out[over_cap] = LEFT_OUT.index(Reason.OVER_CAP)
    overlong = is_there & (costs[0] > limits[0])
    own = np.flatnonzero(overlong & (costs[0] <= packing.longest[1]) & (left_out == 0))
    overlong[own] = False
    left_out[overlong] = LEFT_OUT.index(Reason.OVERLONG)

    to_pack = is_there & (left_out == 0)
    to_pack[own] = False
    packs, bound = _Packs(_IN_MEMORY), len(own)
    packs.add(np.ones(len(own), np.int64), own)
    candidates = np.flatnonzero(to_pack)
    group = groups(items, packing)[candidates]
    candidates = candidates[np.argsort(group, kind="stable")]
    edges = np.flatnonzero(np.diff(np.sort(group))) + 1
    for members in np.split(candidates, edges) if len(candidates) else []:
        of_members = costs[:, members]
        has_image = items.counts["num_images"][members] > 0
        try:
            bins = pack_bins(of_members, limits, packing.algorithm, seed, has_image if packing.need_image else None)
        except ValueError as error:
            num = int(has_image.sum())
            raise PackError(f"packing.need_image: {num} samples with images are too few: {error}") from None
        bound += max(lower_bound(values, limit) for values, limit in zip(of_members, limits, strict=True))
        packs.add(np.diff(bins.starts), members[bins.items])
    return packs.plan(left_out, bound)


def in_order(
    plan: PackPlan, items: Items, packing: PackingConfig, seed: int, scratch: Scratch = _IN_MEMORY
) -> PackPlan:
    """The packs of a plan in an order in which every stretch is like the whole: by a seed, for no topology.

    Windows come by chance, one after another, and each is put in order for itself.
    """
    if not plan.num_packs:
        return plan
    split = split_of_packs(items, plan)
    of_splits = [np.flatnonzero(split == number) for number in np.unique(split)]
    window = window_of(items.shard[plan.items[plan.starts[:-1]]], packing)
    packs = _Packs(scratch)
    for of_split in of_splits:
        numbers, starts = np.unique(np.sort(window[of_split]), return_index=True)
        of_windows = np.split(of_split[np.argsort(window[of_split], kind="stable")], starts[1:])
        by_number = dict(zip(numbers.tolist(), of_windows, strict=True))
        for number in by_chance([*by_number], seed):
            mine = by_number[number]
            some = plan if len(mine) == plan.num_packs else taken(plan, [mine], scratch)
            kind = media_of_packs(items, some).astype(np.int64)
            if packing.group_by is GroupBy.dataset:
                kind = groups(items.take(some.items[some.starts[:-1]]), packing)
            features = list(features_of_packs(items, some).values())
            in_row = order_packs(features, kind, seed_of(seed, number), trained_by_entry(items, some))
            for block in blocks(len(in_row), some.mean_members):
                packs.add(*_taken(some, in_row[block]))
    return packs.plan(plan.left_out, plan.lower_bound)


def _in_steps(
    plan: PackPlan, items: Items, packing: PackingConfig, seed: int, cost: CostModel, scratch: Scratch
) -> PackPlan:
    """The packs of a plan, each split for itself, in an order in which the steps of `packing.topology` are even."""
    if not packing.topology.has_steps or not plan.num_packs:
        return plan
    flops, trained = costs_of_packs(items, plan, cost), plan.per_pack(items.num_supervised)
    split, weights, amounts = split_of_packs(items, plan), packing.step_weights, trained_by_entry(items, plan)
    order = []
    for number in np.unique(split).tolist():
        mine = np.flatnonzero(split == number)
        of_mine = None if amounts is None else amounts[mine]
        order.append(mine[lay_out(flops[:, mine], trained[mine], packing.topology, seed, weights, amounts=of_mine)])
    return replace(taken(plan, order, scratch), places=np.concatenate(order))


def split_of_packs(items: Items, plan: PackPlan) -> AnyInts:
    """Index into SPLITS for each pack."""
    return items.split[plan.items[plan.starts[:-1]]]


def split_counts(items: Items, plan: PackPlan) -> dict[str, dict[str, int]]:
    """Packs, samples and tokens of each split that has any."""
    counts = np.zeros((len(SPLITS), 3), np.int64)
    for part in plan.parts():
        split = split_of_packs(items, part)
        of_packs = np.ones(len(split), np.int64), np.diff(part.starts), part.per_pack(items.lens)
        np.add.at(counts, split, np.stack(of_packs, axis=1))
    names = "packs", "samples", "tokens"
    return {
        split: dict(zip(names, row, strict=True)) for split, row in zip(SPLITS, counts.tolist(), strict=True) if row[0]
    }


def check_splits(lengths: Lengths, plan: PackPlan, shares: Sequence[float]) -> None:
    """Raises PackError where a split that was asked for gets no pack."""
    counts = split_counts(lengths.items, plan)
    for name, share in zip(SPLITS, shares, strict=True):
        if share and plan.num_packs and name not in counts:
            raise PackError(
                f"output.splits.{name}={share:g}: of {amount(len(plan.items), 'sample')} none is in it; a larger share,"
                " or another seed"
            )


def without_window(items: Items, packing: PackingConfig, seed: int) -> int | None:
    """How many packs there would be without `packing.window`; None: there is none, or items are too many to try."""
    if packing.window is None or len(items) > _MOST_AT_ONCE:
        return None
    return plan_packs(items, replace(packing, window=None), seed).num_packs


def features_of_packs(items: Items, plan: PackPlan) -> dict[str, Ints]:
    """What makes packs alike: attention cost Σ len², visual tokens, members."""
    return {
        "attention_cost": plan.per_pack(items.lens, of=lambda lens: lens.astype(np.int64) ** 2),
        "visual_tokens": plan.per_pack(items.counts["num_visual_tokens"]),
        "members": np.diff(plan.starts),
    }


def trained_by_entry(items: Items, plan: PackPlan) -> npt.NDArray[np.float64] | None:
    """float64[num_packs, num_entries]: the trained tokens of each entry of a mixture; None: there is none."""
    if items.entry is None:
        return None
    entries = range(int(items.entry.max(initial=0)) + 1)
    return np.stack(
        [plan.per_pack(np.where(items.entry == number, items.num_supervised, 0)) for number in entries], axis=1
    ).astype(np.float64)


def costs_of_packs(items: Items, plan: PackPlan, cost: CostModel) -> npt.NDArray[np.float64]:
    """float64[2, num_packs]: of the language model and of the vision encoder."""
    visual = items.counts["num_visual_tokens"], items.counts["num_images"]
    found = np.empty((2, plan.num_packs), np.float64)
    found[0], found[1] = plan.per_pack(items.lens, of=cost.lm), plan.per_pack(*visual, of=cost.vision)
    return found


def media_of_packs(items: Items, plan: PackPlan) -> npt.NDArray[np.int8]:
    """Index into MEDIA_TYPES for each pack: text and image make image, image and video make mix. The codes are bits."""
    return plan.per_pack(items.media, add=np.bitwise_or).astype(np.int8)


def groups(items: Items, packing: PackingConfig) -> Ints:
    """A number an item; items with different numbers share no pack."""
    group = np.zeros(len(items), np.int64)
    if packing.group_by is GroupBy.media:
        group += items.media
    elif packing.group_by is GroupBy.dataset:
        group += items.dataset
    return group + (window_of(items.shard, packing) + items.split.astype(np.int64) * (1 << 24)) * (1 << 32)


def taken(plan: PackPlan, packs: Sequence[Ints], scratch: Scratch = _IN_MEMORY) -> PackPlan:
    """Some packs of a plan, in this order."""
    found = _Packs(scratch)
    for order in packs:
        for block in blocks(len(order), plan.mean_members):
            found.add(*_taken(plan, order[block]))
    return found.plan(plan.left_out, plan.lower_bound)


def _taken(plan: PackPlan, order: Ints) -> tuple[Ints, Ints]:
    """Of some packs the sizes, and all members."""
    starts = plan.starts[order]
    size = plan.starts[order + 1] - starts
    before = np.cumsum(size) - size
    return size, plan.items[np.arange(size.sum()) + np.repeat(starts - before, size)]
