"""Pages contain their input, escaped, and load nothing from other files."""

import html
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from energon_pack.report.pages.bars import (
    Histogram,
    Piece,
    draw_histogram,
    draw_segmented_bar,
    log_histogram,
    short_number,
)
from energon_pack.report.pages.html import Html, Rows, code_cell, page, section, table, tag


def test_what_is_not_markup_is_escaped() -> None:
    """A sample's text is anybody's: it must not become a script of the page."""
    assert tag("p", "2 < 3", tag("b", "&"), None) == "<p>2 &lt; 3<b>&amp;</b></p>"
    assert tag("a", href='"><script>', title=None, hidden=True) == '<a href="&quot;&gt;&lt;script&gt;" hidden></a>'


def test_any_text_can_be_written() -> None:
    """A name that is not UTF-8 contains lone surrogates; encoding them once ended a run after all its work."""
    assert tag("p", "a\udcff\x9b31m\x00b").encode() == "<p>a\ufffd\ufffd31m\u2400b</p>".encode()


def test_numbers_of_a_table_stand_to_the_right() -> None:
    made = table(["", "packs"], [["text", 6]])
    assert '<td>text</td><td class="number">6</td>' in made
    assert '<th></th><th class="number">packs</th>' in made


def test_sections_are_linked_at_the_top() -> None:
    """A reader of a long page did not know what is on it."""
    made = page("a", section("Token lengths"), section("In & out"))
    assert '<nav><a href="#token-lengths">Token lengths</a><a href="#in-out">In &amp; out</a></nav>' in made
    assert "<nav>" not in page("a", section("Jobs"))


def test_a_browser_is_told_that_a_page_fetches_and_runs_nothing() -> None:
    """All text is escaped; should some not be, it is shown and not run."""
    head = page("a").partition("<style>")[0]
    assert "Content-Security-Policy" in head
    assert "default-src &#x27;none&#x27;; img-src data:; style-src &#x27;unsafe-inline&#x27;" in head
    assert "script-src" not in head


def widths(made: Html) -> list[tuple[str, float]]:
    """Return the kinds of pieces, and their widths in percent."""
    drawn = re.findall(r'class="of-(\w+)[^"]*" style="width:([\d.]+)%"', made)
    return [(kind, float(width)) for kind, width in drawn]


def test_a_strip_is_filled_to_scale() -> None:
    made = draw_segmented_bar([Piece("text", 30, "a"), Piece("image", 10, "b")], 80)
    assert widths(made) == [("text", 37.5), ("image", 12.5), ("padding", 50.0)]
    assert widths(draw_segmented_bar([Piece("text", 80, "a")], 80)) == [("text", 100.0)]


def test_bars_are_to_scale_and_the_mark_is_between_them() -> None:
    """A cut at max_token_len between two other bars would say that other samples are lost."""
    made = draw_histogram(Histogram([8, 16, 32], {"text": [2, 0], "image": [1, 4]}), "tokens", "samples", (16, "here"))
    assert widths(made) == [("text", 50.0), ("image", 25.0), ("image", 100.0)]
    assert "16 to 32 tokens, image: 4 samples" in made
    assert re.findall(r"8 – 16<|here|16 – 32<", made) == ["8 – 16<", "here", "16 – 32<"]
    ElementTree.fromstring(made)


@pytest.mark.parametrize("mark", [1, 4096])
def test_a_mark_outside_of_all_values_is_seen(mark: int) -> None:
    shape = log_histogram({"text": np.array([40, 200])}, mark)
    assert shape is not None
    assert "here" in draw_histogram(shape, "tokens", "samples", (mark, "here"))


def test_numbers_are_short() -> None:
    assert [short_number(value) for value in (0, 950, 0.25, 8192, 12_345, 4_100_000, 2.5e9, float("inf"))] == [
        "0", "950", "0.25", "8,192", "12.3k", "4.1M", "2.5G", "inf",
    ]  # fmt: skip
    near = (9_999.6, 999_499, 999_500, 999_999, 999_600_000)  # none is "1e+03" of the unit below
    assert [short_number(value) for value in near] == ["10,000", "999k", "1M", "1M", "1G"]


@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=50), st.integers(0, 10**6))
def test_each_length_is_counted_once(lens: list[int], mark: int) -> None:
    shape = log_histogram({"text": np.array(lens, np.int32)}, mark)
    assert shape is not None
    assert sum(shape.counts["text"]) == len(lens)
    assert shape.edges[0] <= min(lens)
    assert shape.edges[-1] >= max(*lens, mark)
    assert not mark or mark in shape.edges
    assert len(shape.edges) <= 40


words = st.text("ab <&", min_size=1, max_size=6).map(str.strip).filter(bool)
tables = st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(words, min_size=n, max_size=n), min_size=2, max_size=5))


@given(tables, st.integers(0, 4))
def test_both_show_each_cell(cells: list[list[str]], num_words: int) -> None:
    """Before, each table was written twice, and the two had other columns and other numbers."""
    header, *rows = cells
    made = Rows(header, [[code_cell(first), *others] for first, *others in rows], num_words, strong={0})
    found = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", made.to_html())
    assert [html.unescape(re.sub("<[^>]*>", "", cell)) for cell in found] == [cell for row in cells for cell in row]
    assert made.texts == rows


def test_no_number_is_folded() -> None:
    """At 25 columns the name is folded, and `47,188` is whole; a header is folded between its words."""
    made = Rows(("file", "samples in"), [("a_long_name_of_a_file", "47,188")])
    narrow = Console(width=made.least_width)
    with narrow.capture() as shown:
        narrow.print(made.to_terminal(made.least_width))
    assert made.least_width == 16 + 2 + 7
    assert "47,188" in shown.get()
    assert max(map(len, shown.get().splitlines())) <= made.least_width
