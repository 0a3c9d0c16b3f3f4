"""A table as a value: a terminal and a page show the same rows.

Rows(("medium", "packs"), [("text", "6")]) ─┬─ to_terminal(width) ─► a table of rich
                                            └─ to_html() ──────────► <table>
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.table import Table

from energon_pack.errors import printable
from energon_pack.report.pages.html import Html, table, tag
from energon_pack.run.console import console

_MIN_WORD_WIDTH = 16  # characters of a column of words, which is folded into them


class Cell(NamedTuple):
    """A cell of a table: its text for a terminal, and its markup for a page."""

    text: str
    html: Html


def code_cell(text: str) -> Cell:
    """Return a cell with a name from data, which a page shows in a monospaced font."""
    return Cell(text, tag("code", text))


@dataclass(frozen=True)
class Rows:
    """A table that a terminal and a page can show.

    Args:
        num_words: how many columns hold words. They come first; columns of numbers are aligned to the right.
        strong: numbers of the rows that are bold.
        faint: numbers of the rows that are grey.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    num_words: int = 1
    strong: Collection[int] = ()
    faint: Collection[int] = ()

    def to_html(self) -> Html:
        """Return the table as HTML."""
        return table(self.header, map(self._html_cells, range(len(self.rows)), self.rows), self.num_words)

    def _html_cells(self, number: int, row: Iterable[str | Cell]) -> list[str]:
        cells = [cell.html if isinstance(cell, Cell) else cell for cell in row]
        if number in self.faint:
            return [tag("span", cell, class_="faint") for cell in cells]
        return [tag("b", cell) for cell in cells] if number in self.strong else cells

    def to_terminal(self, width: int) -> Table:
        """Return the table for a terminal of `width` characters; if that is narrow, headers and words are folded."""
        drawn, least = Table(box=None, pad_edge=False, header_style="bold"), self._widths(str.split)
        is_wide = sum(self._widths(lambda name: [name])) + 2 * (len(self.header) - 1) <= width
        for number, name in enumerate(self.header):
            if number < self.num_words:
                drawn.add_column(printable(name), overflow="fold")
            else:
                drawn.add_column(printable(name), justify="right", width=None if is_wide else least[number])
        for number, row in enumerate(self.texts):
            drawn.add_row(*row, style="bold" if number in self.strong else "dim" if number in self.faint else None)
        return drawn

    @property
    def texts(self) -> list[list[str]]:
        """Return the text of each cell, row by row, printable on a terminal."""
        return [[printable(cell.text if isinstance(cell, Cell) else cell) for cell in row] for row in self.rows]

    @property
    def least_width(self) -> int:
        """Return how many characters wide a terminal must be to show every number in one line."""
        widths = self._widths(str.split)
        words = (min(width, _MIN_WORD_WIDTH) for width in widths[: self.num_words])
        return sum(words) + sum(widths[self.num_words :]) + 2 * (len(widths) - 1)

    def _widths(self, parts: Callable[[str], list[str]]) -> list[int]:
        """Return each column's width in characters: its longest cell, or the longest part of its name by `parts`."""
        names = (max(map(len, parts(name)), default=0) for name in self.header)
        return [max([name, *map(len, cells)]) for name, *cells in zip(names, *self.texts, strict=True)]


def print_table(rows: Rows) -> None:
    """Print a table; if the terminal is too narrow for it, print each row in words: no number is cut."""
    out = console()
    if rows.least_width <= out.width:
        out.print(rows.to_terminal(out.width))
        return
    for row in rows.texts:
        first, *rest = (f"{name} {cell}".strip() for name, cell in zip(rows.header, row, strict=True) if cell)
        out.print(f"{first}: {', '.join(rest)}")
