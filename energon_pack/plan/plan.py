"""Decide which items go into which pack, in which order, and which are left out. Pure: arrays in, arrays out."""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from energon_pack.errors import PackError, amount
from energon_pack.plan.bins import lower_bound, pack_bins
from energon_pack.plan.even_steps import order_packs_for_even_steps
from energon_pack.plan.expand import group_sides_into_trees
from energon_pack.plan.items import AnyInts, Items, Lengths
from energon_pack.plan.pack_order import mix_packs_evenly
from energon_pack.plan.packs import (
    LEFT_OUT,
    PackBuilder,
    PackPlan,
    count_packs_by_split,
    features_of_packs,
    flops_of_packs,
    items_by_window,
    media_type_of_packs,
    mixture_turn_of_packs,
    select_packs,
    shuffled_windows,
    sizes_and_items_of_packs,
    split_of_packs,
    trained_tokens_by_entry,
    window_of_items,
)
from energon_pack.plan.settings import GroupBy, PackingConfig, SharedBeginnings, costs_and_limits
from energon_pack.plan.splits import SPLITS
from energon_pack.plan.trees import PrefixTrees, find_prefix_trees, subtract_shared_counts
from energon_pack.run.bounded_memory import Scratch, split_into_blocks
from energon_pack.run.seeded_random import Ints, epoch_seed
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.samples.skip import Reason
from energon_pack.steps.cost import CostModel, cost_model_or_default
from energon_pack.steps.topology import reading_order

_IN_MEMORY = Scratch()
_MAX_ITEMS_REPLANNED = 4_000_000  # items that are planned again only for a figure


def plan_packs(
    items: Items,
    packing: PackingConfig,
    seed: int = 0,
    cost: CostModel | None = None,
    scratch: Scratch = _IN_MEMORY,
    trees: PrefixTrees | None = None,
) -> PackPlan:
    """Pack items into sequences of at most `max_token_len` tokens, and put the packs in order.

    Every item with a length is in exactly one pack, or left out: `overlong`, or `over_cap` if it alone exceeds another
    limit of a pack, `nothing_trained` if nothing would be trained in its pack. Items of different turns, groups
    (`group_by`, `window`) or splits share no pack. Packs of one split come in a row, in the order of their turns. One
    window is planned at a time.

    Args:
        cost: FLOPs of a sample, for even steps; None: those of a common 7B model.
        trees: the items that share beginnings; a tree is packed as one item. None: nothing is shared.

    Raises:
        PackError: `need_image`, and there are too few items with images.
    """
    if trees is not None:
        plan = trees.expand_plan(_plan_all_windows(trees.as_items(items), packing, seed, scratch))
    else:
        plan = _plan_all_windows(items, packing, seed, scratch)
    return _order_for_steps(plan, items, packing, seed, cost or cost_model_or_default(None), scratch)


def _plan_all_windows(items: Items, packing: PackingConfig, seed: int, scratch: Scratch) -> PackPlan:
    """Pack all windows of all turns, in an order that knows of no steps."""
    of_splits, bound = [PackBuilder(scratch) for _ in SPLITS], 0
    left_out = scratch.zeros(len(items), np.int8)
    for turn, of_turn in _items_by_epoch(items):
        of_items = items.take(of_turn)
        for numbers in items_by_window(of_items, packing, epoch_seed(seed, turn)):
            window_items = of_items.take(numbers)
            plan = _pack_window(window_items, packing, epoch_seed(seed, turn))
            plan = mix_packs_in_windows(plan, window_items, packing, epoch_seed(seed, turn), scratch)
            split = split_of_packs(window_items, plan)
            for number in np.unique(split).tolist():
                of_split = select_packs(plan, [np.flatnonzero(split == number)], scratch)
                members = of_split.items if isinstance(numbers, slice) else numbers[of_split.items]
                members = members if isinstance(of_turn, slice) else of_turn[members]
                of_splits[number].add(np.diff(of_split.starts), members)
            left_out[numbers if isinstance(of_turn, slice) else of_turn[numbers]] = plan.left_out
            bound += plan.lower_bound
    packs = PackBuilder(scratch)
    for builder in of_splits:
        packs.add_all(builder)
    return packs.build_plan(left_out, bound)


def order_by_turns_and_steps(
    plan: PackPlan, items: Items, packing: PackingConfig, seed: int, cost: CostModel
) -> PackPlan:
    """Put existing packs, of one split and window, into the order of a plan: turn by turn, with even steps."""
    turn, packs = mixture_turn_of_packs(items, plan), PackBuilder(_IN_MEMORY)
    for number in np.unique(turn).tolist():
        of_turn = select_packs(plan, [np.flatnonzero(turn == number)])
        ordered = mix_packs_in_windows(of_turn, items, packing, epoch_seed(seed, number))
        packs.add(np.diff(ordered.starts), ordered.items)
    return _order_for_steps(packs.build_plan(plan.left_out, plan.lower_bound), items, packing, seed, cost, _IN_MEMORY)


