"""Charts draw their values to scale."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from energon_pack.report.pages.html import Html
from energon_pack.report.pages.svg import Mark, Piece, curves, histogram, short, strip


def rects(made: Html, kind: str) -> list[dict[str, float]]:
    """Return places and sizes of the shapes in the colour of a kind."""
    drawn = re.findall(rf'<rect x="([^"]*)" y="([^"]*)" width="([^"]*)" height="([^"]*)" class="of-{kind}">', made)
    return [dict(zip(("x", "y", "width", "height"), map(float, values), strict=True)) for values in drawn]


def test_bars_stand_on_one_another_to_scale() -> None:
    made = histogram([0, 10, 20], {"text": [2, 0], "image": [1, 4]}, "tokens", "samples")
    (text,), (low, high) = rects(made, "text"), rects(made, "image")
    assert text["height"] == pytest.approx(2 * low["height"], abs=0.1)
    assert high["height"] == pytest.approx(4 * low["height"], abs=0.2)
    assert low["y"] + low["height"] == pytest.approx(text["y"], abs=0.1)
    assert "<title>10 to 20 tokens, image: 4 samples</title>" in made


def test_a_mark_is_where_its_value_is() -> None:
    """The cut at max_token_len between two bars would say that other samples are lost."""
    made = histogram([0, 10, 20, 40], {"text": [1, 1, 1]}, "tokens", "samples", [Mark(30, "here")])
    bars = rects(made, "text")
    (at,) = map(float, re.findall(r'<path d="M([^ "]*) 0v1000" class="mark"', made))
    assert at == pytest.approx(bars[2]["x"] + bars[2]["width"] / 2, abs=0.2)


def test_a_strip_is_filled_to_scale() -> None:
    made = strip([Piece("text", 30, "a"), Piece("image", 10, "b")], 80)
    widths = [rects(made, kind)[0]["width"] for kind in ("text", "image", "padding")]
    assert widths == pytest.approx([375 - 0.6, 125 - 0.6, 500 - 0.6], abs=0.1)
    assert rects(strip([Piece("text", 80, "a")], 80), "padding") == []


def test_numbers_are_short() -> None:
    assert [short(value) for value in (0, 950, 0.25, 8192, 12_345, 4_100_000, 2.5e9, float("inf"))] == [
        "0", "950", "0.25", "8,192", "12.3k", "4.1M", "2.5G", "inf",
    ]  # fmt: skip
    near = (9_999.6, 999_499, 999_500, 999_999, 999_600_000)  # none is "1e+03" of the unit below
    assert [short(value) for value in near] == ["10,000", "999k", "1M", "1M", "1G"]


numbers = st.floats(0, 1e15) | st.just(0.0) | st.integers(0, 10**12).map(float)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20, unique_by=lambda point: point[0]))
@example([(5e-324, 0.0)])  # the smallest number there is: the chart ended in a math domain error
def test_any_curve_is_well_formed_and_inside(points: list[tuple[float, float]]) -> None:
    """One point, equal values and zeros have no span to be scaled by."""
    made = curves({"text": sorted(points)}, "x", "y", [Mark(1, "one")])
    ElementTree.fromstring(made)
    for line in re.findall(r'points="(.*?)"', made):
        for point in line.split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 1000
            assert 0 <= y <= 1000


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=40))
def test_any_histogram_is_well_formed_and_inside(counts: list[int]) -> None:
    made = histogram(range(len(counts) + 1), {"text": counts, "image": counts}, "x", "y")
    ElementTree.fromstring(f"<div>{made}</div>")
    for kind in ("text", "image"):
        assert all(bar["y"] >= 0 and bar["y"] + bar["height"] <= 1000.1 + 4 for bar in rects(made, kind))


def labels(made: Html, class_: str = "under") -> list[tuple[float, str]]:
    """Where the labels of the lower axis are, in percent, and what they say; of those for so wide a page."""
    found = re.findall(r'<span class="([^"]*)" style="left:([^%]*)%[^"]*">([^<]*)<', made)
    return sorted((float(at), text) for classes, at, text in found if classes in ("under", f"under {class_}"))


def test_labels_never_lie_over_each_other() -> None:
    """16,384 and 17,408 were printed over each other; the one that is marked stays."""
    lens = (2048, 4096, 8192, 16384, 17408, 32768, 65536)
    made = curves({"fill": [(x, 1.0) for x in lens]}, "x", "y", [Mark(17408, "recommended")], is_log=True)
    assert [text for _, text in labels(made, "wide")] == ["2,048", "4,096", "8,192", "17,408", "32,768", "65,536"]


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=40, unique=True), st.booleans())
def test_any_labels_have_room(numbers: list[int], is_narrow: bool) -> None:
    """7 px a letter, on a page of 800 px or of 330."""
    at = sorted(numbers)
    made = labels(
        curves({"fill": [(x + 1, 1.0) for x in at]}, "x", "y", is_log=True), "narrow" if is_narrow else "wide"
    )
    width = 330 if is_narrow else 800
    for (low, first), (high, second) in pairwise(made):
        assert (high - low) * width / 100 >= 6.6 * (len(first) + len(second)) / 2
    assert made


def test_an_axis_of_percent_is_labelled_by_quarters() -> None:
    """14.3, 28.6 and 42.9 % of an epoch say nothing to anybody."""
    edges = [100 * i / 7 for i in range(8)]
    for made in (
        histogram(edges, {"text": [1] * 7}, "x", "y", is_percent=True),
        curves({"text": [(7.1, 1), (92.9, 1)]}, "x", "y", is_percent=True),
    ):
        assert labels(made) == [(0, "0"), (25, "25"), (50, "50"), (75, "75"), (100, "100")]


def test_letters_are_no_part_of_what_is_stretched() -> None:
    """They shrank with the drawing, to 6 px on a telephone."""
    made = histogram([0, 10, 20], {"text": [2, 1]}, "tokens", "samples", [Mark(5, "here")])
    (drawn,) = re.findall("<svg.*?</svg>", made)
    assert "<text" not in drawn
    assert "here" not in drawn
