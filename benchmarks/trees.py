"""Planning with `packing.share`: `python benchmarks/trees.py [NUM]` plans samples of which a share begin alike.

Half of the alike ones are questions about one image, half are answers of one conversation; 2 to 12 begin alike, and a
system turn is the same in all. CPU seconds of `plan_packs` without trees, and of finding trees and planning them.
The goal: at most 3 times the time, and packs at most 1.001 of the bound of the trees' lengths.
"""

import sys
from dataclasses import replace

import numpy as np
from timing import cpu_seconds

from energon_pack.plan.items import AnyInts, Items
from energon_pack.plan.plan import plan_packs
from energon_pack.plan.settings import GroupBy, PackingConfig, SharedBeginnings
from energon_pack.plan.trees import Beginnings, PrefixTrees, group_items_into_trees, subtract_shared_counts
from energon_pack.run.seeded_random import mix_bits_in_place

PACKING = PackingConfig(max_token_len=8192, share=SharedBeginnings.prefix, group_by=GroupBy.none)


def samples(num: int, share: float) -> tuple[Items, Beginnings]:
    """Return items, and their beginnings: the system turn, the shared root, the turns, the end."""
    chance = np.random.default_rng(0)
    sizes = chance.integers(2, 13, num)
    sizes = sizes[: np.searchsorted(np.cumsum(sizes), num * share)]
    group = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    alone = num - len(group)
    is_turns = np.concatenate(((chance.random(len(sizes)) < 0.5)[group], np.zeros(alone, np.bool_)))
    root = np.concatenate((chance.integers(300, 1500, len(sizes))[group], chance.integers(40, 2000, alone)))
    place = np.concatenate((place, np.zeros(alone, np.int64)))
    group = np.concatenate((group, len(sizes) + np.arange(alone)))
    order = chance.permutation(num)
    is_turns, root, place, group = is_turns[order], root[order], place[order], group[order]
    lens = root + np.where(is_turns, 200 * (place + 1), chance.integers(30, 400, num))
    num_turns = np.where(is_turns, place + 1, 0)
    sizes = 2 + num_turns + 1
    item = np.repeat(np.arange(num), sizes)
    number = np.arange(len(item)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_end = number == sizes[item] - 1
    key = np.where(number == 0, 0, group[item] * 64 + number).astype(np.uint64)
    own = (num * 64 + item).astype(np.uint64)
    key = mix_bits_in_place(np.where(is_end & ~is_turns[item], own, key))
    at = np.where(number == 0, 70, root[item] + 200 * (number - 1))
    at = np.where(is_end, lens[item], at)
    none = np.zeros(len(item), np.int32)
    counts = {"token_len": at.astype(np.int32), "num_images": none, "num_videos": none, "num_visual_tokens": none}
    of_items = {"token_len": lens.astype(np.int32), "num_images": np.zeros(num, np.int32)}
    of_items["num_visual_tokens"] = np.zeros(num, np.int32)
    zero = np.zeros(num, np.int32)
    items = Items(of_items, zero.astype(np.int8), zero, zero, zero.astype(np.int8), (lens // 4).astype(np.int32))
    return items, Beginnings(item, key, key.copy(), ~is_end, counts)


def planned(items: Items, found: Beginnings) -> tuple[Items, PrefixTrees]:
    """Find trees and plan them, as a run does."""
    trees = group_items_into_trees(found, items, PACKING, np.zeros(len(items), np.int64))
    own = subtract_shared_counts(items, trees.shared)
    plan_packs(own, PACKING, trees=trees)
    return own, trees


def packs(items: Items, trees: PrefixTrees) -> tuple[int, AnyInts]:
    """Return the packs of a plan, and the tokens of its trees."""
    lens = trees.as_items(items).lens
    return plan_packs(items, PACKING, trees=trees).num_packs, lens


def main() -> None:
    """Print a line for each share."""
    num = int(float(sys.argv[1])) if len(sys.argv) > 1 else 1_000_000
    for share in (0.0, 0.1, 0.5, 0.9):
        items, found = samples(num, share)
        alone = replace(PACKING, share=SharedBeginnings.none)
        without = cpu_seconds(lambda: plan_packs(items, alone))  # noqa: B023
        taken = cpu_seconds(lambda: planned(items, found))  # noqa: B023
        own, trees = planned(items, found)
        num_packs, lens = packs(own, trees)
        bound = -(-int(lens.sum()) // PACKING.max_token_len)
        print(
            f"{share:.0%} begin alike: {without:.2f} s without, {taken:.2f} s with trees ({taken / without:.1f} times);"
            f" {num:,} samples in {len(lens):,} trees, {int(items.lens.sum()):,} → {int(lens.sum()):,} tokens;"
            f" {num_packs:,} packs, {num_packs / bound:.4f} of the bound",
            flush=True,
        )


if __name__ == "__main__":
    main()
