"""Divide the packs of a plan into output shards, and name the packs."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from energon_pack.plan.items import AnyInts, Lengths
from energon_pack.plan.packs import PackPlan, split_of_packs
from energon_pack.run.scratch_arrays import blocks
from energon_pack.run.seeded_random import Ints
from energon_pack.sources.tar import BLOCK


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
    sizes = plan.per_pack(lengths.num_bytes) + 2 * BLOCK  # in a tar, approximately
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
        for block in blocks(len(array)):
            digest.update(array[block].astype("<i8").tobytes())
    return digest.hexdigest()[:8]
