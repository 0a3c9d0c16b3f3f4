"""Hold the packs of a plan, sum over their members, and divide them into output shards. Pure: arrays in, arrays out."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_pack.plan.items import AnyInts, Items, Lengths
from energon_pack.plan.settings import PackingConfig
from energon_pack.plan.splits import SPLITS
from energon_pack.run.bounded_memory import Scratch, split_into_blocks
from energon_pack.run.seeded_random import Ints, random_keys
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.samples.skip import Reason
from energon_pack.sources.tar import BLOCK
from energon_pack.steps.cost import CostModel

#: `PackPlan.left_out` by code
LEFT_OUT = (None, Reason.OVERLONG, Reason.OVER_CAP, Reason.NOTHING_TRAINED)

_IN_MEMORY = Scratch()


def _identity(values: Any) -> Any:
    return values


@dataclass(frozen=True)
class PackPlan:
    """Which items are in which pack: pack p holds the items `items[starts[p]:starts[p + 1]]`, in that order."""

    starts: Ints  # [num_packs + 1]
    items: Ints
    left_out: npt.NDArray[np.int8]  # for each item: index into LEFT_OUT
    lower_bound: int  # number of packs, summed over the groups that may not mix
    #: the place of each pack without `packing.topology`; None: its own
    places: Ints | None = None

    @property
    def num_packs(self) -> int:
        return len(self.starts) - 1

    @property
    def mean_members(self) -> float:
        return len(self.items) / max(1, self.num_packs)

    def in_blocks(self) -> "Iterator[PackPlan]":
        """Yield plans of many neighbouring packs each, so that one of them at a time is in memory."""
        for packs in split_into_blocks(self.num_packs, self.mean_members):
            starts = self.starts[packs.start : packs.stop + 1]
            yield replace(self, starts=starts - starts[0], items=self.items[starts[0] : starts[-1]], places=None)

    def sum_per_pack(
        self, *columns: npt.NDArray[Any], value_of: Callable[..., Any] = _identity, combine: np.ufunc = np.add
    ) -> Ints:
        """Return for each pack the sum of a value over its members, int64[num_packs], in little memory.

        Args:
            columns: arrays with one entry for each item.
            value_of: computes the value from the columns; by default there is one column, which is the value.
            combine: used in place of addition, as `np.bitwise_or`.
        """
        sums, done = np.zeros(self.num_packs, np.int64), 0
        for part in self.in_blocks():
            values = value_of(*(column[part.items] for column in columns)).astype(np.int64)
            sums[done : done + part.num_packs] = combine.reduceat(values, part.starts[:-1])
            done += part.num_packs
        return sums

    def is_packed(self, scratch: Scratch) -> npt.NDArray[np.bool_]:
        """Return bool[num_items]: whether each item is in a pack. The array lies in `scratch`."""
        is_packed = scratch.zeros(len(self.left_out), np.bool_)
        for block in split_into_blocks(len(self.items)):
            is_packed[self.items[block]] = True
        return is_packed


class PackBuilder:
    """Collects packs one after another (sizes, and members), and makes a plan of them."""

    def __init__(self, scratch: Scratch):
        self._items = scratch.column(np.int64)
        self._sizes: list[Ints] = [np.zeros(1, np.int64)]

    def add(self, sizes: Ints, items: Ints) -> None:
        self._sizes.append(sizes)
        self._items.add(items)

    def add_all(self, other: "PackBuilder") -> None:
        self._sizes += other._sizes[1:]
        items = other._items.array()
        for block in split_into_blocks(len(items)):
            self._items.add(items[block])

    def build_plan(self, left_out: npt.NDArray[np.int8], lower_bound: int) -> PackPlan:
        return PackPlan(np.cumsum(np.concatenate(self._sizes)), self._items.array(), left_out, lower_bound)


def empty_plan(items: Items) -> PackPlan:
    """Return a plan without packs that leaves nothing out."""
    nothing = np.zeros(0, np.int64)
    return PackPlan(np.zeros(1, np.int64), nothing, np.zeros(len(items), np.int8), 0)


def plan_packs_of_sizes(sizes: Ints) -> PackPlan:
    """Return a plan whose packs have these sizes, and hold the items 0, 1, 2, … in order."""
    num = int(sizes.sum())
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    return PackPlan(starts, np.arange(num), np.zeros(num, np.int8), 0)


def select_packs(plan: PackPlan, arrays_of_pack_numbers: Sequence[Ints], scratch: Scratch = _IN_MEMORY) -> PackPlan:
    """Return a plan of only these packs, in this order; the arrays are joined."""
    builder = PackBuilder(scratch)
    for order in arrays_of_pack_numbers:
        for block in split_into_blocks(len(order), plan.mean_members):
            builder.add(*sizes_and_items_of_packs(plan, order[block]))
    return builder.build_plan(plan.left_out, plan.lower_bound)


def sizes_and_items_of_packs(plan: PackPlan, pack_numbers: Ints) -> tuple[Ints, Ints]:
    """Return the sizes of some packs, and the items of all of them, pack after pack."""
    starts = plan.starts[pack_numbers]
    size = plan.starts[pack_numbers + 1] - starts
    before = np.cumsum(size) - size
    return size, plan.items[np.arange(size.sum()) + np.repeat(starts - before, size)]


def split_of_packs(items: Items, plan: PackPlan) -> AnyInts:
    """Return the split of each pack, as an index into SPLITS; all its members have it."""
    return items.split[plan.items[plan.starts[:-1]]]


def count_packs_by_split(items: Items, plan: PackPlan) -> dict[str, dict[str, int]]:
    """Return the numbers of packs, samples and tokens of each split that has packs."""
    counts = _counts(items, plan, split_of_packs(items, plan), len(SPLITS))
    return {split: of_split for split, of_split in zip(SPLITS, counts, strict=True) if of_split["packs"]}


def mixture_turn_of_packs(items: Items, plan: PackPlan) -> AnyInts:
    """Return the turn of each pack: packs come turn by turn, one for each epoch of each phase of a mixture."""
    return np.zeros(plan.num_packs, np.int32) if items.turn is None else items.turn[plan.items[plan.starts[:-1]]]


def count_packs_by_mixture_turn(items: Items, plan: PackPlan) -> list[dict[str, int]] | None:
    """Return how many packs, samples and tokens each turn of the train split has; None: there is one turn."""
    if items.turn is None:
        return None
    turn = mixture_turn_of_packs(items, plan)
    num = int(turn.max(initial=0)) + 1
    return _counts(items, plan, np.where(split_of_packs(items, plan) == 0, turn, num), num + 1)[:num]


def _counts(items: Items, plan: PackPlan, number: AnyInts, num: int) -> list[dict[str, int]]:
    """Count packs, samples and tokens by a number of each pack."""
    columns = {"packs": None, "samples": np.diff(plan.starts), "tokens": plan.sum_per_pack(items.lens)}
    counts = [np.bincount(number, values, num).astype(np.int64).tolist() for values in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*counts, strict=True)]


def features_of_packs(items: Items, plan: PackPlan) -> dict[str, Ints]:
    """Return the features that an order makes even, int64[num_packs] each: Σ len², visual tokens, members."""
    return {
        "attention_cost": plan.sum_per_pack(items.attention_pairs),
        "visual_tokens": plan.sum_per_pack(items.counts["num_visual_tokens"]),
        "members": np.diff(plan.starts),
    }


def trained_tokens_by_entry(items: Items, plan: PackPlan) -> npt.NDArray[np.float64] | None:
    """Return each mixture entry's trained tokens in each pack, float64[num_packs, num_entries]; None: no mixture."""
    if items.entry is None:
        return None
    num, done = int(items.entry.max(initial=0)) + 1, 0
    trained = np.zeros((plan.num_packs, num))
    for part in plan.in_blocks():
        cell = np.repeat(np.arange(part.num_packs) * num, np.diff(part.starts)) + items.entry[part.items]
        sums = np.bincount(cell, items.num_supervised[part.items], part.num_packs * num)
        trained[done : done + part.num_packs] = sums.reshape(-1, num)
        done += part.num_packs
    return trained


