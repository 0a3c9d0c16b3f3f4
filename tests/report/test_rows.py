"""A terminal and a page show the same rows, whatever is in them."""

import html
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from energon_pack.report.pages.rows import Rows, code

words = st.text("ab <&", min_size=1, max_size=6).map(str.strip).filter(bool)
tables = st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(words, min_size=n, max_size=n), min_size=2, max_size=5))


@given(tables, st.integers(0, 4))
def test_both_show_each_cell(cells: list[list[str]], num_words: int) -> None:
    """Before, each table was written twice, and the two had other columns and other numbers."""
    header, *rows = cells
    made = Rows(header, [[code(first), *others] for first, *others in rows], num_words, strong={0})
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
