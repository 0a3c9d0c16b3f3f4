"""Count what a page shows of a run: plain figures, counted once from arrays, some kB whatever the number of samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.dataset.ledger import overlong_advice, why_overlong_lose_too_much
from energon_pack.plan.items import AnyInts, Items, Lengths
from energon_pack.plan.note_counts import SampleNoteCounts
from energon_pack.plan.pack_lengths import Tally, TriedLength
from energon_pack.plan.packs import LEFT_OUT, PackPlan
from energon_pack.plan.report import Report
from energon_pack.plan.settings import Overlong, PackingConfig
from energon_pack.report.advice import ImagesAtTokenBounds, ShrinkAdvice, count_images_at_token_bounds
from energon_pack.report.pages.bars import Histogram, log_histogram
from energon_pack.run.bounded_memory import split_into_blocks
from energon_pack.run.seeded_random import Ints
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, MEDIA_TYPES
from energon_pack.samples.skip import Reason
from energon_pack.templates.families.rules import MediaRules

_UNKNOWN = "unknown"  # the medium of samples that could not be read
#: media whose tokens with features are counted
_MEDIA_WITH_FEATURES = ("mix", *(kind for kind, medium in KINDS.items() if medium.is_visual), AUDIO.kind)
#: tokens, of which the report names multiples as a `pad_to`
PAD_WIDTH = 512
_MAX_SAMPLES_COMPARED = 1 << 25  # samples; of more, a random share is compared


@dataclass(frozen=True)
class SourceMedium:
    """Counts of the source's samples of one medium, before anything is planned."""

    samples: int
    measured: int
    tokens: int  # tokens of the samples that were measured
    num_supervised: int  # tokens of these samples that are trained on
    token_len: dict[str, int]  # min, p50, p90, p99, max


@dataclass(frozen=True)
class FolderOutcome:
    """What became of the samples of one folder of the source, or of one file where there is one folder."""

    name: str
    samples: int
    lost: int  # samples lost to bad data
    left_out: int  # samples left out by the settings
    tokens: int  # tokens of the samples that are packed


@dataclass(frozen=True)
class SourceFigures:
    """Counts of the samples and tokens in the source, before anything is planned."""

    samples: int
    measured: int
    tokens: int
    skipped_by_reason: dict[str, int]  # without the samples that a plan leaves out
    noted: SampleNoteCounts
    by_medium: dict[str, SourceMedium]
    token_len: Histogram | None  # None: no sample was measured
    lens: dict[str, int]  # lengths of all media together: min, p50, p90, p99, max
    num_supervised: int  # tokens that are trained on
    visual_tokens: int
    untrained: int  # samples without any trained token
    num_duplicates: int  # samples that are, byte for byte, the same as another one
    num_without_visual: int  # samples with media that hold no visual token
    images: ImagesAtTokenBounds | None  # None: there are none, or their rules can't be asked
    sees_media: bool  # whether the model sees media


@dataclass(frozen=True)
class OverlongFacts:
    """Facts about the samples that the plan left out as too long, for remarks; `Report` has their number."""

    medium: str  # the medium that most of their tokens belong to
    is_too_much: bool = False  # the run stops at this loss, unless packing.overlong=drop
    is_intended: bool = False  # the user set packing.overlong=drop
    keeps_more: str = ""  # settings that would keep more of the samples that are too long


@dataclass(frozen=True)
class LengthTrials:
    """What candidate pack lengths would drop and fill, and how many samples they were tried with."""

    choices: list[TriedLength]
    num_samples: int  # samples that the lengths were tried with
    num_measured: int  # all measured samples


@dataclass(frozen=True)
class Figures:
    """All figures that the page of a run shows, and that its remarks are made of."""

    max_token_len: int
    source: SourceFigures
    length_trials: LengthTrials
    origins: list[FolderOutcome]
    overlong_facts: OverlongFacts | None = None  # this and the next two are None where nothing was planned
    report: Report | None = None
    #: shapes of batches of one pack in an epoch: as long as it is, and in multiples of PAD_WIDTH
    batch_shapes: tuple[int, int] | None = None
    demo: bool = False
    shrink_advice: ShrinkAdvice | None = None  # a few large media that make packs long; None: there are none
    examples: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)  # entries of the ledger, by reason

    @property
    def skipped_by_reason(self) -> dict[str, int]:
        """Return the skipped samples of the plan, or of the source where nothing was planned."""
        return self.report.skipped_by_reason if self.report else self.source.skipped_by_reason

    @property
    def overlong_samples_and_tokens(self) -> tuple[int, int]:
        """Return how many samples the plan left out as too long, and their tokens."""
        reason, report = Reason.OVERLONG.value, self.report
        if report is None:
            return 0, 0
        return report.skipped_by_reason.get(reason, 0), report.tokens_left_out_by_reason.get(reason, 0)

    @property
    def ledger_counts(self) -> dict[str, int]:
        """Return the number of ledger entries by reason: skipped samples and, with a plan, those that are cut off."""
        num_cut_off = self.report.samples_cut_off if self.report else 0
        return {**self.skipped_by_reason, **({Reason.CUT_OFF.value: num_cut_off} if num_cut_off else {})}


