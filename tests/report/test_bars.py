"""Bars draw their values to scale, and a histogram counts each value once."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.report.pages.bars import Histogram, Piece, histogram, log_histogram, short, strip
from energon_pack.report.pages.html import Html


def widths(made: Html) -> list[tuple[str, float]]:
    """Return the kinds of pieces, and their widths in percent."""
    drawn = re.findall(r'class="of-(\w+)[^"]*" style="width:([\d.]+)%"', made)
    return [(kind, float(width)) for kind, width in drawn]


def test_a_strip_is_filled_to_scale() -> None:
    made = strip([Piece("text", 30, "a"), Piece("image", 10, "b")], 80)
    assert widths(made) == [("text", 37.5), ("image", 12.5), ("padding", 50.0)]
    assert widths(strip([Piece("text", 80, "a")], 80)) == [("text", 100.0)]


def test_bars_are_to_scale_and_the_mark_is_between_them() -> None:
    """A cut at max_token_len between two other bars would say that other samples are lost."""
    made = histogram(Histogram([8, 16, 32], {"text": [2, 0], "image": [1, 4]}), "tokens", "samples", (16, "here"))
    assert widths(made) == [("text", 50.0), ("image", 25.0), ("image", 100.0)]
    assert "16 to 32 tokens, image: 4 samples" in made
    assert re.findall(r"8 – 16<|here|16 – 32<", made) == ["8 – 16<", "here", "16 – 32<"]
    ElementTree.fromstring(made)


@pytest.mark.parametrize("mark", [1, 4096])
def test_a_mark_outside_of_all_values_is_seen(mark: int) -> None:
    shape = log_histogram({"text": np.array([40, 200])}, mark)
    assert shape is not None
    assert "here" in histogram(shape, "tokens", "samples", (mark, "here"))


def test_numbers_are_short() -> None:
    assert [short(value) for value in (0, 950, 0.25, 8192, 12_345, 4_100_000, 2.5e9, float("inf"))] == [
        "0", "950", "0.25", "8,192", "12.3k", "4.1M", "2.5G", "inf",
    ]  # fmt: skip
    near = (9_999.6, 999_499, 999_500, 999_999, 999_600_000)  # none is "1e+03" of the unit below
    assert [short(value) for value in near] == ["10,000", "999k", "1M", "1M", "1G"]


@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=50), st.integers(0, 10**6))
def test_each_length_is_counted_once(lens: list[int], mark: int) -> None:
    shape = log_histogram({"text": np.array(lens, np.int32)}, mark)
    assert shape is not None
    assert sum(shape.counts["text"]) == len(lens)
    assert shape.edges[0] <= min(lens)
    assert shape.edges[-1] >= max(*lens, mark)
    assert not mark or mark in shape.edges
    assert len(shape.edges) <= 40


def test_nothing_has_no_shape() -> None:
    assert log_histogram({}) is None
