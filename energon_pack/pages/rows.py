"""A table as a value: a terminal and a page show the same rows.

Rows(("medium", "packs"), [("text", "6")]) ─┬─ to_terminal() ─► a table of rich
                                            └─ to_html() ─────► <table>
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from energon_pack.pages.html import Html, table, tag

if TYPE_CHECKING:  # a page needs no terminal
    from rich.table import Table


class Cell(NamedTuple):
    """Text that a page marks."""

    text: str
    html: Html


def code(text: str, mark: str = "") -> Cell:
    """Return a name as it is written in data, behind a mark."""
    return Cell(f"{mark}{text}", tag("code", f"{mark}{text}"))


@dataclass(frozen=True)
class Rows:
    """The rows of a table.

    Args:
        num_words: how many columns hold words. They come first; columns of numbers are aligned to the right.
        strong: numbers of the rows that are bold.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    num_words: int = 1
    strong: Collection[int] = ()

    def to_html(self) -> Html:
        """Draw the table for a page."""
        return table(self.header, map(self._html, range(len(self.rows)), self.rows), self.num_words)

    def _html(self, number: int, row: Iterable[str | Cell]) -> list[str]:
        cells = [cell.html if isinstance(cell, Cell) else cell for cell in row]
        return [tag("b", cell) for cell in cells] if number in self.strong else cells

    def to_terminal(self) -> "Table":
        """Draw the table for a terminal."""
        from rich.table import Table

        drawn = Table(box=None, pad_edge=False, header_style="bold")
        for number, name in enumerate(self.header):
            is_word = number < self.num_words
            drawn.add_column(name, justify="left" if is_word else "right", overflow="fold" if is_word else "ellipsis")
        for number, row in enumerate(self.rows):
            texts = (cell.text if isinstance(cell, Cell) else cell for cell in row)
            drawn.add_row(*texts, style="bold" if number in self.strong else None)
        return drawn
