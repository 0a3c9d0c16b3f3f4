"""Each remark has its number and its setting, and an ordinary run has no remarks."""

from typing import Any

import pytest

from energon_pack.plan.note_counts import NAME_LISTS, NOTES
from energon_pack.plan.pack_lengths import TriedLength
from energon_pack.plan.report import MediaFigures
from energon_pack.report.advice import ImagesAtTokenBounds
from energon_pack.report.data_rules import _REMEDIES
from energon_pack.report.figures import Figures, FolderOutcome, LengthTrials, OverlongFacts, SourceMedium
from energon_pack.report.pages.html import Grade
from energon_pack.report.remarks import collect_remarks
from energon_pack.samples.skip import Reason
from support.figures import FIGURES, LENS, figures, noted, overlong


def said(of: Figures, **how: Any) -> list[tuple[str, str]]:
    return [(remark.grade.value, remark.what) for remark in collect_remarks(of, **how)]


NONE = {
    "an ordinary run": FIGURES,
    "few of something": figures(  # nobody reads a list that is too long
        {"untrained": 1, "num_duplicates": 10, "images": ImagesAtTokenBounds(4, 16384, 1000, 300, 300)},
        report=overlong(1, 9000),
        overlong_facts=OverlongFacts("image"),
        origins=[FolderOutcome("a", 900, 0, 0, 9), FolderOutcome("b", 100, 40, 0, 1)],
    ),
    # four full ones and a third: no plan does better
    "a last pack that is not full": figures(report={"by_media": {"image": MediaFigures(1000, 1000, 5, 1, 0.86)}}),
    # some models make the same number of tokens of any image
    "images of one size": figures({"images": ImagesAtTokenBounds(256, 256, 1000, 1000, 1000)}),
}


@pytest.mark.parametrize("name", NONE)
def test_nothing_stands_out(name: str) -> None:
    assert said(NONE[name]) == []


def test_what_helps_is_a_setting_that_can_be_typed() -> None:
    """`source.…` was printed as it stands here."""
    assert not [help for help in _REMEDIES.values() if "…" in help]


