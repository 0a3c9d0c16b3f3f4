"""A hint of a message: a setting by which a sample that is left out may be read."""

from typing import NamedTuple

from energon_pack.errors import setting_word


class Hint(NamedTuple):
    """A value of a setting `source.*` by which a sample that is left out may be read; it is tried before it is said."""

    setting: str  # without `source.`: `messages_key`, `columns.images`
    value: str
    effect: str  # what the setting does: `reads its turns`
    otherwise: str = ""  # words in the hint's place where the setting does not help
    keeps: tuple[str, ...] = ()  # names of media that are read without the setting

    def __str__(self) -> str:
        return f"{setting_word(f'source.{self.setting}', self.value)} {self.effect}"
