"""Draw samples of a source by the `sample_ratio` of a meta file, or by the rows that a mixture takes of it. Pure."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal
from zlib import crc32

import numpy as np

from energon_pack.run.seeded_random import Ints, random_keys

_COPY_MARK = re.compile(r"@\d+$")


@dataclass(frozen=True)
class TakenRows:
    """Which rows of a file a mixture takes; rows that can't be read count, too."""

    place: Literal["first", "end", "random"]
    amount: float
    #: of `amount`; a percentage of the file's rows is rounded up, a share of them down
    unit: Literal["rows", "%", "share"]

    def count_taken_rows(self, num_rows: int) -> int:
        """Return how many of `num_rows` rows are taken."""
        if self.unit == "share":
            return int(num_rows * self.amount)
        exact = Fraction(str(self.amount))
        return min(num_rows, math.ceil(exact * num_rows / 100 if self.unit == "%" else exact))


def drawn_rows(num_rows: int, which: TakenRows | float, name: str, seed: int) -> Ints | None:
    """Draw rows of a shard: those that are taken, or each row `which` times (1.3: all once, 30% again).

    Returns the row numbers, ascending; None: each row once.
    """
    if which == 1:
        return None
    shuffled = np.argsort(random_keys(num_rows, seed, crc32(name.encode())), kind="stable")
    if isinstance(which, TakenRows):
        num, rows = which.count_taken_rows(num_rows), np.arange(num_rows)
        return {"first": rows[:num], "end": rows[num_rows - num :], "random": np.sort(shuffled[:num])}[which.place]
    count = np.full(num_rows, int(which))
    count[shuffled[: round(num_rows * (which - int(which)))]] += 1
    return np.repeat(np.arange(num_rows), count)


def count_earlier_occurrences(row_numbers: Ints) -> Ints:
    """Count for each of these ascending row numbers its earlier occurrences: [3, 3, 5] gives [0, 1, 0]."""
    first: Ints = np.searchsorted(row_numbers, row_numbers)
    return np.arange(len(row_numbers)) - first


def drawn_keys(keys: Sequence[str], rows: Ints, copies: Ints) -> list[str]:
    """Return the key of each drawn row; its second draw ends with `@2`. `copies`: of `count_earlier_occurrences`."""
    pairs = zip(rows.tolist(), copies.tolist(), strict=True)
    return [f"{keys[row]}@{copy + 1}" if copy else keys[row] for row, copy in pairs]


def remove_copy_mark(key: str) -> str:
    """Return the key of a sample in its source, without the `@2` of a copy."""
    return _COPY_MARK.sub("", key)
