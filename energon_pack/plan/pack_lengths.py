"""Compare pack lengths: how much each `packing.max_token_len` of a list would drop, and how full its packs would be.

The planner runs for each, with lengths that were measured once; nothing is written.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from energon_pack.plan.distributions import Tally
from energon_pack.plan.items import Items, Lengths
from energon_pack.plan.pairs import items_or_pairs
from energon_pack.plan.plan import plan_packs
from energon_pack.plan.settings import Overlong, PackingConfig
from energon_pack.run.scratch_arrays import Scratch, blocks
from energon_pack.steps.topology import Topology


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


def try_pack_lengths(
    lengths: Lengths, packing: PackingConfig, tried: Sequence[int], max_positions: int | None = None
) -> LengthFigures:
    """Plan all samples with each pack length that is to be tried; return the results, and the spread of sample lengths.

    `max_positions`: the context length of the model, in tokens; None: not known.
    """
    items = items_or_pairs(lengths)
    lens = _measured_lens(items)
    return LengthFigures(
        samples_in=lengths.num_samples,
        samples_measured=len(lens),
        tokens=lens.total,
        skipped_by_reason=dict(sorted(lengths.reasons.items())),
        token_len=lens.spread(),
        lens=plan_each_length(items, packing, tried, lengths.seed, lengths.scratch, max_positions),
    )


def plan_each_length(
    items: Items,
    packing: PackingConfig,
    lens: Sequence[int],
    seed: int,
    scratch: Scratch | None = None,
    max_positions: int | None = None,
) -> list[TriedLength]:
    """Plan items once with each pack length of `lens`, and return what each would drop and fill.

    Args:
        scratch: where arrays of the plans lie; None: in memory.
        max_positions: the context length of the model, in tokens; None: not known.
    """
    measured = _measured_lens(items)
    packing = replace(packing, overlong=Overlong.drop, hard_limit=None, topology=Topology())
    choices = []
    for max_token_len in lens:
        max_token_len -= max_token_len % packing.pad_to_multiple_of
        plan = plan_packs(items, replace(packing, max_token_len=max_token_len), seed, scratch=scratch or Scratch())
        num_packed, packed = len(plan.items), int(plan.per_pack(items.lens).sum())
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
    for block in blocks(len(items)):
        some = items.lens[block]
        lens.add(some[some > 0])
    return lens
