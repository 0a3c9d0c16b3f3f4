"""Count the items and packs of a plan, and compare the plans of several `packing.max_token_len`.

To compare, the planner runs for each length, with samples that were measured once; nothing is written.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from energon_pack.plan.expand import group_sides_into_trees
from energon_pack.plan.items import AnyInts, Items, Lengths
from energon_pack.plan.packs import LEFT_OUT, PackPlan
from energon_pack.plan.plan import plan_packs
from energon_pack.plan.settings import Overlong, PackingConfig
from energon_pack.run.bounded_memory import Scratch, split_into_blocks
from energon_pack.run.seeded_random import Ints
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.steps.topology import Topology

_PERCENTILES = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
_NUM_MEDIA = len(MEDIA_TYPES) + 1  # with unknown


class Tally:
    """A multiset of whole numbers: the distinct values, ascending, and how often each occurs."""

    def __init__(self, values: AnyInts | tuple[()] = ()) -> None:
        self.values, self.counts = np.unique(np.asarray(values, np.int64), return_counts=True)

    def __len__(self) -> int:
        """Return how many values were counted, equal ones included."""
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        return int(self.values @ self.counts)

    def add(self, values: AnyInts) -> None:
        """Count more values."""
        self._merge(*np.unique(values, return_counts=True))

    def merge(self, other: "Tally") -> None:
        """Add the counts of another tally."""
        self._merge(other.values, other.counts)

    def _merge(self, values: AnyInts, counts: Ints) -> None:
        self.values, place = np.unique(np.concatenate((self.values, values)), return_inverse=True)
        sums = np.zeros(len(self.values), np.int64)
        np.add.at(sums, place, np.concatenate((self.counts, counts)))
        self.counts = sums

    def spread(self) -> dict[str, int]:
        """Return minimum, median, percentiles and maximum by name: min, p50, p90, p99, max; empty without values."""
        if not len(self):
            return {}
        upto, last = np.cumsum(self.counts), len(self) - 1
        places = {name: math.ceil(rank * last) for name, rank in _PERCENTILES.items()}
        return {name: int(self.values[np.searchsorted(upto, place, "right")]) for name, place in places.items()}


@dataclass(frozen=True)
class PlanCounts:
    """Counts of the samples, items and tokens of a plan. `samples`, `packed` and `tokens` have one number for each type
    of MEDIA_TYPES, in that order, and a last one for unknown types.
    """

    samples: Ints
    packed: Ints  # samples in packs, whole or as their parts
    tokens: Ints  # of items in packs
    left_out: Ints  # samples that are left out, by index into LEFT_OUT
    tokens_left_out: Ints  # the tokens of these samples
    num_cut: int  # samples that are packed as their parts
    num_cut_off: int  # of these, samples whose parts lack some of their tokens
    tokens_cut_off: int  # the tokens that these parts lack
    num_parts: int  # in packs
    num_parts_left_out: int  # in no pack, because their conversation is left out
    lens: Tally  # of samples that were measured


def count_plan(lengths: Lengths, plan: PackPlan) -> PlanCounts:
    """Count the samples, parts and tokens that a plan packs, cuts and leaves out."""
    items, num_samples = lengths.items, lengths.num_samples
    in_a_pack, lens = plan.is_packed(lengths.scratch), Tally()
    samples, packed, tokens = np.zeros((3, _NUM_MEDIA), np.int64)
    left_out, tokens_left_out = np.zeros((2, len(LEFT_OUT)), np.int64)
    num_cut = num_parts = num_parts_left_out = num_cut_off = tokens_cut_off = 0
    for block in split_into_blocks(len(items)):
        media, is_in = items.media[block], in_a_pack[block]
        tokens += count_by_medium(media[is_in], items.lens[block][is_in])
        num = max(0, min(block.stop, num_samples) - block.start)  # then come parts
        num_parts += int(np.count_nonzero(is_in[num:]))
        num_parts_left_out += int(np.count_nonzero(plan.left_out[block][num:]))
        media, out, of_samples = media[:num], plan.left_out[block][:num], lengths.sample_lens[block][:num]
        samples += count_by_medium(media)
        is_cut = lengths.is_cut[block] & (out == 0)
        num_cut += int(np.count_nonzero(is_cut))
        lost = lengths.num_tokens_cut_off(slice(block.start, block.start + num), out)
        num_cut_off, tokens_cut_off = num_cut_off + int(np.count_nonzero(lost)), tokens_cut_off + int(lost.sum())
        packed += count_by_medium(media[is_in[:num] | is_cut])
        left_out += np.bincount(out, minlength=len(left_out))
        tokens_left_out += np.bincount(out, of_samples, len(LEFT_OUT)).astype(np.int64)
        lens.add(of_samples[of_samples > 0])
    tokens_left_out[LEFT_OUT.index(None)] = 0  # of samples that are packed
    return PlanCounts(
        samples, packed, tokens, left_out, tokens_left_out, num_cut, num_cut_off, tokens_cut_off, num_parts,
        num_parts_left_out, lens,
    )  # fmt: skip


def count_by_medium(media: AnyInts, weights: AnyInts | None = None) -> Ints:
    """Count items, or sum their weights, for each medium: int64[len(MEDIA_TYPES) + 1], the last for -1 (unknown)."""
    return np.bincount(media % _NUM_MEDIA, weights, _NUM_MEDIA).astype(np.int64)


@dataclass(frozen=True)
class TriedLength:
    """What one candidate pack length would drop, and how many packs it needs."""

    max_token_len: int
    dropped: int  # samples
    dropped_share: float  # share of the measured samples
    dropped_tokens_share: float
    packs: int
    fill: float
    is_beyond_model: bool = False  # the model has no positions for samples of that length

    def scaled(self, by: float) -> "TriedLength":
        """Return the same result for `by` times as many samples."""
        return replace(self, dropped=round(self.dropped * by), packs=round(self.packs * by))


@dataclass(frozen=True)
class LengthFigures:
    """The figures of `stage=lengths`: lengths of the samples, and in `lens` the result of each pack length."""

    samples_in: int
    samples_measured: int
    tokens: int
    skipped_by_reason: dict[str, int]
    token_len: dict[str, int]  # of a sample: min, p50, p90, p99, max
    lens: list[TriedLength]

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a dict."""
        return asdict(self)


