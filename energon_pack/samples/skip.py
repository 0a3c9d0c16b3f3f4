"""The reasons for leaving a sample out, the exception that does it, and the hint of a setting that may cure it."""

import re
import shlex
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import chain
from typing import Any, NamedTuple

from energon_pack.errors import hide_passwords_in_text

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


class Reason(str, Enum):
    """The reason why a sample is in no pack, as `skipped.jsonl` spells it; `CUT_OFF`: only some tokens are left out.

    States of streams have counters in this order, so a new reason is the last one.
    """

    MISSING_JSON = "missing_json"
    INVALID_JSON = "invalid_json"
    NOT_AN_OBJECT = "not_an_object"
    NO_MESSAGES = "no_messages"
    BAD_MESSAGE = "bad_message"
    NO_ASSISTANT_TURN = "no_assistant_turn"
    PREFERENCE_DATA = "preference_data"
    UNSUPPORTED_MEDIA = "unsupported_media"
    MISSING_MEDIA = "missing_media"
    UNREADABLE_MEDIA = "unreadable_media"
    MEDIA_UNREAD = "media_unread"
    PLACEHOLDER_MISMATCH = "placeholder_mismatch"
    DOTTED_KEY = "dotted_key"
    DUPLICATE_KEY = "duplicate_key"
    NON_ADJACENT_MEMBER = "non_adjacent_member"
    CONTROL_TOKEN = "control_token"
    PROCESSOR_ERROR = "processor_error"
    TRUNCATED_TAR = "truncated_tar"
    OVERLONG = "overlong"
    OVER_CAP = "over_cap"
    NOTHING_TRAINED = "nothing_trained"
    CUT_OFF = "cut_off"
    NOT_IN_FLAVOR = "not_in_flavor"
    NOT_CHOSEN = "not_chosen"
    LEFT_OUT_BY_MAP = "left_out_by_map"
    NOT_DRAWN = "not_drawn"
    MAP_ERROR = "map_error"
    EMPTY_ANSWER = "empty_answer"
    TEMPLATE_DROPS = "template_drops"
    NO_PAIR = "no_pair"
    EQUAL_ANSWERS = "equal_answers"

    @property
    def is_policy(self) -> bool:
        """Whether settings are the reason, not faulty data: such samples do not count towards `max_skipped`."""
        return self in (
            Reason.OVERLONG, Reason.OVER_CAP, Reason.NOTHING_TRAINED, Reason.CUT_OFF, Reason.NOT_IN_FLAVOR,
            Reason.NOT_CHOSEN, Reason.LEFT_OUT_BY_MAP, Reason.NOT_DRAWN, Reason.EMPTY_ANSWER, Reason.EQUAL_ANSWERS,
        )  # fmt: skip


#: the detail of a sample that `Reason.NOTHING_TRAINED` leaves out
NOTHING_TRAINED_DETAIL = "none of its tokens is trained"


class Skip(Exception):
    """Raised to leave out one sample, with the reason and a detail of one line.

    `hint`: the hint that the detail holds as text, for whoever can try it (`sources.sample.read_sample`).
    """

    def __init__(self, reason: Reason, detail: str, hint: "Hint | None" = None):
        super().__init__(reason, detail)
        #: the sample's media type, by the part that was read
        self.media_type: str | None = None
        self.reason, self.hint = reason, hint
        self.detail = hide_passwords_in_text(" ".join(detail.split()))[:300]

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}"

    def without_hint(self) -> "Skip":
        """Return the same without its hint, which does not help."""
        reason, detail = self.args
        skip = Skip(reason, detail.replace(str(self.hint), self.hint.otherwise) if self.hint else detail)
        skip.media_type = self.media_type
        return skip


def key_of_synonyms(fields: Mapping[str, Any], synonym_keys: Sequence[str]) -> str:
    """Return the first of several keys of one meaning that has a value; else the first that is there, or of all."""
    there = (key for key in synonym_keys if key in fields)
    return next(filter(fields.get, synonym_keys), None) or next(chain(there, synonym_keys), "")


def value_of_synonyms(fields: Mapping[str, Any], synonym_keys: Sequence[str], key_prefix: str = "") -> Any:
    """Return what a mapping has under the `key_of_synonyms`; None: no key is there.

    Args:
        key_prefix: a prefix for keys in the error, such as `messages[].`.

    Raises:
        Skip: `bad_message`: two keys have different values, and one would be dropped.
    """
    first = key_of_synonyms(fields, synonym_keys)
    for key in filter(fields.get, synonym_keys):
        one, other = (item if isinstance(item, list) else [item] for item in (fields[first], fields[key]))
        if one != other:
            both = f"{key_prefix}{first} is {str(fields[first])[:40]!r} and {key} {str(fields[key])[:40]!r}"
            raise Skip(Reason.BAD_MESSAGE, f"{both}: two spellings of one thing; source.map can leave one out")
    return fields.get(first)