def source_figures(
    lengths: Lengths, rules: MediaRules | None, max_token_len: int = 0, num_repeated: int = 0
) -> SourceFigures:
    """Count the samples and tokens of the source.

    Args:
        lengths: of the samples, before any is cut.
        rules: how the model counts tokens of media; None: it has no rules, or only its processor knows them.
        max_token_len: pack length in tokens, which is an edge of the histogram; 0: none.
        num_repeated: how many draws took a sample that was drawn before.
    """
    num, items, images = lengths.num_samples, lengths.items, Tally()
    kinds = {name: _MediumCounts() for name in (*MEDIA_TYPES, _UNKNOWN)}
    for block in split_into_blocks(num):
        in_block = items.take(slice(block.start, block.stop))
        in_block = replace(in_block, counts={**in_block.counts, "token_len": lengths.sample_lens[block]})
        for code, kind in enumerate(kinds.values()):
            kind.add(in_block.take(np.flatnonzero(in_block.media == (code if code < len(MEDIA_TYPES) else -1))))
        of = (in_block.media == MEDIA_TYPES.index(IMAGE.kind)) & (in_block.lens > 0)
        visual, number = (in_block.counts[name][of].astype(np.int64) for name in ("num_visual_tokens", "num_images"))
        images.add(visual << 32 | number)
    measured = {name: kind.lens for name, kind in kinds.items() if len(kind.lens)}
    values, weights = ({name: getattr(lens, of) for name, lens in measured.items()} for of in ("values", "counts"))
    lens = Tally()
    for some_lens in measured.values():
        lens.merge(some_lens)
    return SourceFigures(
        samples=num,
        measured=len(lens),
        tokens=lens.total,
        skipped_by_reason=dict(sorted(lengths.reasons.items())),
        noted=lengths.noted,
        by_medium={
            name: SourceMedium(kind.samples, len(kind.lens), kind.lens.total, kind.num_supervised, kind.lens.spread())
            for name, kind in kinds.items()
            if kind.samples
        },
        token_len=log_histogram(values, max_token_len, weights),
        lens=lens.spread(),
        num_supervised=sum(kind.num_supervised for kind in kinds.values()),
        visual_tokens=sum(kind.visual_tokens for kind in kinds.values()),
        untrained=sum(kind.untrained for kind in kinds.values()),
        num_duplicates=_num_duplicates(lengths) if not num_repeated else 0,
        num_without_visual=sum(kinds[name].num_without_visual for name in _MEDIA_WITH_FEATURES),
        images=count_images_at_token_bounds(rules, images.values >> 32, images.values & 0xFFFFFFFF, images.counts),
        sees_media=rules is None or bool(rules.media_tokens),
    )


class _MediumCounts:
    """Running counts over the samples of one medium."""

    def __init__(self) -> None:
        self.samples = self.num_supervised = self.visual_tokens = self.untrained = self.num_without_visual = 0
        self.lens = Tally()  # lengths of the samples that were measured

    def add(self, items: Items) -> None:
        """Add the samples of one medium among some items to the counts."""
        self.samples += len(items)
        is_measured = items.lens > 0
        self.lens.add(items.lens[is_measured])
        trained, visual = items.num_supervised[is_measured], items.counts["num_visual_tokens"][is_measured]
        self.num_supervised += int(trained.sum())
        self.visual_tokens += int(visual.sum())
        self.untrained += int((trained == 0).sum())
        features = visual + items.counts["num_audio_tokens"][is_measured]
        self.num_without_visual += int((features == 0).sum())


