"""Find samples that begin alike, and put them side by side, so that their shared beginning is packed once. Pure.

    sample  hashes of its beginnings         in the order of the trees          tokens   shared   own
      0     ab (300)  ab.cd (340)            0   ab ─ cd                           340        0   340
      1     ef (90)                          2   ab ─ gh                           360      300    60
      2     ab (300)  ab.gh (360)            1   ef                                 90        0    90

A tree is a run of samples, depth first; each shares its first tokens with the sample directly before it. So one number
per sample describes the tree: a fork within a fork is a sample that shares more tokens with the sample before it than
that sample shares with its own predecessor.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from energon_pack.plan.items import AnyInts, Items, Lengths
from energon_pack.plan.packs import PackPlan
from energon_pack.plan.settings import PackingConfig, SharedBeginnings, costs_and_limits
from energon_pack.run.seeded_random import Ints, mix_bits_in_place

_MANY_SAMPLES = 1000  # if more samples begin alike, the beginning must be at least the following share of their tokens
_MIN_SHARE = 0.1
#: what a beginning counts
COUNTS = ("token_len", "num_images", "num_videos", "num_visual_tokens")


@dataclass(frozen=True)
class PrefixTrees:
    """All items, grouped into trees of items that begin with the same tokens; an item that shares nothing is a tree."""

    items: Ints  # the items of a tree are side by side, depth first
    starts: Ints  # [num_trees + 1]: where each tree begins in `items`
    #: for each item number: the first tokens, images, videos, visual tokens that it shares with the item before it
    shared: Mapping[str, AnyInts]

    def as_items(self, items: Items) -> Items:
        """Return one item for each tree, so that a plan packs whole trees: its counts are sums over the tree."""
        order = self.items

        def sums(values: AnyInts) -> AnyInts:
            summed: AnyInts = np.add.reduceat(values[order].astype(np.int64), self.starts[:-1])
            return summed

        roots = items.take(order[self.starts[:-1]])
        counts: dict[str, AnyInts] = {name: sums(values) for name, values in items.counts.items()}
        counts["max_members"] = np.diff(self.starts)
        counts["max_attention_cost"] = sums(items.attention_pairs)
        media = np.bitwise_or.reduceat(items.media[order], self.starts[:-1])
        return replace(roots, counts=counts, media=media, num_supervised=sums(items.num_supervised), shared=None)

    def expand_plan(self, plan: PackPlan) -> PackPlan:
        """Turn a plan whose items are trees (`as_items`) into a plan of the original items."""
        sizes = np.diff(self.starts)
        chosen = sizes[plan.items]
        before = np.cumsum(chosen) - chosen
        places = np.repeat(self.starts[:-1][plan.items] - before, chosen) + np.arange(chosen.sum())
        starts = np.concatenate(([0], np.cumsum(chosen)))[plan.starts]
        left_out = np.zeros(len(self.items), np.int8)
        left_out[self.items] = np.repeat(plan.left_out, sizes)
        return replace(plan, starts=starts, items=self.items[places], left_out=left_out)


class Beginnings(NamedTuple):
    """Beginnings of items. Trees may fork at their ends. Arrays are sorted by item, then by length of the beginning."""

    item: Ints
    key: npt.NDArray[np.uint64]  # hash of the beginning; `low` tells apart the rare beginnings with equal keys
    low: npt.NDArray[np.uint64]
    may_fork: npt.NDArray[np.bool_]
    counts: Mapping[str, AnyInts]

    def take(self, numbers: AnyInts) -> "Beginnings":
        """Return the beginnings with these indices."""
        counts = {name: self.counts[name][numbers] for name in COUNTS}
        return Beginnings(self.item[numbers], self.key[numbers], self.low[numbers], self.may_fork[numbers], counts)


def find_prefix_trees(lengths: Lengths, packing: PackingConfig, group: Ints) -> PrefixTrees:
    """Read the hashes of all items' beginnings from the cache, and group items that begin alike into trees.

    Args:
        group: int64[num_items]; only items of one group may share.
    """
    blocks = [*_read_beginnings(lengths, packing)]
    item, key, low, may_fork = (np.concatenate([block[n] for block in blocks]) for n in range(4))
    counts = {name: np.concatenate([block.counts[name] for block in blocks]) for name in COUNTS}
    return group_items_into_trees(Beginnings(item, key, low, may_fork, counts), lengths.items, packing, group)


def group_items_into_trees(beginnings: Beginnings, items: Items, packing: PackingConfig, group: Ints) -> PrefixTrees:
    """Group items into trees by their beginnings; a tree fits a pack. `group` is as in `find_prefix_trees`."""
    for values in (items.turn, items.entry):
        if values is not None:
            group = np.unique(np.stack((group, values)), axis=1, return_inverse=True)[1].ravel()
    costs, limits = costs_and_limits(items.counts, packing)
    fits = (items.lens > 0) & (costs <= limits[:, None]).all(axis=0)
    if items.conversation is not None:  # if an item of a conversation does not fit, its other items are left out, too
        fits &= ~np.isin(items.conversation, items.conversation[(items.lens > 0) & ~fits])
    beginnings = beginnings if fits.all() else beginnings.take(np.flatnonzero(fits[beginnings.item]))
    by_group = beginnings.key ^ mix_bits_in_place(group[beginnings.item].astype(np.uint64))
    beginnings = _keep_common_beginnings(beginnings._replace(key=by_group), items)
    order, shared = _order_depth_first(beginnings, items.lens)
    added = {name: values[order] - shared.get(name, 0) for name, values in items.counts.items()}
    added["max_members"] = np.ones(len(order), np.int64)
    added["max_attention_cost"] = _attention_pairs(items.lens[order], shared["token_len"])
    is_first = shared["token_len"] == 0
    starts = _split_large_trees(costs_and_limits(added, packing)[0], costs[:, order], limits, is_first)
    is_first[starts] = True
    of_items = {name: np.zeros(len(items), np.int32) for name in COUNTS}
    for name, values in of_items.items():
        values[order] = np.where(is_first, 0, shared[name])
    alone = np.ones(len(items), np.bool_)
    alone[order] = False
    rest = np.flatnonzero(alone)
    all_starts = np.concatenate((starts, len(order) + np.arange(len(rest) + 1)))
    return PrefixTrees(np.concatenate((order, rest)), all_starts, of_items)


def subtract_shared_counts(items: Items, shared: Mapping[str, AnyInts]) -> Items:
    """Return items that count only what each adds to its pack; `shared` is as in `PrefixTrees`."""
    added = {name: values - shared[name] if name in shared else values for name, values in items.counts.items()}
    added["max_attention_cost"] = _attention_pairs(items.lens, shared["token_len"])
    return replace(items, counts=added, shared=shared["token_len"])


def _attention_pairs(token_len: AnyInts, shared_len: AnyInts) -> Ints:
    """Return L² - s² for samples with L tokens, s of them shared: the pairs of tokens that they add to attention."""
    return token_len.astype(np.int64) ** 2 - shared_len.astype(np.int64) ** 2


def _read_beginnings(lengths: Lengths, packing: PackingConfig) -> Iterator[Beginnings]:
    """Read from the cache the beginnings at which the settings allow a fork; yield those of many items at a time."""
    none = np.zeros(0, np.int64)
    keys = none.astype(np.uint64)
    yield Beginnings(none, keys, keys, none.astype(np.bool_), dict.fromkeys(COUNTS, none))
    for start, _, table in lengths.tables(["beginnings"]):
        for lists in table["beginnings"].chunks:
            sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
            values = lists.flatten()
            column = {name: values.field(name).to_numpy(zero_copy_only=False) for name in values.type.names}
            is_in = column["token_len"] >= packing.share_min_tokens
            if packing.share is SharedBeginnings.media:
                is_in &= column["ends_medium"]
            item = np.repeat(start + np.arange(len(lists)), sizes)
            beginnings = Beginnings(item, column["high"], column["low"], column["may_fork"], column)
            start += len(lists)
            yield beginnings.take(np.flatnonzero(is_in))


def _keep_common_beginnings(beginnings: Beginnings, items: Items) -> Beginnings:
    """Keep the beginnings that several items have in common, and replace their hashes by consecutive numbers.

    If no other item has an item's first beginning, it shares no later one, either. A beginning of very many items that
    is only a small part of each, such as a system turn, joins nothing: it would put all of them side by side. No tree
    forks where an item trains the next token, because a branch must begin with an untrained token.
    """
    first = np.flatnonzero(np.diff(beginnings.item, prepend=-1))
    end = np.append(first[1:], len(beginnings.item))
    kept = [np.zeros(0, np.int64)]
    while len(first):
        number, num = _number_pairs(beginnings.key[first], beginnings.low[first])
        lens = np.bincount(number, items.lens[beginnings.item[first]])[number] / num[number]
        is_common = (num[number] > _MANY_SAMPLES) & (beginnings.counts["token_len"][first] < _MIN_SHARE * lens)
        is_alike = (num[number] > 1) & ~is_common
        sizes = (end - first)[is_alike]
        before = np.cumsum(sizes) - sizes
        kept.append(np.repeat(first[is_alike] - before, sizes) + np.arange(sizes.sum()))
        goes_on = is_common & (first + 1 < end)
        first, end = first[goes_on] + 1, end[goes_on]
    beginnings = beginnings.take(np.sort(np.concatenate(kept)))
    number, num = _number_pairs(beginnings.key, beginnings.low)
    goes_on = beginnings.counts["token_len"] < items.lens[beginnings.item]
    is_trained = np.bincount(number, goes_on & ~beginnings.may_fork, len(num)) > 0
    is_alike = num[number] > 1
    beginnings = beginnings._replace(key=number.astype(np.uint64), may_fork=beginnings.may_fork & ~is_trained[number])
    return beginnings.take(np.flatnonzero(is_alike))


def _number_pairs(key: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Number the distinct pairs (key, low), ascending; return each pair's number, and how often each number occurs."""
    order = np.argsort(key, kind="stable")
    same_key = key[order][1:] == key[order][:-1]
    if (same_key & (low[order][1:] != low[order][:-1])).any():  # once in 2^64 pairs
        order = np.lexsort((low, key))
    is_new = (key[order][1:] != key[order][:-1]) | (low[order][1:] != low[order][:-1])
    number = np.zeros(len(key), np.int64)
    number[order] = np.concatenate(([0], np.cumsum(is_new)))[: len(key)]
    return number, np.bincount(number)


