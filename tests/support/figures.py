"""Figures of a run in which nothing stands out, and some that differ from them."""

from dataclasses import replace
from typing import Any

from energon_pack.plan.note_counts import SampleNoteCounts
from energon_pack.plan.pack_lengths import TriedLength
from energon_pack.plan.report import MediaFigures, Report
from energon_pack.report.figures import Figures, FolderOutcome, LengthTrials, OverlongFacts, SourceFigures, SourceMedium
from energon_pack.report.pages.bars import Histogram

LENS = {"min": 100, "p50": 1000, "p90": 2000, "p99": 4000, "max": 5000}
#: 1,000 samples of images, all in 128 packs
SOURCE = SourceFigures(
    samples=1000, measured=1000, tokens=1_000_000, skipped_by_reason={}, noted=SampleNoteCounts(),
    by_medium={"image": SourceMedium(1000, 1000, 1_000_000, 400_000, LENS)},
    token_len=Histogram([64, 1024, 8192], {"image": [500, 500]}), lens=LENS, num_supervised=400_000,
    visual_tokens=0, untrained=0,
    num_duplicates=0, num_without_visual=0, images=None, sees_media=True,
)  # fmt: skip
REPORT = Report(
    samples_in=1000, samples_excluded=0, samples_repeated=0, samples_packed=1000, samples_skipped=0, samples_cut=0,
    parts=1000, skipped_by_reason={}, packs=128, packs_lower_bound=127, packs_without_window=None, fill=0.95,
    max_token_len=8192, tokens=1_000_000, tokens_left_out=0, tokens_left_out_by_reason={},
    num_supervised=400_000, notes={}, unknown_keys={}, image_modes={}, mixture=None, shared=None, weighted_share=0.0,
    by_media={"image": MediaFigures(1000, 1000, 128, 1_000_000, 0.95)}, by_split={}, turns=None,
    members_per_pack={},
    token_len=LENS, visual_tokens_per_pack={}, attention_cost={}, flops={}, steps=None,
)  # fmt: skip
TRIES = [TriedLength(4096, 10, 0.01, 0.05, 240, 0.98), TriedLength(8192, 0, 0.0, 0.0, 128, 0.95)]
FIGURES = Figures(
    max_token_len=8192,
    source=SOURCE,
    length_trials=LengthTrials(TRIES, 1000, 1000),
    origins=[FolderOutcome(".", 1000, 0, 0, 1_000_000)],
    overlong_facts=OverlongFacts("text"),
    report=REPORT,
)


def figures(source: dict[str, Any] | None = None, report: dict[str, Any] | None = None, **changes: Any) -> Figures:
    """The figures, with some that differ: of the source, of report.json, or others."""
    changed = replace(SOURCE, **(source or {})), replace(REPORT, **(report or {}))
    return replace(FIGURES, source=changed[0], **{"report": changed[1], **changes})


def noted(**samples: int) -> dict[str, Any]:
    """What the source says where so many samples have a note."""
    counts = SampleNoteCounts()
    counts.samples.update(samples)
    return {"noted": counts}


def overlong(samples: int, tokens: int) -> dict[str, Any]:
    """What report.json says where so many samples are too long."""
    return {"skipped_by_reason": {"overlong": samples}, "tokens_left_out_by_reason": {"overlong": tokens}}
