"""Draw the samples of each epoch, and of a mixture, after measuring: so other weights measure nothing again.

weights 40, 60 ──► epochs of each entry, with as many trained tokens in total as all entries have
epochs 2.3     ──► each sample twice, and samples with 0.3 of the entry's trained tokens once more
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from energon_pack.errors import PackError
from energon_pack.plan.items import REFUSED_SCHEMA, CachedRows, Lengths
from energon_pack.plan.pack_lengths import Tally
from energon_pack.plan.packs import PackPlan
from energon_pack.plan.settings import PackingConfig, costs_and_limits
from energon_pack.plan.splits import SPLITS
from energon_pack.run.bounded_memory import split_into_blocks
from energon_pack.run.seeded_random import Ints, random_keys
from energon_pack.samples.skip import Reason
from energon_pack.sources.mixture import Entry, Mixture, WeightOf
from energon_pack.sources.sample_ratio import count_earlier_occurrences

_TRAIN_SPLIT = SPLITS.index("train")

#: a sample that comes more often than this is named in the report
MANY_EPOCHS = 4.0


@dataclass(frozen=True)
class EntryShare:
    """The share that an entry of a mixture should have, and how often its samples must come for that."""

    name: str
    requested_share: float | None  # the requested share; None: epochs were requested
    epochs: float  # how often each of its samples comes
    samples: int  # samples that may be drawn
    tokens: int  # their trained tokens
    unit: WeightOf = "tokens"  # whether `requested_share` is a share of the trained tokens or of the samples


def compute_entry_shares(entries: Sequence[Entry], entry_of_samples: Ints, trained_tokens: Ints) -> list[EntryShare]:
    """Decide how often the samples of each entry of a mixture come.

    Args:
        entry_of_samples: int[num_samples] index into `entries`.
        trained_tokens: int[num_samples] trained tokens; 0: the sample can't be packed.

    Raises:
        PackError: an entry with a weight has nothing to train on.
    """
    tokens = np.bincount(entry_of_samples, trained_tokens, len(entries))
    samples = np.bincount(entry_of_samples, trained_tokens > 0, len(entries))
    sizes = samples if entries[0].weight_of == "samples" else tokens
    total, weights = sizes.sum(), sum(item.weight or 0.0 for item in entries)
    shares = list[EntryShare]()
    for item, num_tokens, num_samples in zip(entries, tokens.tolist(), samples.tolist(), strict=True):
        if item.weight and not num_tokens:
            raise PackError(f"mixture: {item.name} has the weight {item.weight:g}, and no sample that can be trained")
        asked = None if item.weight is None else item.weight / weights
        epochs = (item.epochs or 0.0) if asked is None else float(asked * total / max(1, sizes[len(shares)]))
        shares.append(EntryShare(item.name, asked, epochs, int(num_samples), int(num_tokens), item.weight_of))
    return shares


def num_draws_by_epoch(
    times: float, trained: Ints, by_tokens: bool, seed: int, stream: int, num_epochs: int = 1
) -> Ints:
    """Decide how often each sample of one entry comes in each epoch, if a sample comes `times` times on average.

    Args:
        trained: int[num_samples] trained tokens of each.
        by_tokens: average over tokens, else over samples.
        stream: a number of the entry, so that two entries do not draw alike.

    Returns:
        int64[num_epochs, num_samples]: `times` rounded down or up. The samples that are rounded up hold the fraction of
        `times` of the tokens, or of the samples, to the nearest sample. They take turns: over any consecutive epochs
        the counts of two samples differ by at most 1.
    """
    whole = int(times)
    by_chance = np.argsort(random_keys(len(trained), seed, stream), kind="stable")
    size = trained[by_chance].astype(np.float64) if by_tokens else np.ones(len(trained))
    place = np.empty(len(trained))
    place[by_chance] = (np.cumsum(size) - size / 2) / max(1.0, size.sum())
    more = times - whole
    starts = np.arange(num_epochs) * more
    return whole + ((place - starts[:, None]) % 1 < more).astype(np.int64)


def mark_random_choice(num_samples: int, max_chosen: int | None, seed: int, stream: int) -> np.ndarray:
    """Choose `max_chosen` of `num_samples` at random, or all if it is None or larger; return bool[num_samples]."""
    is_in = np.ones(num_samples, np.bool_)
    if max_chosen is not None and max_chosen < num_samples:
        is_in[np.argsort(random_keys(num_samples, seed, stream), kind="stable")[max_chosen:]] = False
    return is_in


def apply_epochs_and_mixture(
    lengths: Lengths,
    mixture: Mixture | None,
    packing: PackingConfig,
    seed: int,
    fits: npt.NDArray[np.bool_] | None = None,
) -> tuple[Lengths, list[EntryShare]]:
    """Repeat or leave out samples, as `packing.epochs` and the entries of a mixture (None: no mixture) ask for.

    Samples of validation and test come once. A sample that can't be packed is not drawn, and stays for the ledger.
    `fits`: whether each sample fits a pack, if that needs more than its parts (`expand.fitting_pairs`). Returns the new
    lengths, and the share of each entry (empty without a mixture).
    """
    if drawn := next((item.shard for item in lengths.shards if item.shard.ratio != 1), None):
        raise PackError(
            f"packing.epochs={packing.epochs}: {drawn.name} has a sample_ratio: a mixture names files with their epochs"
        )
    may, trained = _trainable_samples(lengths, packing)
    may = may if fits is None else may & fits
    counts = np.zeros((packing.epochs, lengths.num_samples), np.int64)
    counts[0] = 1
    if mixture is None:
        counts[1:] = may
        return _repeat_samples(lengths, counts, np.zeros(len(lengths.shards), np.int64)), []
    of_shard = np.array([mixture.entry_of[name] for name in lengths.shard_names], np.int64)
    entry = of_shard[lengths.items.shard[: lengths.num_samples]]
    shares = _draw_entries(mixture.entries, np.where(may, entry, -1), trained, counts, seed)
    phases = np.array([item.phase - 1 for item in mixture.entries], np.int64)
    return _repeat_samples(lengths, counts, phases[of_shard], of_shard if len(shares) > 1 else None), shares


def _trainable_samples(lengths: Lengths, packing: PackingConfig) -> tuple[npt.NDArray[np.bool_], Ints]:
    """Return which samples can be packed for training, and how many trained tokens each has: bool and int64[num]."""
    items, num = lengths.items, lengths.num_samples
    costs, limits = costs_and_limits(items.counts, packing)
    limits[0] = packing.sample_token_limit[1]
    fits = (items.lens > 0) & (costs <= limits[:, None]).all(axis=0) & (items.split == _TRAIN_SPLIT)
    tokens = np.where(fits, items.num_supervised.astype(np.int64), 0)
    may, trained = fits[:num].copy(), tokens[:num].copy()
    may[lengths.whole_of_part[fits[num:]]] = True
    may[lengths.whole_of_part[~fits[num:]]] = False
    np.add.at(trained, lengths.whole_of_part, tokens[num:])
    return may, trained


def _draw_entries(entries: Sequence[Entry], entry: Ints, trained: Ints, counts: Ints, seed: int) -> list[EntryShare]:
    """Draw the samples of each entry of a mixture: sets `counts`, int64[num_epochs, num_samples]."""
    for number, item in enumerate(entries):
        of_entry = np.flatnonzero(entry == number)
        left_out = of_entry[~mark_random_choice(len(of_entry), item.max_samples, seed, 2 * number)]
        entry[left_out] = -1
        counts[:, left_out] = 0
    is_in = entry >= 0
    shares = compute_entry_shares(entries, entry[is_in], trained[is_in])
    for number, (item, share) in enumerate(zip(entries, shares, strict=True)):
        of_entry = np.flatnonzero(entry == number)
        by_tokens = item.weight is not None and item.weight_of == "tokens"
        counts[:, of_entry] = num_draws_by_epoch(
            share.epochs, trained[of_entry], by_tokens, seed, 2 * number + 1, len(counts)
        )
    return shares


def _repeat_samples(
    lengths: Lengths, counts: Ints, phase_of_shard: Ints, entry_of_shard: Ints | None = None
) -> Lengths:
    """Return the lengths with each sample as often as `counts` says; a sample that never comes stays as not drawn."""
    drawn = lengths.without_rows()
    drawn.num_turns = len(counts) * (int(phase_of_shard.max(initial=0)) + 1)
    drawn.entry_of_shard = entry_of_shard
    first = np.zeros(lengths.num_samples + 1, np.int64)  # where the draws of each sample begin
    never = counts.sum(axis=0) == 0
    np.cumsum(counts.sum(axis=0) + never, out=first[1:])
    drawn.num_samples = int(first[-1])
    kinds = (np.bool_, np.int32, np.int32)
    drawn.is_cut, drawn.sample_lens, drawn.cut_off = (lengths.scratch.zeros(drawn.num_samples, kind) for kind in kinds)
    wholes = [np.zeros(0, np.int64)]
    for old in lengths.rows:
        is_part = old.start >= lengths.num_samples
        sample = np.arange(old.num) + old.start  # of each row
        if is_part:
            sample = lengths.whole_of_part[sample - lengths.num_samples]
        times = counts[:, sample].T.copy()  # [num, num_epochs]
        if not is_part:
            times[never[sample], 0] = 1
        taken, epoch = (np.repeat(index.ravel(), times.ravel()) for index in np.indices(times.shape))
        copies, is_out = count_earlier_occurrences(taken), never[sample[taken]]
        number = first[sample[taken]] + copies
        values = {name: column[old.item_slice][taken] for name, column in lengths.columns.items()}
        values["token_len"] = np.where(is_out, 0, values["token_len"])
        turn = phase_of_shard[values["shard"]] * len(counts) + epoch
        values["turn"] = np.where(values["split"] == 0, turn, 0)
        if is_part:
            wholes.append(number)
        else:
            drawn.is_cut[number] = lengths.is_cut[old.item_slice][taken] & ~is_out
            drawn.cut_off[number] = lengths.cut_off[old.item_slice][taken]
            drawn.sample_lens[number] = np.where(is_out, 0, lengths.sample_lens[old.item_slice][taken])
        rows = taken if old.rows is None else old.rows[taken]
        copies = np.where(is_out, -1, copies)
        drawn.add_computed_rows(CachedRows(old.chunk, rows, drawn.num_items, len(taken), copies), values)
    drawn.whole_of_part = np.concatenate(wholes)
    refused = pa.array(first[lengths.refused["sample"].to_numpy()])
    drawn.refused = lengths.refused.set_column(0, REFUSED_SCHEMA.field("sample"), refused)
    drawn.reasons = lengths.reasons + Counter({Reason.NOT_DRAWN.value: int(np.count_nonzero(never))})
    drawn.build_items()
    return drawn


def mixture_figures(
    shares: Sequence[EntryShare], lengths: Lengths, plan: PackPlan, max_token_len: int
) -> list[dict[str, Any]]:
    """Return the figures of each entry of a mixture, for report.json: its requested share, and its share in the packs
    of the train split. `fill` is the mean fill of the packs that hold its tokens.
    """
    items, num = lengths.items, len(shares)
    samples, tokens, trained, filled = np.zeros((4, num))
    lens = [Tally() for _ in shares]
    of_packs = np.repeat(plan.sum_per_pack(items.lens), np.diff(plan.starts))
    for block in split_into_blocks(len(plan.items)):
        is_train = items.split[plan.items[block]] == _TRAIN_SPLIT
        members, of_members = plan.items[block][is_train], of_packs[block][is_train]
        entry = np.zeros(len(members), np.int64) if items.entry is None else items.entry[members]
        for sums, weights in (
            (samples, None),
            (tokens, items.lens[members]),
            (trained, items.num_supervised[members]),
            (filled, items.lens[members] * of_members / max_token_len),
        ):
            sums += np.bincount(entry, weights, num)
        for number, tally in enumerate(lens):
            tally.add(items.lens[members][entry == number])
    sizes = samples if shares[0].unit == "samples" else trained
    return [
        {
            "name": share.name,
            "asked": share.requested_share,
            "share_of": share.unit,
            "share": float(sizes[number] / max(1, sizes.sum())),
            "epochs": share.epochs,
            "samples": int(samples[number]),
            "tokens": int(tokens[number]),
            "trained": int(trained[number]),
            "fill": round(float(filled[number] / max(1, tokens[number])), 4),
            "token_len": lens[number].spread(),
        }
        for number, share in enumerate(shares)
    ]
