"""Which `packing.max_token_len` to take: what others would drop and fill, and which one a stated rule takes."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from energon_pack.plan.compare_lens import Choice, choices_of
from energon_pack.plan.items import Items, Lengths
from energon_pack.plan.settings import PackingConfig
from energon_pack.run.scratch import blocks

#: samples that are planned with each length, beside a plan of all; of more a seeded draw stands for all
_MOST_TRIED = 2_000
#: share of the tokens that may be dropped, and of packs that has to be filled
MOST_DROPPED, FILLED = 0.01, 0.95
_KEEPS = f"drops at most {MOST_DROPPED:.0%} of the tokens"
RULE = f"the shortest length that {_KEEPS} and fills {FILLED:.0%} of its packs, or has as few packs as any plan"
_STEP = 1024  # of a length that holds every sample


class Recommended(NamedTuple):
    """The length that a stated rule takes."""

    choice: Choice
    rule: str


def recommended(choices: Sequence[Choice]) -> Recommended | None:
    """The length by `RULE`, or by what takes its place where none is such; None: there is nothing to pack."""
    some = [choice for choice in choices if choice.packs and not choice.is_beyond_model]
    keeping = [choice for choice in some if choice.dropped_tokens_share <= MOST_DROPPED]
    filling = [choice for choice in keeping if fills(choice)]
    if filling:
        shortest = min(filling, key=_length)
        full = f"fills {FILLED:.0%} of its packs" if shortest.fill >= FILLED else "has as few packs as any plan"
        return Recommended(shortest, f"the shortest that {_KEEPS} and {full}")
    if keeping:
        fullest = max(keeping, key=lambda choice: choice.fill)
        return Recommended(fullest, f"the fullest that {_KEEPS}; none of these fills {FILLED:.0%} of its packs")
    if some:
        return Recommended(max(some, key=_length), f"the longest that was tried, for none {_KEEPS}")
    return None


def does(choice: Choice) -> bool:
    """Whether nothing is to be said against a length: it drops little, and fills its packs."""
    return choice.dropped_tokens_share <= MOST_DROPPED and fills(choice)


def fills(choice: Choice) -> bool:
    """Whether packs are as full as a rule wants them; or as few as their tokens need, where there are only a few."""
    return choice.fill >= FILLED or choice.packs == math.ceil(choice.fill * choice.packs)


def _length(choice: Choice) -> int:
    return choice.max_token_len


def lens_to_try(
    lens: Sequence[int], packing: PackingConfig, longest: int = 0, most_positions: int | None = None
) -> list[int]:
    """Those of the settings, the one that is planned, and one that holds the longest sample where all are shorter.

    Args:
        most_positions: of the model: that one is no longer; None: not known.
    """
    whole = {length - length % packing.pad_to_multiple_of for length in lens} | {packing.max_token_len}
    if longest > packing.max_token_len:
        step = math.lcm(_STEP, packing.pad_to_multiple_of)
        for_all = -(-longest // step) * step
        whole.add(for_all if most_positions is None else min(for_all, most_positions // step * step))
    return sorted(whole - {0})


def num_tried(num_samples: int) -> int:
    """With how many of the samples lengths are tried."""
    return min(num_samples, _MOST_TRIED)


TryJob = tuple[Items, PackingConfig, list[int], int, float, int | None]


def job_of(
    lengths: Lengths,
    packing: PackingConfig,
    lens: Sequence[int],
    most_positions: int | None = None,
) -> TryJob:
    """What `try_some` takes: all samples of a small run, or a draw of a large one.

    The length of the settings is tried, too, and one that holds every sample.
    """
    items, scale = lengths.items, 1.0
    packing = replace(packing, need_image=False)  # with some lengths there would be too few of them
    upto = np.cumsum([0, *(np.count_nonzero(items.lens[block]) for block in blocks(len(items)))])
    num = int(upto[-1])
    there = np.arange(num_tried(num))
    if num > len(there):
        rng = np.random.default_rng(lengths.seed)
        scale = num / len(there)
        there = np.sort(rng.choice(num, len(there), replace=False))
        packing = replace(packing, window=None)  # a draw has fewer samples of each shard
    numbers = [
        block.start + np.flatnonzero(items.lens[block])[there[slice(*np.searchsorted(there, [start, end]))] - start]
        for block, (start, end) in zip(blocks(len(items)), pairwise(upto), strict=True)
    ]
    longest = int(items.lens.max(initial=0))
    tried = lens_to_try(lens, packing, longest, most_positions)
    return items.take(np.concatenate([there[:0], *numbers])), packing, tried, lengths.seed, scale, most_positions


def try_some(job: TryJob) -> list[Choice]:
    """What each length would come to, for the whole run; may run in a worker."""
    items, packing, lens, seed, scale, most_positions = job
    choices = choices_of(items, packing, lens, seed, most_positions=most_positions)
    return [choice.scaled(scale) for choice in choices] if scale != 1 else choices
