"""How numbers spread, counted some at a time: which values there are, and how often."""

import math

import numpy as np

from energon_pack.run.seeded import AnyInts, Ints

_RANKS = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


class Tally:
    """Different values, ascending, and how often each is there."""

    def __init__(self) -> None:
        self.values: Ints = np.zeros(0, np.int64)
        self.counts: Ints = np.zeros(0, np.int64)

    def __len__(self) -> int:
        """All that was counted."""
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        return int(self.values @ self.counts)

    def add(self, values: AnyInts) -> None:
        """Count more."""
        self._merge(*np.unique(values, return_counts=True))

    def merge(self, other: "Tally") -> None:
        """Count what another one has counted."""
        self._merge(other.values, other.counts)

    def _merge(self, values: AnyInts, counts: Ints) -> None:
        self.values, place = np.unique(np.concatenate((self.values, values)), return_inverse=True)
        sums = np.zeros(len(self.values), np.int64)
        np.add.at(sums, place, np.concatenate((self.counts, counts)))
        self.counts = sums

    def spread(self) -> dict[str, int]:
        """Least, median, 90th and 99th hundredth, largest."""
        if not len(self):
            return {}
        upto, last = np.cumsum(self.counts), len(self) - 1
        places = {name: math.ceil(rank * last) for name, rank in _RANKS.items()}
        return {name: int(self.values[np.searchsorted(upto, place, "right")]) for name, place in places.items()}