def _num_duplicates(lengths: Lengths) -> int:
    """Count the samples with the checksum, size and length of an earlier one; among very many samples, estimate it."""
    share = -(-lengths.num_samples // _MAX_SAMPLES_COMPARED)
    columns = []
    for block in split_into_blocks(lengths.num_samples):
        of = (lengths.checksums[block], lengths.num_bytes[block], lengths.sample_lens[block])
        check, size, lens = (values[lengths.sample_lens[block] > 0].astype(np.uint64) for values in of)
        content = check << np.uint64(32) ^ size ^ lens << np.uint64(20)
        columns.append(content[content >> np.uint64(32) % share == 0] if share > 1 else content)
    ordered = np.sort(np.concatenate([np.zeros(0, np.uint64), *columns]))
    return share * int((ordered[1:] == ordered[:-1]).sum())


def count_outcomes_by_folder(lengths: Lengths, plan: PackPlan | None) -> list[FolderOutcome]:
    """Count what became of the samples of each folder of the source; the folder that lost most comes first.

    If there is one folder, and it lost some, files are counted instead. `plan`: None if nothing was planned.
    """
    names, of_sample = sorted({name.rpartition("/")[0] for name in lengths.shard_names}), lengths.items.dataset
    if len(names) == 1 and (lengths.reasons or (plan and plan.left_out[: lengths.num_samples].any())):
        names, of_sample = lengths.shard_names, lengths.items.shard
    samples, not_there, left_out, tokens = np.zeros((4, len(names)), np.int64)
    for block in split_into_blocks(lengths.num_samples):
        of, lens = of_sample[block], lengths.sample_lens[block]
        out = plan.left_out[block] > 0 if plan else np.zeros(len(of), np.bool_)
        is_in = (lens > 0) & ~out
        for row, some in ((samples, of), (not_there, of[lens == 0]), (left_out, of[out])):
            row += np.bincount(some, minlength=len(names))
        tokens += np.bincount(of[is_in], lens[is_in], len(names)).astype(np.int64)
    policy = _num_left_out_by_settings(lengths, of_sample, len(names))
    columns = samples, not_there - policy, left_out + policy, tokens
    rows = zip(names, *(column.tolist() for column in columns), strict=True)
    origins = [FolderOutcome(name or ".", *values) for name, *values in rows if values[0]]
    return sorted(origins, key=lambda origin: (-origin.lost - origin.left_out, -origin.samples))


def _num_left_out_by_settings(lengths: Lengths, origin: AnyInts, num: int) -> Ints:
    """Count the samples of each origin that the settings leave out, whatever the plan."""
    out = np.zeros(num, np.int64)
    found_here = [reason.value for reason in (Reason.NOT_IN_FLAVOR, Reason.NOTHING_TRAINED) if lengths.reasons[reason]]
    if found_here:
        for start, _, table in lengths.tables(lengths.reason_columns, with_parts=False):
            is_out = pc.is_in(lengths.reason(table), pa.array(found_here)).to_numpy()
            out += np.bincount(origin[start : start + table.num_rows][is_out], minlength=num)
    return out


def planned_figures(lengths: Lengths, plan: PackPlan, report: Report, packing: PackingConfig) -> dict[str, Any]:
    """Return those fields of `Figures`, by name, that depend on the plan."""
    loss = OverlongFacts(
        _medium_of_overlong(lengths, plan),
        is_too_much=why_overlong_lose_too_much(report, packing) is not None,
        is_intended=packing.overlong is Overlong.drop,
        keeps_more=overlong_advice(packing.overlong),
    )
    tokens, members = plan.sum_per_pack(lengths.items.lens), np.diff(plan.starts)
    return {
        "overlong_facts": loss,
        "origins": count_outcomes_by_folder(lengths, plan),
        "report": report,
        "batch_shapes": (
            len(np.unique(np.stack((tokens, members)), axis=1)[0]),
            len(np.unique(-(-tokens // PAD_WIDTH))),
        ),
    }


def _medium_of_overlong(lengths: Lengths, plan: PackPlan) -> str:
    """Return the media type with most tokens among the samples that are too long."""
    tokens = np.zeros(len(MEDIA_TYPES))
    for block in split_into_blocks(lengths.num_samples):
        is_overlong = plan.left_out[block] == LEFT_OUT.index(Reason.OVERLONG)
        tokens += np.bincount(
            lengths.items.media[block][is_overlong], lengths.sample_lens[block][is_overlong], len(MEDIA_TYPES)
        )
    return MEDIA_TYPES[int(tokens.argmax())]