def merge_sides_of_pairs(lengths: Lengths) -> Items:
    """Return what is packed as one: the items of `lengths`, or an item for each pair, with the sums of its sides."""
    return (
        group_sides_into_trees(lengths, PackingConfig()).as_items(lengths.items) if lengths.has_pairs else lengths.items
    )


def try_pack_lengths(
    lengths: Lengths, packing: PackingConfig, pack_lens: Sequence[int], max_positions: int | None = None
) -> LengthFigures:
    """Plan all samples with each pack length that is to be tried; return the results, and the spread of sample lengths.

    `read_context_len`: the context length of the model, in tokens; None: not known.
    """
    items = merge_sides_of_pairs(lengths)
    lens = _measured_lens(items)
    return LengthFigures(
        samples_in=lengths.num_samples,
        samples_measured=len(lens),
        tokens=lens.total,
        skipped_by_reason=dict(sorted(lengths.reasons.items())),
        token_len=lens.spread(),
        lens=plan_with_each_pack_length(items, packing, pack_lens, lengths.seed, lengths.scratch, max_positions),
    )


def plan_with_each_pack_length(
    items: Items,
    packing: PackingConfig,
    pack_lens: Sequence[int],
    seed: int,
    scratch: Scratch | None = None,
    max_positions: int | None = None,
) -> list[TriedLength]:
    """Plan items once with each pack length of `pack_lens`, and return what each would drop and fill.

    Args:
        scratch: where arrays of the plans lie; None: in memory.
        max_positions: the context length of the model, in tokens; None: not known.
    """
    measured = _measured_lens(items)
    packing = replace(packing, overlong=Overlong.drop, hard_limit=None, topology=Topology())
    choices = []
    for max_token_len in pack_lens:
        max_token_len -= max_token_len % packing.pad_to_multiple_of
        plan = plan_packs(items, replace(packing, max_token_len=max_token_len), seed, scratch=scratch or Scratch())
        num_packed, packed = len(plan.items), int(plan.sum_per_pack(items.lens).sum())
        choices.append(
            TriedLength(
                max_token_len=max_token_len,
                dropped=len(measured) - num_packed,
                dropped_share=round(1 - num_packed / max(1, len(measured)), 6),
                dropped_tokens_share=round(1 - packed / max(1, measured.total), 6),
                packs=plan.num_packs,
                fill=round(packed / max(1, plan.num_packs * max_token_len), 6),
                is_beyond_model=max_positions is not None and max_token_len > max_positions,
            )
        )
    return choices


def _measured_lens(items: Items) -> Tally:
    """Count the lengths of the samples that have one."""
    lens = Tally()
    for block in split_into_blocks(len(items)):
        some = items.lens[block]
        lens.add(some[some > 0])
    return lens
