"""A remark: something that stands out in a run."""

from dataclasses import dataclass
from enum import Enum

from energon_pack.errors import amount


class Grade(str, Enum):
    """How urgent a remark is."""

    wrong = "wrong"
    look = "look"
    note = "note"


@dataclass(frozen=True)
class Remark:
    """Something that stands out in a run."""

    grade: Grade
    what: str  # what stands out, with its number
    why: str
    knob: str
    changes_lengths: bool = False  # the remedy makes samples longer or shorter


def part(number: int, of: int, medium: str = "") -> str:
    """Write a part of a whole: `3 of 20 samples (15%)`, or `3 of 20 image samples (15%)`."""
    return f"{number:,} of {amount(of, f'{medium} sample'.strip())} ({percent(number, of)})"


def percent(number: float, of: float) -> str:
    """Write a share in percent; one that is above zero is never shown as zero."""
    share = number / of if of else 0.0
    return f"{share:.0%}" if share >= 0.1 or not share else "under 0.01%" if share < 1e-4 else f"{share:.2%}"
