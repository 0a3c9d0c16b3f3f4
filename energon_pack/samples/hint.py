"""A hint of a message: a setting by which a sample that is left out may be read, as one word for a shell."""

import re
import shlex
from typing import NamedTuple

#: what Hydra's grammar takes without quotes
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_./+@%?|*:-]+")


class Hint(NamedTuple):
    """A value of a setting `source.*` by which a sample that is left out may be read; it is tried before it is said."""

    setting: str  # without `source.`: `messages_key`, `columns.images`
    value: str
    effect: str  # what the setting does: `reads its turns`
    otherwise: str = ""  # words in the hint's place where the setting does not help
    keeps: tuple[str, ...] = ()  # names of media that are read without the setting

    def __str__(self) -> str:
        return f"{setting_word(f'source.{self.setting}', self.value)} {self.effect}"


def setting_word(setting: str, value: str) -> str:
    """Write a setting as one word for a shell, its value in quotes where Hydra needs them: `source.path=/data`."""
    if value == "null" or not _PLAIN_VALUE.fullmatch(value):
        escaped = re.sub(r'(\\*)("|$)', lambda match: match[1] * 2 + '\\"' * bool(match[2]), value)
        value = f'"{escaped}"'
    return shlex.quote(f"{setting}={value}")
