"""Settings for packing, the config's node `packing`, and the limits of a pack that they set.

With pad_to_multiple_of=8 and members of 5 and 9 tokens a pack has 8 + 16 tokens, 2 members, and an attention cost of
25 + 81. To add a cap, add a row of `CAPS`, a field of `PackingConfig` and, if it counts something new, a column of
`LENGTHS_SCHEMA` (`lengths.schema`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from energon_pack.errors import PackError
from energon_pack.run.seeded_random import Ints
from energon_pack.steps.topology import Topology

MAX_EPOCHS = 10_000


class Layout(str, Enum):
    """How the members of a pack lie in a batch: back to back (neat), or each at an aligned offset (thd)."""

    neat = "neat"
    thd = "thd"


class Algorithm(str, Enum):
    """The bin packing algorithm for packs that are limited only in tokens."""

    #: balanced, unless that takes more than 1.0001 · the lower bound + 1 bins
    auto = "auto"
    #: spreads long items evenly
    balanced = "balanced"
    #: only counts bins, never more than best fit
    optimal = "optimal"
    best_fit_decreasing = "best_fit_decreasing"
    #: another word for best fit: both need the same bins, and first fit two to three times the time
    first_fit_decreasing = "first_fit_decreasing"


class Overlong(str, Enum):
    """What is done with a sample that is longer than a pack."""

    #: drop, as long as that loses at most `max_dropped_tokens`
    auto = "auto"
    drop = "drop"
    error = "error"
    own_pack = "own_pack"
    split_turns = "split_turns"
    split_text = "split_text"
    truncate_text = "truncate_text"


#: the policies that make parts of samples
CUTTING_POLICIES = (Overlong.split_turns, Overlong.split_text, Overlong.truncate_text)


class GroupBy(str, Enum):
    """What the samples of a pack have in common."""

    media = "media"
    dataset = "dataset"
    none = "none"


class SharedBeginnings(str, Enum):
    """Which common beginnings of samples a pack stores only once."""

    #: each sample is whole
    none = "none"
    #: the beginning up to the end of a medium
    media = "media"
    #: the beginning up to the end of a turn or a medium
    prefix = "prefix"


@dataclass
class PackingConfig:
    """The settings `packing.*`: all that a plan depends on, except lengths and seed."""

    #: the layout that training uses by default: members back to back (neat), or at aligned offsets (thd)
    layout: Layout = Layout.neat
    #: most tokens of a pack
    max_token_len: int = 8192
    #: each member takes a multiple of so many tokens; 1: its own number
    pad_to_multiple_of: int = 1
    #: how samples are dealt to packs; auto: balanced, or optimal if that needs fewer packs
    algorithm: Algorithm = Algorithm.auto
    #: a sample that is too long goes into the ledger (drop), ends the run (error), gets its own pack, or is cut; auto:
    #: drop, but end the run before it writes if that loses more than `max_dropped_tokens`
    overlong: Overlong = Overlong.auto
    #: share of all tokens that overlong=auto, or a policy that cuts, may leave out
    max_dropped_tokens: float = 0.1
    #: for overlong=own_pack, which needs it: most tokens of a sample that has a pack of its own
    hard_limit: int | None = None
    #: a pack holds samples of one medium, of one folder of the source, or any
    group_by: GroupBy = GroupBy.media
    #: a pack takes its samples from so many source shards that follow each other: the plan's memory then holds only
    #: these, for hundreds of millions of samples; None: from all
    window: int | None = None
    #: most images of a pack; None: any number, as for each limit that follows
    max_images: int | None = None
    #: most tokens of a pack that stand for images and videos
    max_visual_tokens: int | None = None
    #: most sounds of a pack
    max_audios: int | None = None
    #: most tokens of a pack that stand for sounds
    max_audio_tokens: int | None = None
    #: most samples of a pack
    max_members: int | None = None
    #: most attention work of a pack: the sum of len² over its samples
    max_attention_cost: int | None = None
    #: whether every pack holds an image
    need_image: bool = False
    #: which equal beginnings of samples a pack stores and trains once (trees): questions about one image share it
    share: SharedBeginnings = SharedBeginnings.none
    #: fewest tokens of a shared beginning
    share_min_tokens: int = 64
    #: how often each sample comes: each epoch has other packs, and the epochs lie one after another
    epochs: int = 1
    #: the ranks that train on the packs: steps are even over them; with one rank, every stretch of packs is like the
    #: whole
    topology: Topology = field(default_factory=Topology)

    @property
    def sample_token_limit(self) -> tuple[str, int]:
        """Return the name of the setting that limits a sample's tokens, padding included, and its value."""
        if self.overlong is Overlong.own_pack and self.hard_limit is not None:
            return "hard_limit", self.hard_limit
        return "max_token_len", self.max_token_len

    def check_for_online(self, are_pairs: bool) -> None:
        """Raise PackError if a setting works only for packs on disk, not for packs that are made in training.

        `are_pairs`: samples are preference pairs, whose two sides share a beginning.
        """
        if self.epochs > 1:
            raise PackError(
                f"packing.epochs={self.epochs} is for packs on disk: a dataset that packs in training plans each epoch"
            )
        if self.share is not SharedBeginnings.none and not are_pairs:
            raise PackError(
                f"packing.share={self.share.value} is for packs on disk, and for preference pairs: a dataset that packs"
                " in training reads no media before it plans"
            )

    def check(self) -> None:
        """Raise PackError if settings contradict each other."""
        self.topology.check()
        if not 1 <= self.epochs <= MAX_EPOCHS:
            raise PackError(f"packing.epochs={self.epochs}: from 1 to {MAX_EPOCHS:,}")
        if not 0 <= self.max_dropped_tokens <= 1:
            raise PackError(f"packing.max_dropped_tokens={self.max_dropped_tokens}: a share of the tokens, 0 to 1")
        if self.max_token_len % self.pad_to_multiple_of:
            raise PackError(
                f"packing.max_token_len={self.max_token_len} is not a multiple of"
                f" packing.pad_to_multiple_of={self.pad_to_multiple_of}"
            )
        if self.share is not SharedBeginnings.none and (self.layout is Layout.thd or self.pad_to_multiple_of > 1):
            raise PackError(
                f"packing.share={self.share.value} with packing.layout={self.layout.value} and"
                f" packing.pad_to_multiple_of={self.pad_to_multiple_of}: packing=neat has a mask for what is shared,"
                " and no padding"
            )
        if (self.overlong is Overlong.own_pack) != (self.hard_limit is not None):
            raise PackError(
                f"packing.overlong={self.overlong.value} and packing.hard_limit={self.hard_limit}: own_pack needs a"
                " hard_limit, the most tokens of a sample with a pack of its own, and nothing else has one"
            )
        if self.hard_limit is not None and self.hard_limit < self.max_token_len:
            raise PackError(
                f"packing.hard_limit={self.hard_limit} is less than packing.max_token_len={self.max_token_len}"
            )
        if self.need_image and self.group_by is GroupBy.media:
            raise PackError(
                "packing.need_image needs packing.group_by=none or dataset: packs of text alone have no image"
            )


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
CAPPED_COLUMNS = tuple(dict.fromkeys(cap.column for cap in CAPS))