def flops_of_packs(items: Items, plan: PackPlan, cost: CostModel) -> npt.NDArray[np.float64]:
    """Return the FLOPs of each pack, float64[2, num_packs]: of the language model, and of the vision encoder."""
    visual = items.counts["num_visual_tokens"], items.counts["num_images"]
    costs = np.empty((2, plan.num_packs), np.float64)
    costs[0], costs[1] = (
        plan.sum_per_pack(*_lm_arguments(items), value_of=cost.lm_flops),
        plan.sum_per_pack(*visual, value_of=cost.vision_flops),
    )
    return costs


def _lm_arguments(items: Items) -> tuple[AnyInts, ...]:
    """Return the arguments of `CostModel.lm_flops`: all tokens of each item and, if any are shared, the shared ones."""
    return (items.lens,) if items.shared is None else (items.lens + items.shared, items.shared)


def media_type_of_packs(items: Items, plan: PackPlan) -> npt.NDArray[np.int8]:
    """Return each pack's index into MEDIA_TYPES: text and image members make an image pack, image and video a mix."""
    kinds = [name for name in MEDIA_TYPES if name not in ("text", "mix")]  # each is a bit, text is none, and mix is all
    bits = {"text": 0, "mix": (1 << len(kinds)) - 1, **{name: 1 << number for number, name in enumerate(kinds)}}
    of_pack = plan.sum_per_pack(np.array([bits[name] for name in MEDIA_TYPES])[items.media], combine=np.bitwise_or)
    codes = np.full(1 << len(kinds), MEDIA_TYPES.index("mix"), np.int8)
    codes[[bits[name] for name in MEDIA_TYPES]] = np.arange(len(MEDIA_TYPES))
    return codes[of_pack]


