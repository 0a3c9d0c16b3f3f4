"""Divide work into equal parts. Every process computes the same division, so none has to wait for another."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from energon_pack.errors import PackError
from energon_pack.run.seeded_random import Ints


class WorkPart(NamedTuple):
    """One of `num_parts` equal parts of some work: `3/16` is the fourth of sixteen."""

    number: int
    num_parts: int

    @classmethod
    def parse(cls, text: str) -> "WorkPart":
        """Parse `NUMBER/PARTS`; raises PackError for any other text."""
        number, _, num_parts = text.partition("/")
        if number.isdecimal() and num_parts.isdecimal() and int(number) < int(num_parts):
            return cls(int(number), int(num_parts))
        raise PackError(f"part={text}: must be NUMBER/PARTS, as 0/16, 1/16 … 15/16")

    def __str__(self) -> str:
        return f"{self.number}/{self.num_parts}"


class EqualSpans:
    """Divides items that lie in a row, such as shards with their bytes, into parts of equal size.

    ┌── a ──┬──── b ────┬ c ┐
    └─ 0/2 ─────┴── 1/2 ────┘
    """

    def __init__(self, sizes: Sequence[int]):
        self._ends = np.cumsum(np.array(sizes, np.int64))
        self._sizes = np.array(sizes, np.int64)

    def overlapping_items(self, part: WorkPart) -> list[int]:
        """Return the indexes of the items that a part overlaps; an item of size 0 belongs to one part, too."""
        first, last = self._part_of(self._ends - self._sizes, part), self._part_of(self._ends - 1, part)
        return np.flatnonzero((first <= part.number) & (np.maximum(first, last) >= part.number)).tolist()

    def items_by_middle(self, part: WorkPart) -> list[int]:
        """Return the indexes of the items whose middle lies in a part: each item is in exactly one part."""
        return np.flatnonzero(self._part_of(self._ends - self._sizes // 2 - 1, part) == part.number).tolist()

    def rows_in(self, part: WorkPart, number: int, num_rows: int) -> Ints:
        """Return which of an item's rows, all of one size, lie in a part: each row is in exactly one part."""
        size = int(self._sizes[number])
        places = self._ends[number] - size + (2 * np.arange(num_rows) + 1) * size // (2 * max(1, num_rows))
        return np.flatnonzero(self._part_of(places, part) == part.number)

    def _part_of(self, places: Ints, part: WorkPart) -> Ints:
        total = max(1, int(self._ends[-1])) if len(self._ends) else 1
        return np.clip(places, 0, total - 1) * part.num_parts // total
