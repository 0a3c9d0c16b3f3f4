"""Count how numbers are distributed, adding a few at a time."""

import math

import numpy as np

from energon_pack.run.seeded import AnyInts, Ints

_RANKS = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


class Tally:
    """Distinct values, ascending, and how often each occurs."""

    def __init__(self) -> None:
        self.values: Ints = np.zeros(0, np.int64)
        self.counts: Ints = np.zeros(0, np.int64)

    def __len__(self) -> int:
        """Return how many values were counted."""
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        return int(self.values @ self.counts)

    def add(self, values: AnyInts) -> None:
        """Count more."""
        self._merge(*np.unique(values, return_counts=True))

    def merge(self, other: "Tally") -> None:
        """Add the counts of another tally."""
        self._merge(other.values, other.counts)

    def _merge(self, values: AnyInts, counts: Ints) -> None:
        self.values, place = np.unique(np.concatenate((self.values, values)), return_inverse=True)
        sums = np.zeros(len(self.values), np.int64)
        np.add.at(sums, place, np.concatenate((self.counts, counts)))
        self.counts = sums

    def spread(self) -> dict[str, int]:
        """Return minimum, median, 90th and 99th percentile, and maximum."""
        if not len(self):
            return {}
        upto, last = np.cumsum(self.counts), len(self) - 1
        places = {name: math.ceil(rank * last) for name, rank in _RANKS.items()}
        return {name: int(self.values[np.searchsorted(upto, place, "right")]) for name, place in places.items()}


class Moments:
    """Mean, deviation and maximum of numbers, added a few at a time.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """

    def __init__(self) -> None:
        self.num = self.most = 0
        self.mean = self._squares = 0.0

    @property
    def deviation(self) -> float:
        return math.sqrt(self._squares / max(1, self.num))

    def add(self, values: Ints) -> None:
        """Count more."""
        if not len(values):
            return
        mean, num = float(values.mean()), self.num + len(values)
        away = mean - self.mean
        self._squares += float(((values - mean) ** 2).sum()) + away**2 * self.num * len(values) / num
        self.mean += away * len(values) / num
        self.num, self.most = num, max(self.most, int(values.max()))
