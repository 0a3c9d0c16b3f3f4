"""Errors a user can mend. The command line shows their text as one line and exits with `exit_code`."""

from numbers import Integral
from typing import Any

_LONGEST = 80  # characters of a value


class PackError(ValueError):
    """Refused or wrong input: names the offending value and the knob to turn."""

    exit_code = 1


class SamplesLost(PackError):
    """More samples lost to bad data than `max_skipped` allows, or a whole modality lost.

    Args:
        page: that shows what there is.
    """

    exit_code = 3

    def __init__(self, text: str, page: str | None = None):
        super().__init__(text)
        self.page = page


def check_buffer_size(name: str, value: int) -> None:
    """Refuse a number of samples that is none.

    Args:
        name: what the caller calls it.

    Raises:
        ValueError: it is no whole number, or less than 1.
    """
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name}={value}: a whole number of samples, at least 1")


def short(value: Any) -> str:
    """A value in an error: on one line, and no longer than it needs to be."""
    text = repr(value) if not isinstance(value, (list, dict)) else f"{type(value).__name__} of {len(value)}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def one_line(error: Exception, most: int = 200) -> str:
    """The class of a foreign error, and so many characters of what it says."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:most]}"


def amount(number: int, noun: str) -> str:
    """A number of things, as `1 sample` or `1,009 samples`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def printable(text: str) -> str:
    """Text that a terminal shows as it is, whatever a damaged file had in it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
