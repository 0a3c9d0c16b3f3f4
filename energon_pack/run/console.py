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

from energon_pack.errors import escape_unprintable


class EscapingConsole(Console):
    """A console of rich that escapes control characters in texts, but not its own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escape_unprintable(text, allowed="\n"), style, control)


class EscapingFormatter(logging.Formatter):
    """Formats log records, with control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_unprintable(super().format(record), allowed="\n")


def say(text: str) -> None:
    """Print a text to standard output as one line, however long, with control characters escaped."""
    console().print(escape_unprintable(text), soft_wrap=True)


def print_error(program: str, text: str) -> None:
    """Print an error of a program to standard error as one line, with control characters escaped."""
    print(f"{program}: {escape_unprintable(' '.join(text.splitlines()))}", file=sys.stderr)


@contextmanager
def hold_output_under_title(title: str) -> Iterator[None]:
    """Hold back what the block prints, then print all of it below a title: outputs of several processes do not mix."""
    out = io.StringIO()
    try:
        with redirect_stdout(out):
            yield
    finally:
        sys.stdout.write(f"\n{title}\n{out.getvalue()}")
        sys.stdout.flush()


def console() -> Console:
    """Return a console for standard output, as wide as the terminal, or 120 columns if it is none."""
    return EscapingConsole(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False, emoji=False)


def has_colours() -> bool:
    """Say whether standard output shows colours."""
    out = console()
    return out.color_system is not None and not out.no_color
