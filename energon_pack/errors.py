"""Errors a user can mend. The command line shows their text as one line and exits with `exit_code`."""

import re
from numbers import Integral
from typing import Any

_LONGEST = 80  # characters of a value
_NAME_AND_PASSWORD = re.compile(r"(?<=://)[^\s/'\"]*:[^\s/'\"]*(?=@)")


class PackError(ValueError):
    """Refused or wrong input: names the offending value and the knob to turn, and no password of an address."""

    exit_code = 1

    def __init__(self, *texts: str):
        super().__init__(*map(without_passwords, texts))


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


def sized(num_bytes: float) -> str:
    """A number of bytes in the unit that suits it: `12 bytes`, `3.4 kB`, `8.0 MB`, `1.5 GB`."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:,.1f} {name}"
    return f"{num_bytes:.0f} bytes"


def without_passwords(text: str) -> str:
    """The same text, `user:password@` of each address in it as `***@`."""
    return _NAME_AND_PASSWORD.sub("***", text)


def refuse_password(name: str, value: str) -> None:
    """Refuse an address with a name and a password: it would stand in reports, names of datasets and logs.

    Args:
        name: of the setting, `source.path=` for one; empty: the value names it.

    Raises:
        PackError: the value has one.
    """
    if _NAME_AND_PASSWORD.search(value):
        raise PackError(f"{name}{value}: an address with a password in it is not taken; keys belong in the environment")


def amount(number: int, noun: str) -> str:
    """A number of things, as `1 sample` or `1,009 samples`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def printable(text: str) -> str:
    """Text that a terminal shows as it is, whatever a damaged file had in it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
