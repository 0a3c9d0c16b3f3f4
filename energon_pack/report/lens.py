"""Which `packing.max_token_len` to take: what others would drop and fill, and which one a stated rule takes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from energon_pack.plan.compare_lens import Choice, choices_of
from energon_pack.plan.items import Items, Lengths
from energon_pack.plan.settings import PackingConfig

#: samples that are planned with each length; of more a seeded draw stands for all
_MOST_TRIED = 50_000
#: share of the tokens that may be dropped, and of packs that has to be filled
MOST_DROPPED, FILLED = 0.01, 0.95
RULE = (
    f"the shortest length that drops at most {MOST_DROPPED:.0%} of the tokens and fills {FILLED:.0%} of its packs;"
    " where none does both, the fullest of those that drop so little; where none drops so little, the longest"
)


def recommended(choices: Sequence[Choice]) -> Choice | None:
    """The length that `RULE` takes; None: there is nothing to pack."""
    keeping = [choice for choice in choices if choice.packs and choice.dropped_tokens_share <= MOST_DROPPED]
    if not keeping:
        return max(
            (choice for choice in choices if choice.packs), key=lambda choice: choice.max_token_len, default=None
        )
    filling = [choice for choice in keeping if choice.fill >= FILLED]
    return min(filling, key=lambda choice: choice.max_token_len) if filling else max(keeping, key=lambda c: c.fill)


def lens_to_try(lens: Sequence[int], packing: PackingConfig) -> list[int]:
    """Those of the settings, and the one that is planned."""
    whole = {length - length % packing.pad_to_multiple_of for length in lens}
    return sorted({*whole, packing.max_token_len})


def num_tried(num_samples: int) -> int:
    """With how many of the samples lengths are tried."""
    return min(num_samples, _MOST_TRIED)


TryJob = tuple[Items, PackingConfig, list[int], int, float]


def job_of(lengths: Lengths, packing: PackingConfig, lens: Sequence[int]) -> TryJob:
    """What `try_some` takes: all samples of a small run, or a draw of a large one."""
    items, scale = lengths.items, 1.0
    packing = replace(packing, need_image=False)  # with some lengths there would be too few of them
    there = np.flatnonzero(items.lens > 0)
    if len(there) > _MOST_TRIED:
        rng = np.random.default_rng(lengths.seed)
        scale = len(there) / _MOST_TRIED
        there = np.sort(rng.choice(there, _MOST_TRIED, replace=False))
        packing = replace(packing, window=None)  # a draw has fewer samples of each shard
    return items.take(there), packing, lens_to_try(lens, packing), lengths.seed, scale


def try_some(job: TryJob) -> list[Choice]:
    """What each length would come to, for the whole run; may run in a worker."""
    items, packing, lens, seed, scale = job
    choices = choices_of(items, packing, lens, seed)
    return [choice.scaled(scale) for choice in choices] if scale != 1 else choices
