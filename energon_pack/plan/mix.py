"""Draws the samples of a mixture, after they are measured: other weights measure nothing."""

from dataclasses import replace

import numpy as np

from energon_pack.plan import caps
from energon_pack.plan.drawn import chosen, draws, shares_of
from energon_pack.plan.items import Lengths
from energon_pack.plan.overlong import CUTTING
from energon_pack.plan.settings import PackingConfig
from energon_pack.plan.splits import SPLITS
from energon_pack.sources.mixture import Mixture


def mix(lengths: Lengths, mixture: Mixture, packing: PackingConfig, seed: int) -> Lengths:
    """Return the lengths with each sample as often as its entry asks for.

    Samples of validation and test come once. A sample that is too long for a pack is drawn neither, and stays for the
    ledger.

    Raises:
        PackError: an entry has nothing to train on.
    """
    items = lengths.items
    of_shard = np.array([mixture.entry_of[name] for name in lengths.shard_names], np.int64)
    entry = of_shard[items.shard] if len(items) else np.zeros(0, np.int64)
    costs, _ = caps.costs(items.counts, packing)
    fits = (items.lens > 0) & ((costs[0] <= packing.longest[1]) | (packing.overlong in CUTTING))
    may = fits & (items.split == SPLITS.index("train"))
    counts = np.ones(len(items), np.int64)
    for number, item in enumerate(mixture.entries):
        mine = np.flatnonzero(may & (entry == number))
        left_out = mine[~chosen(len(mine), item.max_samples, seed, 2 * number)]
        may[left_out] = False
        counts[left_out] = 0
    trained = np.where(may, items.num_supervised.astype(np.int64), 0)
    shares = shares_of(mixture.entries, entry, trained)
    for number, (item, share) in enumerate(zip(mixture.entries, shares, strict=True)):
        mine = np.flatnonzero(may & (entry == number))
        counts[mine] = draws(share.epochs, trained[mine], item.weight is not None, seed, 2 * number + 1)
    drawn = lengths.drawn(counts)
    if len(shares) > 1:
        drawn.items = replace(drawn.items, entry=of_shard[drawn.items.shard].astype(np.int16))
    drawn.mixture = shares
    drawn.entry_of_shard = of_shard
    return drawn