def _items_by_epoch(items: Items) -> Iterator[tuple[int, Ints | slice]]:
    """Yield each turn (an epoch of a phase of a mixture), and the numbers of its items."""
    if items.turn is None:
        yield 0, np.s_[:]
        return
    in_order = np.argsort(items.turn, kind="stable")
    turns, starts = np.unique(items.turn[in_order], return_index=True)
    yield from zip(turns.tolist(), np.split(in_order, starts[1:]), strict=True)


def _pack_window(items: Items, packing: PackingConfig, seed: int) -> PackPlan:
    """Pack a window: first packs with a single overlong item, then group by group."""
    costs, limits = costs_and_limits(items.counts, packing)
    left_out = np.zeros(len(items), np.int8)
    is_there = items.lens > 0
    over_cap = is_there & (costs[1:] > limits[1:, None]).any(axis=0)
    left_out[over_cap] = LEFT_OUT.index(Reason.OVER_CAP)
    overlong = is_there & (costs[0] > limits[0])
    alone = np.flatnonzero(overlong & (costs[0] <= packing.sample_token_limit[1]) & (left_out == 0))
    overlong[alone] = False
    left_out[overlong] = LEFT_OUT.index(Reason.OVERLONG)
    if items.conversation is not None:
        left_out = _leave_out_conversations(left_out, items.conversation)
        alone = alone[left_out[alone] == 0]

    to_pack = is_there & (left_out == 0)
    to_pack[alone] = False
    sizes, alone = _keep_trained_packs(np.ones(len(alone), np.int64), alone, items, left_out)
    packs, bound = PackBuilder(_IN_MEMORY), len(alone)
    packs.add(sizes, alone)
    candidates = np.flatnonzero(to_pack)
    group = group_of_items(items, packing)[candidates]
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
        sizes, packed = _keep_trained_packs(np.diff(bins.starts), members[bins.items], items, left_out)
        bound += max(lower_bound(values, limit) for values, limit in zip(costs[:, packed], limits, strict=True))
        packs.add(sizes, packed)
    return packs.build_plan(left_out, bound)


def _keep_trained_packs(sizes: Ints, members: Ints, items: Items, left_out: npt.NDArray[np.int8]) -> tuple[Ints, Ints]:
    """Keep the packs in which something is trained: return their sizes and members, and mark others in `left_out`."""
    is_trained = np.add.reduceat(items.num_supervised[members].astype(np.int64), np.cumsum(sizes) - sizes) > 0
    are_kept = np.repeat(is_trained, sizes)
    left_out[members[~are_kept]] = LEFT_OUT.index(Reason.NOTHING_TRAINED)
    return sizes[is_trained], members[are_kept]


def _leave_out_conversations(left_out: npt.NDArray[np.int8], whole: AnyInts) -> npt.NDArray[np.int8]:
    """Leave out all items of a conversation if one of them is left out.

    `left_out` and `whole`, the conversation's number, are by item; returns the new `left_out`.
    """
    out = np.flatnonzero(left_out)
    conversations, place = np.unique(whole[out], return_inverse=True)
    code = np.zeros(len(conversations) + 1, np.int8)
    np.maximum.at(code, place, left_out[out])
    number = np.searchsorted(conversations, whole)
    is_out = np.append(conversations, -1)[number] == whole
    return np.where(is_out, code[number], 0).astype(np.int8)


def mix_packs_in_windows(
    plan: PackPlan, items: Items, packing: PackingConfig, seed: int, scratch: Scratch = _IN_MEMORY
) -> PackPlan:
    """Put the packs of a plan into a seeded random order in which every stretch is like the whole.

    Windows come one after another, in random order, and each is ordered by itself. `packing.topology` is not used.
    """
    if not plan.num_packs:
        return plan
    split = split_of_packs(items, plan)
    of_splits = [np.flatnonzero(split == number) for number in np.unique(split)]
    window = window_of_items(items.shard[plan.items[plan.starts[:-1]]], packing)
    packs = PackBuilder(scratch)
    for of_split in of_splits:
        numbers, starts = np.unique(np.sort(window[of_split]), return_index=True)
        of_windows = np.split(of_split[np.argsort(window[of_split], kind="stable")], starts[1:])
        by_number = dict(zip(numbers.tolist(), of_windows, strict=True))
        for number in shuffled_windows([*by_number], seed):
            of_window = by_number[number]
            window_plan = plan if len(of_window) == plan.num_packs else select_packs(plan, [of_window], scratch)
            kind = media_type_of_packs(items, window_plan).astype(np.int64)
            if packing.group_by is GroupBy.dataset:
                kind = group_of_items(items.take(window_plan.items[window_plan.starts[:-1]]), packing)
            features = list(features_of_packs(items, window_plan).values())
            in_row = mix_packs_evenly(
                features, kind, epoch_seed(seed, number), trained_tokens_by_entry(items, window_plan)
            )
            for block in split_into_blocks(len(in_row), window_plan.mean_members):
                packs.add(*sizes_and_items_of_packs(window_plan, in_row[block]))
    return packs.build_plan(plan.left_out, plan.lower_bound)


