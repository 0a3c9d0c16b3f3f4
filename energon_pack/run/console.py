"""Print to standard output."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from rich.console import Console
from rich.table import Table

_ANY_WIDTH = 10_000  # columns


def say(text: str) -> None:
    """Print a line to standard output without breaking it."""
    console().print(text, soft_wrap=True)


@contextmanager
def in_one_piece(title: str) -> Iterator[None]:
    """Print everything at the end, below a title: long texts of several processes would mix line by line."""
    out = io.StringIO()
    try:
        with redirect_stdout(out):
            yield
    finally:
        sys.stdout.write(f"\n{title}\n{out.getvalue()}")
        sys.stdout.flush()


def print_table(table: Table) -> None:
    """Print a table; if the terminal is too narrow for it, print each row in words: no number is cut."""
    out = console()
    if Console(width=_ANY_WIDTH).measure(table).minimum <= out.width:
        out.print(table)
        return
    names = [str(column.header) for column in table.columns]
    for row in zip(*(column.cells for column in table.columns), strict=True):
        first, *others = (f"{name} {cell}".strip() for name, cell in zip(names, row, strict=True) if cell)
        out.print(f"{first}: {', '.join(others)}")


def console() -> Console:
    """Return standard output as a console: as wide as the terminal, or 120 columns."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False, emoji=False)
