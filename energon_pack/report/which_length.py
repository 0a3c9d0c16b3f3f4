"""Recommend a `packing.max_token_len`: compute what each length drops and how full packs are, then apply a rule."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from energon_pack.plan.expand import items_or_pairs
from energon_pack.plan.items import Items, Lengths
from energon_pack.plan.pack_lengths import TriedLength, plan_each_length
from energon_pack.plan.settings import Algorithm, PackingConfig
from energon_pack.run.bounded_memory import blocks

#: samples that each length is tried with, beside the plan of all; of more, a seeded draw is tried
_MAX_SAMPLES_TRIED = 2_000
#: share of the tokens that may be dropped, and share of the packs that has to be filled
MOST_DROPPED, MIN_FILL = 0.01, 0.95
_KEEPS_WORDS = f"drops at most {MOST_DROPPED:.0%} of the tokens"
RULE = f"the shortest length that {_KEEPS_WORDS} and fills {MIN_FILL:.0%} of its packs, or has as few packs as any plan"
_LENGTH_STEP = 1024  # tokens; a length that holds every sample is a multiple of it


class Recommendation(NamedTuple):
    """A recommended pack length, with its results, and the words of the rule that chose it."""

    choice: TriedLength
    rule: str


def recommend_length(choices: Sequence[TriedLength]) -> Recommendation | None:
    """Choose a pack length by `RULE`, or by a weaker rule if no length meets it; None: there is nothing to pack."""
    candidates = [choice for choice in choices if choice.packs and not choice.is_beyond_model]
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
    if this and drops_little_and_fills(this):
        shorter = "" if this is best.choice else f"; {best.choice.max_token_len:,}, shorter, does as well"
        return f"packing.max_token_len={own} is right: it {_results_text(this)}{shorter}"
    now = f" (this run: {own:,})" if own else ""
    return f"packing.max_token_len={best.choice.max_token_len}{now} is {best.rule}: it {_results_text(best.choice)}"


def _results_text(choice: TriedLength) -> str:
    return f"drops {choice.dropped_tokens_share:.2%} of the tokens and fills {choice.fill:.2%} of its packs"


def drops_little_and_fills(choice: TriedLength) -> bool:
    """Whether a pack length drops at most `MOST_DROPPED` of the tokens, and fills its packs."""
    return choice.dropped_tokens_share <= MOST_DROPPED and fills_packs(choice)


def fills_packs(choice: TriedLength) -> bool:
    """Whether packs of this length are `MIN_FILL`; a few packs need only be as few as their tokens allow."""
    return choice.fill >= MIN_FILL or choice.packs == math.ceil(choice.fill * choice.packs)


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
    lens: Sequence[int], packing: PackingConfig, items: Items, max_positions: int | None = None
) -> list[int]:
    """List the pack lengths to try where the user set none: `lens`, and one that holds every sample."""
    largest = max(lens) - max(lens) % packing.pad_to_multiple_of
    longest = int(items.lens.max(initial=0))
    return lengths_to_try(lens, replace(packing, max_token_len=largest), longest, max_positions)


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
    items, scale = items_or_pairs(lengths), 1.0
    packing = replace(packing, need_image=False)  # with some lengths there would be too few packs with an image
    upto = np.cumsum([0, *(np.count_nonzero(items.lens[block]) for block in blocks(len(items)))])
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
        for block, (start, end) in zip(blocks(len(items)), pairwise(upto), strict=True)
    ]
    longest = int(items.lens.max(initial=0))
    tried = lengths_to_try(tried_lens, packing, longest, max_positions)
    return items.take(np.concatenate([there[:0], *numbers])), packing, tried, lengths.seed, scale, max_positions


def try_lengths_of_job(job: LengthsTrialJob) -> list[TriedLength]:
    """Plan with each pack length of `lengths_trial_job_of`; return what each drops and fills, scaled to all samples.

    May run in a worker.
    """
    items, packing, lens, seed, scale, max_positions = job
    choices = plan_each_length(items, packing, lens, seed, max_positions=max_positions)
    return [choice.scaled(scale) for choice in choices] if scale != 1 else choices