def _order_depth_first(beginnings: Beginnings, lens: AnyInts) -> tuple[Ints, dict[str, Ints]]:
    """Return the items of trees, depth first, and for each of `COUNTS` how much an item shares with the one before."""
    starts = np.flatnonzero(np.diff(beginnings.item, prepend=-1))
    sizes = np.diff(np.append(starts, len(beginnings.item)))
    item, depth = beginnings.item[starts], int(sizes.max(initial=0))
    if not depth:
        return item, dict.fromkeys(COUNTS, np.zeros(0, np.int64))
    row = np.repeat(np.arange(len(item)), sizes)
    place = np.arange(len(beginnings.item)) - np.repeat(starts, sizes)
    chain = np.full((depth, len(item)), -1, np.int64)
    chain[place, row] = beginnings.key.astype(np.int64)
    order = np.lexsort((lens[item], *chain[::-1]))  # among equal beginnings, the item that ends there comes first
    chain = chain[:, order]
    is_same = np.zeros((depth, len(item)), np.bool_)
    is_same[:, 1:] = np.logical_and.accumulate((chain[:, 1:] == chain[:, :-1]) & (chain[:, 1:] >= 0), axis=0)
    may_fork = np.zeros((depth, len(item)), np.bool_)
    may_fork[place, row] = beginnings.may_fork
    is_fork = is_same & may_fork[:, order]
    deepest = depth - 1 - np.argmax(is_fork[::-1], axis=0)
    fork = np.where(is_fork.any(axis=0), starts[order] + deepest, -1)
    shared = {name: np.where(fork < 0, 0, beginnings.counts[name][fork]).astype(np.int64) for name in COUNTS}
    return item[order], shared


def _split_large_trees(added: Ints, whole: Ints, limits: Ints, is_first: npt.NDArray[np.bool_]) -> Ints:
    """Return the index of the first item of each tree, so that each tree keeps to the limits of a pack.

    Args:
        added: int64[num_caps, num_items] costs of what each item adds.
        whole: int64[num_caps, num_items] costs of each item alone.
        is_first: whether an item shares nothing with the item before it.
    """
    starts = np.flatnonzero(is_first)
    if not len(starts):
        return starts
    ends = np.append(starts[1:], len(is_first))
    sums = np.add.reduceat(added, starts, axis=1)
    is_large = (sums > limits[:, None]).any(axis=0)
    more = list[int]()
    for start, end in zip(starts[is_large].tolist(), ends[is_large].tolist(), strict=True):
        used = whole[:, start].copy()
        for place in range(start + 1, end):
            used += added[:, place]
            if (used > limits).any():
                more.append(place)
                used = whole[:, place].copy()
    return np.sort(np.concatenate((starts, np.array(more, np.int64))))