def _order_for_steps(
    plan: PackPlan, items: Items, packing: PackingConfig, seed: int, cost: CostModel, scratch: Scratch
) -> PackPlan:
    """Order the packs of each split so that steps are even, if `packing.topology` has steps."""
    if not packing.topology.has_several_packs_per_step or not plan.num_packs:
        return plan
    flops, trained = flops_of_packs(items, plan, cost), plan.sum_per_pack(items.num_supervised)
    split, amounts, topology = split_of_packs(items, plan), trained_tokens_by_entry(items, plan), packing.topology
    turn = mixture_turn_of_packs(items, plan)
    order = []
    for code in np.unique(split).tolist():
        of_split = np.flatnonzero(split == code)
        last, over, read = int(turn[of_split].max()), of_split[:0], []
        for number in range(last + 1):
            of_turn = np.concatenate((over, of_split[turn[of_split] == number]))
            of_mine = None if amounts is None else amounts[of_turn]
            laid = order_packs_for_even_steps(
                flops[:, of_turn], trained[of_turn], topology, epoch_seed(seed, number), entry_tokens=of_mine
            )
            in_time = of_turn[laid[reading_order(len(of_turn), topology)]]
            num = len(of_turn) if number == last else len(of_turn) // topology.unit_size * topology.unit_size
            read.append(in_time[:num])
            over = in_time[num:]  # packs that make no whole step come with the next turn
        written = np.empty_like(of_split)
        written[reading_order(len(of_split), topology)] = np.concatenate(read)
        order.append(written)
    return replace(select_packs(plan, order, scratch), places=np.concatenate(order))


def find_shared_beginnings(lengths: Lengths, packing: PackingConfig) -> tuple[Lengths, PrefixTrees | None]:
    """Find the samples that share their beginnings, if `packing.share` is set, and the pairs that share a pack.

    Returns the lengths, in which an item counts only what it adds to its pack, and the trees; None: there are none.
    """
    is_shared = packing.share is not SharedBeginnings.none
    if not (lengths.has_pairs or is_shared):
        return lengths, None
    group = group_of_items(lengths.items, packing)
    trees = (
        group_sides_into_trees(lengths, packing) if lengths.has_pairs else find_prefix_trees(lengths, packing, group)
    )
    if not is_shared:
        return lengths, trees
    lengths = copy(lengths)
    lengths.items, lengths.shared = subtract_shared_counts(lengths.items, trees.shared), trees.shared
    return lengths, trees


def refuse_empty_splits(lengths: Lengths, plan: PackPlan, shares: Sequence[float]) -> None:
    """Raise PackError if a requested split gets no pack."""
    counts = count_packs_by_split(lengths.items, plan)
    for name, share in zip(SPLITS, shares, strict=True):
        if share and plan.num_packs and name not in counts:
            raise PackError(
                f"output.splits.{name}={share:g}: of {amount(len(plan.items), 'sample')} none is in it; a larger share,"
                " or another seed"
            )


def check_media_fit_sample_type(lengths: Lengths, plan: PackPlan) -> None:
    """Raise PackError if packs hold images and videos, and the class of `output.sample_type` takes only one of them."""
    if not lengths.flavor.gives or not plan.num_packs:
        return
    num = int((media_type_of_packs(lengths.items, plan) == MEDIA_TYPES.index("mix")).sum())
    if num:
        raise PackError(
            f"{amount(num, 'pack')} of {plan.num_packs:,} would hold images and videos, and the class of"
            " output.sample_type takes packs of one of them: packing.group_by=media"
        )


def count_packs_if_no_window(items: Items, packing: PackingConfig, seed: int) -> int | None:
    """Return how many packs a plan without `packing.window` has; None: no window is set, or the plan is too large."""
    if packing.window is None or len(items) > _MAX_ITEMS_REPLANNED or items.shared is not None:
        return None
    return plan_packs(items, replace(packing, window=None), seed).num_packs


def group_of_items(items: Items, packing: PackingConfig) -> Ints:
    """Return each item's group, int64[num_items]: different groups share no pack.

    Groups differ in `group_by`, window, split, or in frames of clips that can't be joined.
    """
    group = np.zeros(len(items), np.int64)
    if packing.group_by is GroupBy.media:
        group += items.media
    elif packing.group_by is GroupBy.dataset:
        group += items.dataset
    group += (window_of_items(items.shard, packing) + items.split.astype(np.int64) * (1 << 24)) * (1 << 32)
    if items.clip_frames is not None:
        group = np.unique(np.stack((group, items.clip_frames)), axis=1, return_inverse=True)[1].ravel()
    return group
