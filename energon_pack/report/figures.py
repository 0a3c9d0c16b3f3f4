"""What a page shows of a run, as plain figures: counted from arrays once, some kB whatever the number of samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_pack.plan.compare_lens import Choice
from energon_pack.plan.items import MEDIA_TYPES, NOTES, AnyInts, Lengths
from energon_pack.plan.plan import LEFT_OUT, PackPlan
from energon_pack.plan.report import Report, spread
from energon_pack.plan.settings import PackingConfig
from energon_pack.report.image_tokens import TokensOfImages, tokens_of_images
from energon_pack.report.packs import PackFigures, figures_of_packs
from energon_pack.report.shapes import Histogram, log_histogram
from energon_pack.samples.skip import Reason
from energon_pack.steps.cost import CostModel
from energon_pack.templates.families.rules import MediaRules

_UNKNOWN = "unknown"  # medium of samples that could not be read


@dataclass(frozen=True)
class MediumIn:
    """Samples of one medium, as they come from the source."""

    samples: int
    measured: int
    tokens: int  # of those that were measured
    num_supervised: int  # tokens of these that are trained on
    token_len: dict[str, int]  # min, p50, p90, p99, max


@dataclass(frozen=True)
class Origin:
    """Samples of one folder of the source, or of one file where there is one folder."""

    name: str
    samples: int
    lost: int  # to bad data
    left_out: int  # by the settings
    tokens: int  # of those that are packed


@dataclass(frozen=True)
class Source:
    """What came in, before anything is planned."""

    samples: int
    measured: int
    tokens: int
    skipped_by_reason: dict[str, int]  # without what a plan leaves out
    notes: dict[str, int]  # samples with what `NOTES` names
    by_medium: dict[str, MediumIn]
    token_len: Histogram | None  # None: no sample was measured
    lens: dict[str, int]  # of all media: min, p50, p90, p99, max
    num_supervised: int  # tokens that are trained on
    visual_tokens: int
    untrained: int  # samples without any of these
    alike: int  # samples that are, byte for byte, another one
    without_visual: int  # samples with media that hold no visual token
    images: TokensOfImages | None  # None: there are none, or their rules can't be asked
    sees_media: bool  # the model
    drawn_again: int = 0


@dataclass(frozen=True)
class Loss:
    """What the plan left out."""

    overlong: int  # samples
    overlong_tokens: int
    overlong_medium: str  # that most of these tokens are of
    over_cap: int


@dataclass(frozen=True)
class Tries:
    """What candidate lengths would come to."""

    choices: list[Choice]
    num_samples: int  # they were tried with
    of: int  # samples that were measured


@dataclass(frozen=True)
class Figures:
    """All of a page that is counted."""

    max_token_len: int
    source: Source
    tries: Tries
    origins: list[Origin]
    loss: Loss | None = None  # this and the next two are None where nothing was planned
    report: Report | None = None
    packs: PackFigures | None = None
    demo: bool = False
    examples: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)  # of the ledger, by reason

    @property
    def skipped_by_reason(self) -> dict[str, int]:
        """Of the plan, or of the source alone."""
        return self.report.skipped_by_reason if self.report else self.source.skipped_by_reason


def source_figures(lengths: Lengths, rules: MediaRules | None, max_token_len: int = 0, num_repeated: int = 0) -> Source:
    """What came in.

    Args:
        lengths: before samples are cut.
        rules: of the model's media; None: it has none, or they are asked of a processor.
        max_token_len: that is to be inside the histogram.
        num_repeated: draws of samples that were drawn before.
    """
    num, items = lengths.num_samples, lengths.items
    lens, media = lengths.sample_lens[:num], items.media[:num]
    there = lens > 0
    visual, images = items.counts["num_visual_tokens"][:num], items.counts["num_images"][:num]
    kinds = {name: media == code for code, name in [*enumerate(MEDIA_TYPES), (-1, _UNKNOWN)]}
    of_kinds = {name: lens[there & of] for name, of in kinds.items()}
    trained = items.num_supervised[:num][there]
    return Source(
        samples=num,
        measured=int(there.sum()),
        tokens=int(lens[there].sum()),
        skipped_by_reason=dict(sorted(lengths.reasons.items())),
        notes={note: lengths.notes[note] for note in NOTES},
        by_medium={
            name: MediumIn(
                samples=int(of.sum()),
                measured=len(of_kinds[name]),
                tokens=int(of_kinds[name].sum()),
                num_supervised=int(items.num_supervised[:num][there & of].sum()),
                token_len=spread(of_kinds[name]),
            )
            for name, of in kinds.items()
            if of.any()
        },
        token_len=log_histogram({name: values for name, values in of_kinds.items() if len(values)}, max_token_len),
        lens=spread(lens[there]),
        num_supervised=int(trained.sum()),
        visual_tokens=int(visual[there].sum()),
        untrained=int((trained == 0).sum()),
        alike=_num_alike(lengths, there) if not num_repeated else 0,
        without_visual=int((there & (media > 0) & (visual == 0)).sum()),
        images=tokens_of_images(rules, visual[there & kinds["image"]], images[there & kinds["image"]]),
        sees_media=rules is None or bool(rules.media_tokens),
        drawn_again=num_repeated,
    )


def _num_alike(lengths: Lengths, there: npt.NDArray[np.bool_]) -> int:
    """Samples that have the checksum, size and length of one before."""
    num = lengths.num_samples
    of = (lengths.checksums[:num], lengths.num_bytes[:num], lengths.sample_lens[:num])
    check, size, lens = (values[there].astype(np.uint64) for values in of)
    ordered = np.sort(check << np.uint64(32) ^ size ^ lens << np.uint64(20))
    return int((ordered[1:] == ordered[:-1]).sum())


def loss_of(lengths: Lengths, plan: PackPlan) -> Loss:
    """What a plan left out."""
    num = lengths.num_samples
    left_out, lens = plan.left_out[:num], lengths.sample_lens[:num]
    overlong = left_out == LEFT_OUT.index(Reason.OVERLONG)
    tokens = np.bincount(lengths.items.media[:num][overlong], lens[overlong], minlength=len(MEDIA_TYPES))
    over_cap = int((left_out == LEFT_OUT.index(Reason.OVER_CAP)).sum())
    return Loss(int(overlong.sum()), int(tokens.sum()), MEDIA_TYPES[int(tokens.argmax())], over_cap)


def origins_of(lengths: Lengths, plan: PackPlan | None) -> list[Origin]:
    """What became of the samples of each folder, the most lost first; of each file, where one folder lost some."""
    num, items = lengths.num_samples, lengths.items
    lens = lengths.sample_lens[:num]
    left_out = plan.left_out[:num] if plan else np.zeros(num, np.int8)
    names, of_sample = sorted({name.rpartition("/")[0] for name in lengths.shard_names}), items.dataset
    if len(names) == 1 and ((lens == 0) | (left_out > 0)).any():
        names, of_sample = lengths.shard_names, items.shard
    of_sample = of_sample[:num]

    def count(of: npt.NDArray[np.bool_], weights: AnyInts | None = None) -> list[int]:
        counted = np.bincount(of_sample[of], None if weights is None else weights[of], minlength=len(names))
        return [int(value) for value in counted]

    not_there = lens == 0
    policy = _by_policy(lengths) & not_there
    columns = (
        count(np.ones(num, np.bool_)), count(not_there & ~policy), count(policy | (left_out > 0)),
        count((lens > 0) & (left_out == 0), lens),
    )  # fmt: skip
    found = [Origin(name or ".", *values) for name, *values in zip(names, *columns, strict=True) if values[0]]
    return sorted(found, key=lambda origin: (-origin.lost - origin.left_out, -origin.samples))


def _by_policy(lengths: Lengths) -> npt.NDArray[np.bool_]:
    """Samples that the settings leave out, whatever the plan."""
    out = np.zeros(lengths.num_samples, np.bool_)
    if lengths.reasons[Reason.NOT_IN_FLAVOR]:
        for start, _, table in lengths.tables(["reason", "does_not_fit"], with_parts=False):
            reasons = lengths.reason(table).to_pylist()
            out[start : start + len(reasons)] = [reason == Reason.NOT_IN_FLAVOR for reason in reasons]
    return out


def planned_figures(
    lengths: Lengths, plan: PackPlan, report: Report, cost: CostModel, packing: PackingConfig
) -> dict[str, Any]:
    """What a plan adds to the figures of a source: fields of `Figures`."""
    return {
        "loss": loss_of(lengths, plan),
        "origins": origins_of(lengths, plan),
        "report": report,
        "packs": figures_of_packs(lengths.items, plan, cost, packing.topology, packing.max_token_len),
    }
