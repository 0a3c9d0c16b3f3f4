"""Count the items and packs of a plan, and how numbers are distributed, many at a time."""

import math
from dataclasses import dataclass

import numpy as np

from energon_pack.plan.items import AnyInts, Items, Lengths
from energon_pack.plan.packs import LEFT_OUT, PackPlan, costs_of_packs, features_of_packs, media_of_packs
from energon_pack.run.scratch import blocks
from energon_pack.run.seeded import Ints
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.steps.cost import CostModel

_RANKS = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


class Tally:
    """Distinct values, ascending, and how often each occurs."""

    def __init__(self) -> None:
        self.values: Ints = np.zeros(0, np.int64)
        self.counts: Ints = np.zeros(0, np.int64)

    def __len__(self) -> int:
        """Return how many values were counted."""
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        return int(self.values @ self.counts)

    def add(self, values: AnyInts) -> None:
        """Count more."""
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
        """Return minimum, median, 90th and 99th percentile, and maximum."""
        if not len(self):
            return {}
        upto, last = np.cumsum(self.counts), len(self) - 1
        places = {name: math.ceil(rank * last) for name, rank in _RANKS.items()}
        return {name: int(self.values[np.searchsorted(upto, place, "right")]) for name, place in places.items()}


class Moments:
    """Mean, deviation and maximum of numbers, added a few at a time.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """

    def __init__(self) -> None:
        self.num = self.most = 0
        self.mean = self._squares = 0.0

    @property
    def deviation(self) -> float:
        return math.sqrt(self._squares / max(1, self.num))

    def add(self, values: Ints) -> None:
        """Count more."""
        if not len(values):
            return
        mean, num = float(values.mean()), self.num + len(values)
        away = mean - self.mean
        self._squares += float(((values - mean) ** 2).sum()) + away**2 * self.num * len(values) / num
        self.mean += away * len(values) / num
        self.num, self.most = num, max(self.most, int(values.max()))


@dataclass(frozen=True)
class Counted:
    """Counts of items; arrays are by medium: `MEDIA_TYPES`, then unknown."""

    samples: Ints
    packed: Ints  # samples in packs, whole or as their parts
    tokens: Ints  # of items in packs
    left_out: Ints  # samples that are left out, by index into LEFT_OUT
    tokens_left_out: Ints  # the tokens of these samples
    num_cut: int  # samples that are packed as their parts
    num_cut_off: int  # of these, samples whose parts lack some of their tokens
    tokens_cut_off: int  # the tokens that these parts lack
    num_parts: int  # in packs
    num_parts_out: int  # in no pack, because their conversation is left out
    lens: Tally  # of samples that were measured


def count(lengths: Lengths, plan: PackPlan) -> Counted:
    """Count all items of a plan."""
    items, num_samples = lengths.items, lengths.num_samples
    in_a_pack, lens = plan.is_packed(lengths.scratch), Tally()
    samples, packed, tokens = np.zeros((3, len(MEDIA_TYPES) + 1), np.int64)
    left_out, tokens_left_out = np.zeros((2, len(LEFT_OUT)), np.int64)
    num_cut = num_parts = num_parts_out = num_cut_off = tokens_cut_off = 0
    for block in blocks(len(items)):
        media, is_in = items.media[block], in_a_pack[block]
        tokens += _by(media[is_in], len(tokens), items.lens[block][is_in])
        num = max(0, min(block.stop, num_samples) - block.start)  # then come parts
        num_parts += int(np.count_nonzero(is_in[num:]))
        num_parts_out += int(np.count_nonzero(plan.left_out[block][num:]))
        media, out, of_samples = media[:num], plan.left_out[block][:num], lengths.sample_lens[block][:num]
        samples += _by(media, len(samples))
        is_cut = lengths.is_cut[block] & (out == 0)
        num_cut += int(np.count_nonzero(is_cut))
        lost = lengths.lost_tokens(slice(block.start, block.start + num), out)
        num_cut_off, tokens_cut_off = num_cut_off + int(np.count_nonzero(lost)), tokens_cut_off + int(lost.sum())
        packed += _by(media[is_in[:num] | is_cut], len(packed))
        left_out += np.bincount(out, minlength=len(left_out))
        tokens_left_out += np.bincount(out, of_samples, len(LEFT_OUT)).astype(np.int64)
        lens.add(of_samples[of_samples > 0])
    tokens_left_out[LEFT_OUT.index(None)] = 0  # of samples that are packed
    return Counted(
        samples, packed, tokens, left_out, tokens_left_out, num_cut, num_cut_off, tokens_cut_off, num_parts,
        num_parts_out, lens,
    )  # fmt: skip


@dataclass
class CountedPacks:
    """Counts of packs; arrays are by `MEDIA_TYPES`."""

    packs: Ints
    tokens: Ints
    room: Ints  # tokens that packs have room for: `max_token_len`, or its tokens if a pack is longer
    num_supervised: int
    members: Tally
    visual_tokens: Tally
    attention_cost: Moments
    lm: float  # cost of the language model; this and the next are by the cost model
    vision: float


def count_packs(items: Items, plan: PackPlan, cost: CostModel, max_token_len: int) -> CountedPacks:
    """Count tokens, members, costs and lengths of all packs of a plan, for the page."""
    num = len(MEDIA_TYPES)
    count, tokens, room = np.zeros((3, num), np.int64)
    counts = CountedPacks(count, tokens, room, 0, Tally(), Tally(), Moments(), 0.0, 0.0)
    for part in plan.parts():
        media, features = media_of_packs(items, part), features_of_packs(items, part)
        lens = part.per_pack(items.lens)
        counts.packs += _by(media, num)
        counts.tokens += _by(media, num, lens)
        counts.room += _by(media, num, np.maximum(lens, max_token_len))
        counts.num_supervised += int(part.per_pack(items.num_supervised).sum())
        counts.members.add(features["members"])
        counts.visual_tokens.add(features["visual_tokens"])
        counts.attention_cost.add(features["attention_cost"])
        lm, vision = costs_of_packs(items, part, cost).sum(axis=1).tolist()
        counts.lm, counts.vision = counts.lm + lm, counts.vision + vision
    return counts


def _by(media: AnyInts, num: int, weights: AnyInts | None = None) -> Ints:
    """Count items, or add their weights, by media type; type -1 (unknown) comes last."""
    return np.bincount(media % num, weights, num).astype(np.int64)
