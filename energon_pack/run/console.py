"""Standard output."""

import sys

from rich.console import Console


def say(text: str) -> None:
    """A line on standard output, never broken."""
    console().print(text, soft_wrap=True)


def console() -> Console:
    """Standard output: as wide as the terminal, or 120 columns."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False, emoji=False)