def limits_of(packing: PackingConfig) -> list[tuple[Cap, int]]:
    """Return the caps that are set, each with its limit."""
    values = [(cap, getattr(packing, cap.name)) for cap in CAPS]
    return [(cap, limit) for cap, limit in values if limit is not None]


def costs_and_limits(counts: Mapping[str, Any], packing: PackingConfig) -> tuple[Ints, Ints]:
    """Return how much each of n samples adds to each limited sum of a pack, and these limits; tokens come first.

    Args:
        counts: int[n] for each of `CAPPED_COLUMNS`. An entry under a cap's name replaces its cost.

    Returns:
        Costs, int64[num_caps, n], and limits, int64[num_caps]; only caps that are set.
    """
    multiple = packing.pad_to_multiple_of
    rows = [
        counts[cap.name] if cap.name in counts else cap.member_cost(counts[cap.column].astype(np.int64), multiple)
        for cap, _ in limits_of(packing)
    ]
    return np.stack(rows), np.array([limit for _, limit in limits_of(packing)], np.int64)


def exceeded_limits(counts: Mapping[str, Any], packing: PackingConfig) -> list[str]:
    """List the limits of a pack that a sample breaks by itself, as texts like `7 > packing.max_images=5`.

    `counts`: a number for each of `CAPPED_COLUMNS`, or for the name of a cap.
    """
    multiple = packing.pad_to_multiple_of
    alone = [
        (cap.name, int(counts.get(cap.name, cap.member_cost(counts[cap.column], multiple))), limit)
        for cap, limit in limits_of(packing)
    ]
    return [excess_text(name, value, limit) for name, value, limit in alone if value > limit]


def excess_text(name: str, value: int, limit: int) -> str:
    """Return the text for a broken limit, as `7 > packing.max_images=5`."""
    return f"{value} > packing.{name}={limit}"
