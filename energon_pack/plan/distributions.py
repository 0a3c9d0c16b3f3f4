"""Count the items and packs of a plan, and how numbers are distributed, many at a time."""

import math
from dataclasses import dataclass

import numpy as np

from energon_pack.plan.items import AnyInts, Lengths
from energon_pack.plan.packs import LEFT_OUT, PackPlan
from energon_pack.run.scratch_arrays import blocks
from energon_pack.run.seeded_random import Ints
from energon_pack.samples.media.kinds import MEDIA_TYPES

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
    for block in blocks(len(items)):
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
