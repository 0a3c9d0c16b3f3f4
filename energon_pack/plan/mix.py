"""Draw the samples of each epoch, and of a mixture, after measuring: so other weights measure nothing again."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_pack.errors import PackError
from energon_pack.plan import caps
from energon_pack.plan.counted import Tally
from energon_pack.plan.entry_shares import EntryShare, chosen, draws, shares_of
from energon_pack.plan.items import Lengths
from energon_pack.plan.packs import PackPlan
from energon_pack.plan.settings import PackingConfig
from energon_pack.plan.splits import SPLITS
from energon_pack.run.scratch import blocks
from energon_pack.run.seeded import Ints
from energon_pack.sources.mixture import Entry, Mixture

_TRAIN = SPLITS.index("train")


def draw(lengths: Lengths, mixture: Mixture | None, packing: PackingConfig, seed: int) -> Lengths:
    """Return the lengths with each sample drawn as often as `packing.epochs` and its entry of a mixture ask for.

    Samples of validation and test come once. A sample that can't be packed is not drawn, and stays for the ledger.
    """
    if mixture is None and packing.epochs == 1:
        return lengths
    if drawn := next((item.shard for item in lengths.shards if item.shard.ratio != 1), None):
        raise PackError(
            f"packing.epochs={packing.epochs}: {drawn.name} has a sample_ratio: a mixture names files with their epochs"
        )
    may, trained = _may_train(lengths, packing)
    counts = np.zeros((packing.epochs, lengths.num_samples), np.int64)
    counts[0] = 1
    if mixture is None:
        counts[1:] = may
        return lengths.drawn(counts)
    of_shard = np.array([mixture.entry_of[name] for name in lengths.shard_names], np.int64)
    entry = of_shard[lengths.items.shard[: lengths.num_samples]]
    shares = _draw_entries(mixture.entries, np.where(may, entry, -1), trained, counts, seed)
    phases = np.array([item.phase - 1 for item in mixture.entries], np.int64)
    return lengths.drawn(counts, shares, of_shard if len(shares) > 1 else None, phases[of_shard])


def _may_train(lengths: Lengths, packing: PackingConfig) -> tuple[npt.NDArray[np.bool_], Ints]:
    """Return which samples can be packed for training, and how many trained tokens each has: bool and int64[num]."""
    items, num = lengths.items, lengths.num_samples
    costs, limits = caps.costs(items.counts, packing)
    limits[0] = packing.longest[1]
    fits = (items.lens > 0) & (costs <= limits[:, None]).all(axis=0) & (items.split == _TRAIN)
    tokens = np.where(fits, items.num_supervised.astype(np.int64), 0)
    may, trained = fits[:num].copy(), tokens[:num].copy()
    may[lengths.whole_of_part[fits[num:]]] = True
    may[lengths.whole_of_part[~fits[num:]]] = False
    np.add.at(trained, lengths.whole_of_part, tokens[num:])
    return may, trained


def _draw_entries(entries: Sequence[Entry], entry: Ints, trained: Ints, counts: Ints, seed: int) -> list[EntryShare]:
    """Draw the samples of each entry of a mixture: sets `counts`, int64[num_epochs, num_samples].

    Args:
        entry: int64[num_samples] index of the entry; -1: the sample is not drawn.
    """
    for number, item in enumerate(entries):
        of_entry = np.flatnonzero(entry == number)
        left_out = of_entry[~chosen(len(of_entry), item.max_samples, seed, 2 * number)]
        entry[left_out] = -1
        counts[:, left_out] = 0
    is_in = entry >= 0
    shares = shares_of(entries, entry[is_in], trained[is_in])
    for number, (item, share) in enumerate(zip(entries, shares, strict=True)):
        of_entry = np.flatnonzero(entry == number)
        by_tokens = item.weight is not None and item.weight_of == "tokens"
        counts[:, of_entry] = draws(share.epochs, trained[of_entry], by_tokens, seed, 2 * number + 1, len(counts))
    return shares


def mixture_figures(lengths: Lengths, plan: PackPlan, max_token_len: int) -> list[dict[str, Any]]:
    """Return for each entry of a mixture its requested share, and its share in the packs of the train split.

    `fill` is the fill of the packs with its tokens.
    """
    items, shares = lengths.items, lengths.shares_of_entries
    samples, tokens, trained = (np.zeros(len(shares), np.int64) for _ in range(3))
    lens = [Tally() for _ in shares]
    filled = np.zeros(len(shares))
    of_packs = np.repeat(plan.per_pack(items.lens), np.diff(plan.starts)) if shares else np.zeros(0, np.int64)
    for block in blocks(len(plan.items)) if shares else ():
        members, of_members = plan.items[block], of_packs[block]
        is_train = items.split[members] == _TRAIN
        members, of_members = members[is_train], of_members[is_train]
        entry = np.zeros(len(members), np.int64) if items.entry is None else items.entry[members]
        for sums, weights in ((samples, None), (tokens, items.lens), (trained, items.num_supervised)):
            sums += _by_entry(entry, None if weights is None else weights[members], len(shares))
        filled += np.bincount(entry, items.lens[members] * of_members / max_token_len, len(shares))
        for number, tally in enumerate(lens):
            tally.add(items.lens[members][entry == number])
    of = samples if shares and shares[0].of == "samples" else trained
    return [
        {
            "name": share.name,
            "asked": share.asked,
            "share_of": share.of,
            "share": float(of[number] / max(1, of.sum())),
            "epochs": share.epochs,
            "samples": int(samples[number]),
            "tokens": int(tokens[number]),
            "trained": int(trained[number]),
            "fill": round(float(filled[number] / max(1, tokens[number])), 4),
            "token_len": lens[number].spread(),
        }
        for number, share in enumerate(shares)
    ]


def _by_entry(entry: npt.NDArray[Any], weights: npt.NDArray[Any] | None, num: int) -> Ints:
    return np.bincount(entry, weights, num).astype(np.int64)