def window_of_items(shard_of_items: AnyInts, packing: PackingConfig) -> Ints:
    """Return each item's window, int[n], by its source shard, int[n]: so many shards in a row; without one all in 0."""
    return shard_of_items.astype(np.int64) // (packing.window or 1 << 62)


def items_by_window(items: Items, packing: PackingConfig, seed: int) -> Iterator[Ints | slice]:
    """Yield the numbers of the items of each window of `window_of_items`, ascending; windows come in random order."""
    if packing.window is None:
        yield np.s_[:]
        return
    runs: dict[int, list[Ints]] = {}  # runs of items in each window; few, because items come by shard
    for block in split_into_blocks(len(items)):
        window = window_of_items(items.shard[block], packing)
        edges = [0, *(np.flatnonzero(np.diff(window)) + 1).tolist(), len(window)]
        for start, end in pairwise(edges):
            runs.setdefault(int(window[start]), []).append(np.array([block.start + start, block.start + end]))
    for number in shuffled_windows(sorted(runs), seed):
        yield np.concatenate([np.arange(start, end) for start, end in runs[number]])


def shuffled_windows(windows: Sequence[int], seed: int) -> list[int]:
    """Return the windows in the order in which they are written: by chance, from `seed` and their number alone."""
    return [windows[place] for place in np.argsort(random_keys(len(windows), seed, 11)).tolist()]


@dataclass(frozen=True)
class ShardPlan:
    """Which packs are in which output shard, and how packs are named: `<key_prefix>_<number of the pack>`."""

    bounds: Ints  # the first pack of each shard, and the end of the last one
    splits: AnyInts  # of each shard, as an index into SPLITS
    key_prefix: str
    sizes: Ints  # bytes of each shard, approximately

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all shards, approximately."""
        return int(self.sizes.sum())


def plan_shards(
    lengths: Lengths, plan: PackPlan, max_packs: int, max_bytes: float, identity: Sequence[Any]
) -> ShardPlan:
    """Divide the packs of a plan into output shards of at most so many packs and bytes.

    `identity`: everything that the bytes of the shards depend on; it goes into the names of packs.
    """
    sizes = plan.sum_per_pack(lengths.num_bytes) + 2 * BLOCK  # in a tar, approximately
    split = split_of_packs(lengths.items, plan)
    bounds = shard_bounds(sizes, split, max_packs, max_bytes)
    shard_sizes = np.add.reduceat(sizes, bounds[:-1]) if len(sizes) else sizes
    return ShardPlan(bounds, split[bounds[:-1]], key_prefix(lengths, plan, identity), shard_sizes)


def shard_bounds(pack_bytes: Ints, split: AnyInts, max_packs: int, max_bytes: float) -> Ints:
    """Divide packs into as few output shards as the limits allow, of about equal numbers of packs.

    Args:
        pack_bytes: int64[num_packs].
        split: the split of each pack; ascending. A shard holds packs of one split.

    Returns:
        int64[num_shards + 1]: the first pack of each shard, and the end of the last. A pack larger than `max_bytes`
        gets its own shard.
    """
    edges = [0, *(np.flatnonzero(np.diff(split)) + 1), len(pack_bytes)]
    bounds = [start + _bounds(pack_bytes[start:end], max_packs, max_bytes)[1:] for start, end in pairwise(edges)]
    return np.concatenate(([0], *bounds))


def _bounds(pack_bytes: Ints, max_packs: int, max_bytes: float) -> Ints:
    if not len(pack_bytes):
        return np.zeros(1, np.int64)
    upto = np.concatenate(([0], np.cumsum(pack_bytes)))
    bounds, most = [0], int(min(max_bytes, upto[-1]))  # a float would turn all of `upto` into floats, each time
    while bounds[-1] < len(pack_bytes):
        within = int(np.searchsorted(upto, upto[bounds[-1]] + most, side="right")) - 1
        bounds.append(min(max(within, bounds[-1] + 1), bounds[-1] + max_packs, len(pack_bytes)))
    even = np.arange(len(bounds)) * len(pack_bytes) // (len(bounds) - 1)
    return even if np.diff(upto[even]).max() <= max_bytes else np.array(bounds)


def key_prefix(lengths: Lengths, plan: PackPlan, identity: Sequence[Any]) -> str:
    """Return the beginning of all pack keys, 8 hex digits: a hash of plan, lengths, source files and `identity`."""
    digest = hashlib.sha256(json.dumps([identity, lengths.shard_names]).encode())
    for array in (lengths.items.lens, plan.starts, plan.items):
        for block in split_into_blocks(len(array)):
            digest.update(array[block].astype("<i8").tobytes())
    return digest.hexdigest()[:8]
