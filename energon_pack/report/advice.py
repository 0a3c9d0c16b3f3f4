"""Advise on the sizes of packs and media: which `packing.max_token_len` to take, and what fewer pixels would do.

For each pack length it is computed what packs drop and how full they are; then a rule is applied.

The sizes of images say whether the model's limits bind: an image of at most `max_pixels` has at most
`max_pixels / factor²` tokens, and a sample of n images at most n times as many. So no image has to be read again.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from energon_pack.errors import amount
from energon_pack.plan.items import AnyInts, Items, Lengths
from energon_pack.plan.pack_lengths import TriedLength, merge_sides_of_pairs, plan_with_each_pack_length
from energon_pack.plan.settings import Algorithm, PackingConfig
from energon_pack.report.pages.bars import short_number
from energon_pack.run.bounded_memory import split_into_blocks
from energon_pack.run.seeded_random import Ints
from energon_pack.samples.media.kinds import IMAGE, MEDIA_TYPES, VIDEO
from energon_pack.samples.media.medium import Media
from energon_pack.samples.skip import Skip
from energon_pack.templates.families.rules import MediaRules

#: samples that each length is tried with, beside the plan of all; of more, a seeded draw is tried
_MAX_SAMPLES_TRIED = 2_000
#: share of the tokens that may be dropped, and share of the packs that has to be filled
MOST_DROPPED, MIN_FILL = 0.01, 0.95
_KEEPS_WORDS = f"drops at most {MOST_DROPPED:.0%} of the tokens"
RULE = f"the shortest length that {_KEEPS_WORDS} and fills {MIN_FILL:.0%} of its packs, or has as few packs as any plan"
_LENGTH_STEP = 1024  # tokens; a length that holds every sample is a multiple of it
#: width and height of the smallest images and of the largest; some are flat, because rules that cut tiles like these
#: best
_SMALLEST_SIZES = ((16, 16), (32, 32), (64, 64))
_LARGEST_SIZES = ((16_000, 16_000), (16_000, 8_000), (8_000, 16_000), (16_000, 5_000))
_NEAR_BOUND_SHARE = 0.1  # share of the bound that still counts as near
_FEWEST_TOKENS_TRIED = 256  # tokens of an image; with fewer it shows little
_FEW_SAMPLES, _TIMES_LONGER = 0.25, 2  # share of the samples; times as long a pack is needed for these


class Recommendation(NamedTuple):
    """A recommended pack length, with its results, and the words of the rule that chose it."""

    choice: TriedLength
    rule: str


def recommend_length(tried_lengths: Sequence[TriedLength]) -> Recommendation | None:
    """Choose a pack length by `RULE`, or by a weaker rule if no length meets it; None: there is nothing to pack."""
    candidates = [choice for choice in tried_lengths if choice.packs and not choice.is_beyond_model]
    keeping = [choice for choice in candidates if choice.dropped_tokens_share <= MOST_DROPPED]
    filling = [choice for choice in keeping if fills_packs(choice)]
    if filling:
        shortest = min(filling, key=_max_token_len)
        full = f"fills {MIN_FILL:.0%} of its packs" if shortest.fill >= MIN_FILL else "has as few packs as any plan"
        return Recommendation(shortest, f"the shortest that {_KEEPS_WORDS} and {full}")
    if keeping:
        fullest = max(keeping, key=lambda choice: choice.fill)
        return Recommendation(
            fullest, f"the fullest that {_KEEPS_WORDS}; none of these fills {MIN_FILL:.0%} of its packs"
        )
    if candidates:
        return Recommendation(
            max(candidates, key=_max_token_len), f"the longest that was tried, for none {_KEEPS_WORDS}"
        )
    return None


def length_advice(choices: Sequence[TriedLength], own: int | None = None) -> str:
    """Say in one sentence which pack length to take, and why; empty: there is nothing to pack.

    Args:
        own: the pack length of this run; None: it has none yet.
    """
    best, this = recommend_length(choices), next((choice for choice in choices if choice.max_token_len == own), None)
    if best is None:
        return ""
    if this and drops_little_and_fills_packs(this):
        shorter = "" if this is best.choice else f"; {best.choice.max_token_len:,}, shorter, does as well"
        return f"packing.max_token_len={own} is right: it {_results_text(this)}{shorter}"
    now = f" (this run: {own:,})" if own else ""
    return f"packing.max_token_len={best.choice.max_token_len}{now} is {best.rule}: it {_results_text(best.choice)}"


def _results_text(choice: TriedLength) -> str:
    return f"drops {choice.dropped_tokens_share:.2%} of the tokens and fills {choice.fill:.2%} of its packs"


def drops_little_and_fills_packs(tried: TriedLength) -> bool:
    """Whether a pack length drops at most `MOST_DROPPED` of the tokens, and fills its packs."""
    return tried.dropped_tokens_share <= MOST_DROPPED and fills_packs(tried)


def fills_packs(tried: TriedLength) -> bool:
    """Whether packs of this length are `MIN_FILL`; a few packs need only be as few as their tokens allow."""
    return tried.fill >= MIN_FILL or tried.packs == math.ceil(tried.fill * tried.packs)


def _max_token_len(choice: TriedLength) -> int:
    return choice.max_token_len


def lengths_to_try(
    lens: Sequence[int], packing: PackingConfig, longest: int = 0, max_positions: int | None = None
) -> list[int]:
    """List the pack lengths to try, ascending: `lens`, the one of `packing`, and one that holds the longest sample.

    Args:
        longest: tokens of the longest sample.
        max_positions: the model's context length; the length for the longest sample is no more. None: not known.
    """
    whole = {length - length % packing.pad_to_multiple_of for length in lens} | {packing.max_token_len}
    if longest > packing.max_token_len:
        step = math.lcm(_LENGTH_STEP, packing.pad_to_multiple_of)
        for_all = -(-longest // step) * step
        whole.add(for_all if max_positions is None else min(for_all, max_positions // step * step))
    return sorted(whole - {0})


def lengths_to_try_if_unset(
    pack_lens: Sequence[int], packing: PackingConfig, items: Items, max_positions: int | None = None
) -> list[int]:
    """List the pack lengths to try where the user set none: `pack_lens`, and one that holds every sample."""
    largest = max(pack_lens) - max(pack_lens) % packing.pad_to_multiple_of
    longest = int(items.lens.max(initial=0))
    return lengths_to_try(pack_lens, replace(packing, max_token_len=largest), longest, max_positions)


def num_samples_tried(num_samples: int) -> int:
    """Return how many of `num_samples` samples the pack lengths are tried with."""
    return min(num_samples, _MAX_SAMPLES_TRIED)


LengthsTrialJob = tuple[Items, PackingConfig, list[int], int, float, int | None]


def lengths_trial_job_of(
    lengths: Lengths,
    packing: PackingConfig,
    tried_lens: Sequence[int],
    max_positions: int | None = None,
) -> LengthsTrialJob:
    """Build the argument of `try_lengths_of_job`: all samples of a small run, or a seeded draw from a large one.

    Args:
        tried_lens: pack lengths to try, besides the planned one and one that holds every sample.
    """
    items, scale = merge_sides_of_pairs(lengths), 1.0
    packing = replace(packing, need_image=False)  # with some lengths there would be too few packs with an image
    upto = np.cumsum([0, *(np.count_nonzero(items.lens[block]) for block in split_into_blocks(len(items)))])
    num = int(upto[-1])
    there = np.arange(num_samples_tried(num))
    if num > len(there):
        rng = np.random.default_rng(lengths.seed)
        scale = num / len(there)
        there = np.sort(rng.choice(num, len(there), replace=False))
        packing = replace(packing, window=None)  # the samples drawn are fewer in each shard
        if packing.algorithm in (Algorithm.auto, Algorithm.balanced):  # an estimate needs the number of packs alone
            packing = replace(packing, algorithm=Algorithm.optimal)
    numbers = [
        block.start + np.flatnonzero(items.lens[block])[there[slice(*np.searchsorted(there, [start, end]))] - start]
        for block, (start, end) in zip(split_into_blocks(len(items)), pairwise(upto), strict=True)
    ]
    longest = int(items.lens.max(initial=0))
    tried = lengths_to_try(tried_lens, packing, longest, max_positions)
    return items.take(np.concatenate([there[:0], *numbers])), packing, tried, lengths.seed, scale, max_positions


def try_lengths_of_job(job: LengthsTrialJob) -> list[TriedLength]:
    """Plan with each pack length of `lengths_trial_job_of`; return what each drops and fills, scaled to all samples.

    May run in a worker.
    """
    items, packing, lens, seed, scale, max_positions = job
    choices = plan_with_each_pack_length(items, packing, lens, seed, max_positions=max_positions)
    return [choice.scaled(scale) for choice in choices] if scale != 1 else choices


@dataclass(frozen=True)
class ImagesAtTokenBounds:
    """How many visual tokens an image may have, and how many samples with images alone are at these bounds."""

    least: int  # tokens that any image has, whatever its size
    most: int
    samples: int
    num_at_least: int  # samples whose images have about the fewest tokens
    num_at_most: int


def count_images_at_token_bounds(
    rules: MediaRules | None, visual_tokens: AnyInts, num_images: AnyInts, counts: AnyInts
) -> ImagesAtTokenBounds | None:
    """Count the samples whose images have about the fewest, or the most, tokens that the model's rules allow.

    Args:
        rules: how the model counts tokens of images; None: not known.
        visual, num_images: the distinct pairs of a sample's visual tokens and number of images.
        counts: how many samples have each pair.
    """
    bounds = _token_bounds(rules) if rules and len(visual_tokens) else None
    if bounds is None:
        return None
    least, most = bounds
    each = visual_tokens / np.maximum(num_images, 1)
    # Each side is rounded to whole tokens, which matters where there are few.
    near_least = max(least * (1 + _NEAR_BOUND_SHARE), (math.sqrt(least) + 1) ** 2)
    near_most = min(most * (1 - _NEAR_BOUND_SHARE), (math.sqrt(most) - 1) ** 2)
    num_at_least, num_at_most = (int(counts[of].sum()) for of in (each <= near_least, each >= near_most))
    return ImagesAtTokenBounds(least, most, int(counts.sum()), num_at_least, num_at_most)


def _token_bounds(rules: MediaRules) -> tuple[int, int] | None:
    """Return how many tokens the smallest image has, and the largest; None: the model sees no images."""
    tiles = []
    for width, height in (*_SMALLEST_SIZES, *_LARGEST_SIZES):
        with suppress(Skip):
            tiles.append(rules.expand(Media(IMAGE.kind, width, height), [])[1])
    return (min(tiles), max(tiles)) if tiles else None


@dataclass(frozen=True)
class ShrinkAdvice:
    """Advice to shrink a few large media, because they alone need long packs: a setting, and what it would save."""

    medium: str
    samples: int  # that would be shorter
    knob: str  # the setting, as it is typed
    needed_len: int  # tokens of a pack; the first that drops next to nothing, as the media are
    needed_len_after: int
    tokens: int  # of all samples
    tokens_after: int  # at most; of videos: of all samples without them
    squares: float  # Σ len² of all samples, the cost of attention
    squares_after: float

    def __str__(self) -> str:
        few = f"pixels and frames first: {amount(self.samples, f'{self.medium} sample')} alone"
        few += " needs" if self.samples == 1 else " need"
        then = f"with {self.knob} all fit {self.needed_len_after:,}, and {short_number(self.tokens)} tokens become"
        if self.medium == VIDEO.kind:
            then = (
                f"{self.knob}; all others fit {self.needed_len_after:,}, and of {short_number(self.tokens)} tokens have"
            )
        attention = f"the cost of attention {short_number(self.squares)} → {short_number(self.squares_after)}"
        return f"{few} packs of {self.needed_len:,} tokens; {then} {short_number(self.tokens_after)}, {attention}"


def advise_to_shrink_media(lengths: Lengths, rules: MediaRules | None, pack_lens: Sequence[int]) -> ShrinkAdvice | None:
    """Find a setting that shrinks a few media which need packs twice as long as all others; None: there is none.

    Several values of `model.max_pixels` are tried; the largest that allows the shortest packs is taken.

    Args:
        rules: how the model counts tokens of media; None: not known.
        pack_lens: pack lengths, ascending; the first that drops at most `MOST_DROPPED` of the tokens is needed.
    """
    settings = rules.settings if rules else {}
    square, now = int(settings.get("factor") or 1) ** 2, _ShrunkTokens(pack_lens)
    without_videos, limits = _ShrunkTokens(pack_lens), dict[int, _ShrunkTokens]()
    if settings.get("factor") and settings.get("max_pixels") and settings.get("do_resize"):
        most = int(settings["max_pixels"]) // square
        steps = (_FEWEST_TOKENS_TRIED * half << step >> 1 for step in range(20) for half in (2, 3))
        limits = {limit: _ShrunkTokens(pack_lens) for limit in steps if limit < most}
    for block in split_into_blocks(lengths.num_samples):
        items, whole = lengths.items, lengths.sample_lens[block].astype(np.int64)
        images, visual = (items.counts[name][block].astype(np.int64) for name in ("num_images", "num_visual_tokens"))
        has_images_alone = items.media[block] == MEDIA_TYPES.index(IMAGE.kind)
        now.add(whole, whole)
        without_videos.add(whole, np.where(items.media[block] == MEDIA_TYPES.index(VIDEO.kind), 0, whole))
        for limit, kept in limits.items():
            kept.add(whole, whole - np.where(has_images_alone, np.maximum(visual - images * limit, 0), 0))
    shrunk = {f"model.max_pixels={limit * square}": (IMAGE.kind, kept) for limit, kept in limits.items()}
    shrunk["media=fps media.fps=1"] = (VIDEO.kind, without_videos)
    rows = [
        ShrinkAdvice(
            medium,
            kept.changed,
            knob,
            now.needed_len,
            kept.needed_len,
            now.tokens,
            kept.tokens,
            now.squares,
            kept.squares,
        )
        for knob, (medium, kept) in shrunk.items()
        if 0 < kept.changed <= _FEW_SAMPLES * lengths.num_samples and _TIMES_LONGER * kept.needed_len <= now.needed_len
    ]
    return min(reversed(rows), key=lambda each: (each.medium == VIDEO.kind, each.needed_len_after), default=None)


class _ShrunkTokens:
    """Sums over samples whose media are shrunk: their tokens, and the tokens that each pack length would drop."""

    def __init__(self, lens: Sequence[int]):
        self._lens = lens
        self._dropped = np.zeros(len(lens), np.int64)
        self.tokens = self.changed = 0
        self.squares = 0.0

    def add(self, before: Ints, after: Ints) -> None:
        self.changed += int(np.count_nonzero(before != after))
        self.tokens += int(after.sum())
        self.squares += float(np.square(after, dtype=np.float64).sum())
        self._dropped += [int(after[after > most].sum()) for most in self._lens]

    @property
    def needed_len(self) -> int:
        """Return the shortest pack length that drops next to nothing; if none does, twice the longest."""
        does = np.flatnonzero(self._dropped <= MOST_DROPPED * self.tokens)
        return self._lens[int(does[0])] if len(does) else 2 * max(self._lens, default=0)
