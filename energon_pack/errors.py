"""Errors a user can mend. The command line prints the message as one line and exits with `exit_code`."""

import difflib
import os
import re
from collections.abc import Mapping
from numbers import Integral
from typing import Any

_MAX_VALUE_CHARS = 80  # characters of a value
_NAME_AND_PASSWORD = re.compile(r"(?<=://)[^\s/'\"]*:[^\s/'\"]*(?=@)")


class PackError(ValueError):
    """Wrong input: the message names the value and the setting to change. It is printable, and hides passwords."""

    exit_code = 1

    def __init__(self, *texts: str):
        super().__init__(*(escape_unprintable(hide_passwords_in_text(text), allowed="\n") for text in texts))


class SamplesLost(PackError):
    """More samples are lost than the settings allow, or all samples of a media type are lost.

    Args:
        page: path of the page that shows the samples; None: it is not written.
        figures: those of report.json, or None if the run did not get so far.
    """

    exit_code = 3

    def __init__(self, text: str, page: str | None = None, figures: Mapping[str, Any] | None = None):
        super().__init__(text)
        self.page, self.figures = page, figures


def check_buffer_size(name: str, value: int) -> None:
    """Raise ValueError unless `value` is a whole number of samples, at least 1; `name`: the argument that has it."""
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name}={value}: a whole number of samples, at least 1")


def quote(value: Any) -> str:
    """Return a value as text for an error, about `_MAX_VALUE_CHARS` characters; for a list or dict only its size."""
    text = repr(value) if not isinstance(value, (list, dict)) else f"{type(value).__name__} of {len(value)}"
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}…"


def one_line(error: Exception, most: int = 200) -> str:
    """Return the class of a foreign error, and the first `most` characters of its message, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:most]}"


def format_bytes(num_bytes: float) -> str:
    """Return a number of bytes as text in a fitting unit: `12 bytes`, `3.4 kB`, `8.0 MB`, `1.5 GB`."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:,.1f} {name}"
    return f"{num_bytes:.0f} bytes"


def hide_passwords_in_text(text: str) -> str:
    """Replace `user:password@` in each address of a text by `***@`."""
    return _NAME_AND_PASSWORD.sub("***", text)


def refuse_password(name: str, value: str) -> None:
    """Raise PackError for an address with user name and password, which would get into reports, names and logs.

    Args:
        name: the setting, for example `source.path=`; empty: the value already includes it.
    """
    if _NAME_AND_PASSWORD.search(value):
        raise PackError(f"{name}{value}: an address with a password in it is not taken; keys belong in the environment")


def similar_path_hint(path: str) -> str:
    """Return a hint for a path that is not there: `; did you mean /data/llava?`; "" if none is spelled alike."""
    folder, name = os.path.split(path.rstrip("/"))
    try:
        near = difflib.get_close_matches(name, os.listdir(os.path.expanduser(folder) or "."), 1)
    except OSError:
        return ""
    return f"; did you mean {os.path.join(folder, near[0])}?" if near else ""


def amount(number: int, noun: str) -> str:
    """Return a number of things as text: `1 sample` or `1,009 samples`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def escape_unprintable(text: str, allowed: str = "") -> str:
    """Escape the characters that a terminal would obey, or not show as they are, except those in `allowed`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in allowed else c.encode("unicode_escape").decode() for c in text)
