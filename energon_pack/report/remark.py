"""A remark: something that stands out in a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any

from energon_pack.errors import amount
from energon_pack.report.pages.html import clipped
from energon_pack.samples.keys import similar_key_hint

_MAX_KEYS, _MAX_NAME_CHARS = 8, 120  # keys that are named, characters of a name


class Grade(str, Enum):
    """How urgent a remark is. `wrong`: cure it before training; `look`: probably not meant; `note`: good to know."""

    wrong = "wrong"
    look = "look"
    note = "note"


@dataclass(frozen=True)
class Remark:
    """Something that stands out in a run: a fact, why it matters, and the setting (`knob`) that changes it."""

    grade: Grade
    what: str  # what stands out, with its number
    why: str
    knob: str
    changes_lengths: bool = False  # the remedy makes samples longer or shorter
    #: the samples that it is about, of which the contact sheet shows one: a `Reason`, one of `NOTES` or `NAME_LISTS`,
    #: `untrained`, `without_features`, `most_visual`; empty: none in particular
    sample: str = ""


def share_of_samples(number: int, of: int, medium: str = "") -> str:
    """Write how many of `of` samples: `3 of 20 samples (15%)`, or `3 of 20 image samples (15%)`."""
    return f"{number:,} of {amount(of, f'{medium} sample'.strip())} ({percent(number, of)})"


def percent(number: float, of: float) -> str:
    """Write `number` as a share of `of` in percent; a share above zero is never shown as zero."""
    share = number / of if of else 0.0
    return f"{share:.0%}" if share >= 0.1 or not share else "under 0.01%" if share < 1e-4 else f"{share:.2%}"


def named_keys(keys: Mapping[str, Mapping[str, Any]]) -> str:
    """List some unknown keys of records as text; `keys`: key → number of `samples`, and one sample as `example`."""
    named = (
        f"{clipped(key, _MAX_NAME_CHARS)} ({found['samples']:,}, as {found['example']}{similar_key_hint(key)})"
        for key, found in keys.items()
    )
    return f"{', '.join(islice(named, _MAX_KEYS))}{', …' * (len(keys) > _MAX_KEYS)}"
