"""Limits of a pack, in one table that planning, cutting, the ledger and verify share.

To add a cap, add a row of `CAPS`, a field of `PackingConfig` and, if it counts something new, a column of the lengths
(`lengths.counts`). With pad_to_multiple_of=8 and members of 5 and 9 tokens a pack has 8 + 16 tokens, 2 members, and an
attention cost of 25 + 81.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from energon_pack.plan.settings import PackingConfig
from energon_pack.run.seeded_random import Ints


class Cap(NamedTuple):
    """A limit of a pack, as `packing.max_images`: what it counts, and how much a member adds."""

    #: the setting: `packing.<name>`
    name: str
    #: the column of the lengths that it limits
    column: str
    #: returns what a member adds, from its value in that column and the multiple that it is padded to; numbers or
    #: arrays
    member_cost: Callable[[Any, int], Any]


def padded_len(token_len: Any, multiple: int) -> Any:
    """Round a member's number of tokens (a number or an array) up to a multiple: the tokens that it takes in a pack."""
    return -(-token_len // multiple) * multiple


#: tokens first
CAPS = (
    Cap("max_token_len", "token_len", padded_len),
    Cap("max_images", "num_images", lambda number, _: number),
    Cap("max_visual_tokens", "num_visual_tokens", lambda number, _: number),
    Cap("max_audios", "num_audios", lambda number, _: number),
    Cap("max_audio_tokens", "num_audio_tokens", lambda number, _: number),
    Cap("max_members", "token_len", lambda token_len, _: np.ones_like(token_len)),
    Cap("max_attention_cost", "token_len", lambda token_len, _: token_len**2),
)
#: the columns of the lengths that caps need
COLUMNS = tuple(dict.fromkeys(cap.column for cap in CAPS))


def limits(packing: PackingConfig) -> list[tuple[Cap, int]]:
    """Return the caps that are set, each with its limit."""
    values = [(cap, getattr(packing, cap.name)) for cap in CAPS]
    return [(cap, limit) for cap, limit in values if limit is not None]


def costs_and_limits(counts: Mapping[str, Any], packing: PackingConfig) -> tuple[Ints, Ints]:
    """Return how much each of n samples adds to each limited sum of a pack, and these limits; tokens come first.

    Args:
        counts: int[n] for each of `COLUMNS`. An entry under the name of a cap replaces the cost computed for that cap.

    Returns:
        Costs, int64[num_caps, n], and limits, int64[num_caps]; only caps that are set.
    """
    multiple = packing.pad_to_multiple_of
    rows = [
        counts[cap.name] if cap.name in counts else cap.member_cost(counts[cap.column].astype(np.int64), multiple)
        for cap, _ in limits(packing)
    ]
    return np.stack(rows), np.array([limit for _, limit in limits(packing)], np.int64)


def exceeded_limits(counts: Mapping[str, Any], packing: PackingConfig) -> list[str]:
    """List the limits of a pack that a sample breaks by itself, as texts like `7 > packing.max_images=5`.

    `counts`: a number for each of `COLUMNS`, or for the name of a cap.
    """
    multiple = packing.pad_to_multiple_of
    alone = [
        (cap.name, int(counts.get(cap.name, cap.member_cost(counts[cap.column], multiple))), limit)
        for cap, limit in limits(packing)
    ]
    return [excess_text(name, value, limit) for name, value, limit in alone if value > limit]


def excess_text(name: str, value: int, limit: int) -> str:
    """Return the text for a broken limit, as `7 > packing.max_images=5`."""
    return f"{value} > packing.{name}={limit}"
