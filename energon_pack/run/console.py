"""Print for people: a terminal shows what data bring (names of files, texts, errors of libraries), and obeys nothing.

All that is printed comes through here: lines, tables, progress, errors, and what is logged.
"""

import io
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from energon_pack.errors import printable


class SafeConsole(Console):
    """A console that escapes all but its own control sequences."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text, but="\n"), style, control)


class LogLine(logging.Formatter):
    """Formats what is logged for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), but="\n")


def say(text: str) -> None:
    """Print a line to standard output without breaking it."""
    console().print(printable(text), soft_wrap=True)


def complain(program: str, text: str) -> None:
    """Print an error to standard error, as one line."""
    print(f"{program}: {printable(' '.join(text.splitlines()))}", file=sys.stderr)


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


def console() -> Console:
    """Return standard output as a console: as wide as the terminal, or 120 columns."""
    return SafeConsole(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False, emoji=False)


def has_colours() -> bool:
    """Say whether standard output shows colours."""
    out = console()
    return out.color_system is not None and not out.no_color