CASES: dict[str, tuple[Figures, tuple[str, str]]] = {
    "an empty source": (figures({"samples": 0, "measured": 0}), ("wrong", "the source has no samples")),
    "no pack": (figures(report={"packs": 0}), ("wrong", "there is no pack")),
    "a lost modality": (
        figures(report={"by_media": {"image": MediaFigures(1000, 0, 0, 0, 0.0)}}),
        ("wrong", "every image sample is skipped, 1,000 in all"),
    ),
    "no media for a model that sees": (
        figures({"by_medium": {"text": SourceMedium(1000, 1000, 1_000_000, 400_000, LENS)}}),
        ("note", "all samples are text alone"),
    ),
    "a folder that is lost": (
        figures(origins=[FolderOutcome("a", 900, 0, 0, 9), FolderOutcome("b", 100, 60, 20, 1)]),
        ("look", "80 of 100 samples (80%) of b are in no pack"),
    ),
    "overlong samples": (
        figures(report=overlong(30, 150_000), overlong_facts=OverlongFacts("image")),
        ("look", "150k tokens (15%) are dropped: 30 samples are longer than 8,192"),
    ),
    "mostly overlong samples": (
        figures(report=overlong(300, 600_000), overlong_facts=OverlongFacts("video")),
        ("wrong", "600k tokens (60%) are dropped: 300 samples are longer than 8,192"),
    ),
    "overlong samples that are dropped by name": (
        figures(report=overlong(300, 600_000), overlong_facts=OverlongFacts("video", is_intended=True)),
        ("look", "600k tokens (60%) are dropped: 300 samples are longer than 8,192"),
    ),
    "a limit": (
        figures(report={"skipped_by_reason": {"over_cap": 12}}),
        ("look", "12 of 1,000 samples (1.20%) break a limit of packing.max_…"),
    ),
    "no token is trained on": (figures({"num_supervised": 0}), ("wrong", "no token is trained on")),
    "few tokens are trained on": (
        figures({"num_supervised": 10_000}), ("look", "1.00% of the tokens of texts are trained on"),
    ),
    "nearly all tokens are trained on": (
        figures({"num_supervised": 990_000}), ("look", "99% of the tokens of texts are trained on"),
    ),
    "samples that teach nothing": (
        figures({"untrained": 50}), ("look", "50 of 1,000 samples (5.00%) have no token that is trained on"),
    ),
    "samples left out because nothing of them is trained": (
        figures(report={"skipped_by_reason": {"nothing_trained": 50}}),
        ("look", "50 of 1,000 samples (5.00%) are in no pack, for none of their tokens is trained"),
    ),
    "texts that are cut off": (
        figures(
            report={"samples_cut_off": 1, "tokens": 1024, "tokens_left_out": 3072,
                    "tokens_left_out_by_reason": {"cut_off": 3072}},
            overlong_facts=OverlongFacts("text", is_too_much=True),
        ),
        ("wrong", "3,072 tokens (75%) are cut off: 1 sample is packed without them"),
    ),
    "placeholders put in": (
        figures(noted(placeholders_put_in=7)),
        ("look", "7 of 1,000 samples (0.70%) had media and no place for them: placeholders were put in front of the"
                 " first user turn, or videos took the place of <image>"),
    ),
    "no visual token": (figures({"num_without_visual": 3}), ("wrong", "3 samples with media have no visual token")),
    "images at the most": (
        figures({"images": ImagesAtTokenBounds(4, 1024, 1000, 0, 970)}),
        ("look", "97% of the image samples are shrunk to the most tokens that an image may have, 1,024"),
    ),
    "images in which nothing can be read": (
        figures({"images": ImagesAtTokenBounds(4, 16, 1000, 0, 970)}),
        ("wrong", "97% of the image samples are shrunk to the most tokens that an image may have, 16"),
    ),
    "much of a medium": (
        figures(
            report={
                "by_media": {"text": MediaFigures(958, 950, 99, 9, 0.99), "image": MediaFigures(42, 23, 9, 9, 0.99)},
                "samples_skipped": 27,
            }
        ),
        ("look", "19 of 42 image samples (45%) are skipped"),
    ),
    "images at the least": (
        figures({"images": ImagesAtTokenBounds(4, 16384, 1000, 900, 0)}),
        ("look", "90% of the image samples have the least tokens that an image may have, 4"),
    ),
    "roles that have changed places": (
        figures(noted(assistant_first=990)),
        ("wrong", "990 of 1,000 samples (99%) begin with a turn of the assistant"),
    ),
    "more packs than are needed": (
        figures(report={"packs": 150}), ("look", "150 packs where 127 could do"),
    ),
    "packs of a medium that are not full": (
        figures(report={"by_media": {"image": MediaFigures(1000, 1000, 128, 1, 0.6)}}),
        ("look", "packs of image are 60% full"),
    ),
    "packs much longer than samples": (
        figures({"lens": {**LENS, "max": 900}}), ("note", "the longest sample has 900 tokens, a pack 8,192"),
    ),
    "duplicates": (
        figures({"num_duplicates": 200}),
        ("look", "200 of 1,000 samples (20%) are the same as another one, byte for byte"),
    ),
    "waiting": (
        figures(report={"steps": {"in_order": {"steps": 4, "both": {"epoch": 1.2}}}}),
        ("look", "an epoch takes 1.200 times what it would without waiting"),
    ),
    "the demo": (figures(demo=True), ("note", "this is the built-in demo")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_stands_out(name: str) -> None:
    of, expected = CASES[name]
    assert said(of) == [expected]
    assert all(remark.why and remark.knob for remark in collect_remarks(of))
    known = {"", "most_visual", "untrained", "without_features", *NOTES, *NAME_LISTS, *Reason}
    assert {remark.sample for remark in collect_remarks(of)} <= known, "the contact sheet finds a sample of each"


def test_bad_data_is_wrong_where_it_is_too_much() -> None:
    of = figures(report={"skipped_by_reason": {"missing_media": 30, "no_messages": 2, "overlong": 5}})
    what = "32 of 1,000 samples (3.20%) are lost to bad data: 30 missing_media, 2 no_messages"
    for allowed in (0.05, 0.032):  # as many as are allowed are not too many
        assert said(of, max_skipped_share=allowed) == [("look", what)]
    assert said(of, max_skipped_share=0.01) == [("wrong", what)]
    assert collect_remarks(of)[0].knob.startswith("source.media_root")


def test_what_is_wrong_comes_first() -> None:
    of = figures({"untrained": 50, "num_without_visual": 3}, demo=True)
    assert [remark.grade for remark in collect_remarks(of)] == [Grade.wrong, Grade.look, Grade.note]


def test_a_length_that_would_do_is_named() -> None:
    longer = LengthTrials(
        [TriedLength(8192, 30, 0.03, 0.15, 128, 0.95), TriedLength(32768, 0, 0.0, 0.0, 40, 0.96)], 1000, 1000
    )
    (remark,) = collect_remarks(
        figures(report=overlong(30, 150_000), overlong_facts=OverlongFacts("image"), length_trials=longer)
    )
    assert remark.knob.startswith(
        "smaller images (media=resize_max_pixels media.max_pixels=N), or packing.max_token_len=32768"
    )
