"""Which of the samples that wait share the next pack: best fit over a bounded buffer. Pure.

    add(sample) … until is_ready ──take──► one pack … end() ──take──► what is left, planned as offline

A pack is begun with the sample of its group that came first, and its room is filled as full as the samples of that
group allow, older ones before newer. Which group: the one with the most tokens waiting, so that rare media
wait until they fill a pack; but a sample that waited for `buffer_size` packs goes first.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from energon_pack.online.fullest import fullest
from energon_pack.plan import caps
from energon_pack.plan.bins import pack_bins
from energon_pack.plan.settings import PackingConfig



@dataclass(frozen=True, slots=True)
class Waiting:
    """A sample that waits for its pack."""

    #: whatever the caller knows it by
    name: Any
    #: what it takes of each limit of a pack: `costs_of`, tokens first
    costs: tuple[int, ...]
    #: samples of different groups share no pack
    group: Hashable = None
    #: packs that were made before it came
    since: int = 0


def costs_of(counts: Mapping[str, Any], packing: PackingConfig) -> tuple[int, ...]:
    """What one sample takes of each limit that is set.

    Args:
        counts: `caps.COLUMNS`, a number each.
    """
    return tuple(int(cap.cost(counts[cap.column], packing.pad_to_multiple_of)) for cap, _ in caps.limits(packing))


class Pool:
    """Samples that wait, and the packs that are made of them.

    Every sample is in exactly one pack, after less than 2 · `buffer_size` others, and no pack is empty or over a limit.

    Args:
        packing: the limits.
        buffer_size: samples that wait when a pack is made; more where so many fill none.
        seed: of the plan of what is left at the end.
    """

    def __init__(self, packing: PackingConfig, buffer_size: int, seed: int = 0):
        if buffer_size < 1:
            raise ValueError(f"buffer_size={buffer_size}: at least 1 sample")
        self._limits = tuple(limit for _, limit in caps.limits(packing))
        self._algorithm, self._buffer_size, self._seed = packing.algorithm, buffer_size, seed
        #: by group, each in the order they came
        self._groups: dict[Hashable, list[Waiting]] = {}
        self._totals: dict[Hashable, list[int]] = {}
        #: packs that the end was planned as, still to be taken
        self._planned: list[list[Waiting]] = []
        self._num_waiting = self.num_packs = self.longest_wait = 0

    def __len__(self) -> int:
        return self._num_waiting

    @property
    def num_missing(self) -> int:
        """Samples to add, at least, before a pack is made."""
        return max(0 if self._has_pack else 1, self._buffer_size - self._num_waiting)

    @property
    def _has_pack(self) -> bool:
        """Whether some group has as much as a pack may hold."""
        totals = self._totals.values()
        return any(total >= limit for of in totals for total, limit in zip(of, self._limits, strict=True))

    def add(self, name: Any, costs: tuple[int, ...], group: Hashable = None) -> None:
        """One more.

        Raises:
            ValueError: it alone is more than a pack may hold.
        """
        if any(cost > limit for cost, limit in zip(costs, self._limits, strict=True)):
            raise ValueError(f"{name} takes {costs}, a pack holds {self._limits}")
        self._append(Waiting(name, costs, group, self.num_packs))

    def _append(self, sample: Waiting) -> None:
        self._groups.setdefault(sample.group, []).append(sample)
        before = self._totals.get(sample.group, [0] * len(self._limits))
        self._totals[sample.group] = [a + b for a, b in zip(before, sample.costs, strict=True)]
        self._num_waiting += 1

    def take(self) -> list[Waiting]:
        """The next pack; empty where nothing waits."""
        pack = self._planned.pop(0) if self._planned else self._best() if self._groups else []
        self._num_waiting -= len(pack)
        if pack:
            self.longest_wait = max(self.longest_wait, self.num_packs - pack[0].since)
            self.num_packs += 1
        return pack

    def end(self) -> None:
        """Plan all that waits as it would be offline: no more samples come."""
        packs: list[list[Waiting]] = []
        for waiting in self._groups.values():
            costs = np.array([sample.costs for sample in waiting], np.int64).T
            bins = pack_bins(costs, np.array(self._limits), self._algorithm, self._seed)
            packs += [[waiting[item] for item in sorted(of)] for of in np.split(bins.items, bins.starts[1:-1])]
        self._planned += sorted(packs, key=lambda pack: pack[0].since)
        self._groups, self._totals = {}, {}

    def _best(self) -> list[Waiting]:
        oldest = min(self._groups.values(), key=lambda waiting: waiting[0].since)[0]
        group = oldest.group
        if self.num_packs - oldest.since < self._buffer_size:
            group = max(self._totals, key=lambda name: self._totals[name][0])
        waiting = self._groups[group]
        chosen = fullest([sample.costs for sample in waiting], self._limits)
        pack = [waiting[i] for i in chosen]
        taken = set(chosen)
        rest = [sample for i, sample in enumerate(waiting) if i not in taken]
        if rest:
            self._groups[group] = rest
            sums = (sum(of) for of in zip(*(sample.costs for sample in pack), strict=True))
            self._totals[group] = [a - b for a, b in zip(self._totals[group], sums, strict=True)]
        else:
            del self._groups[group], self._totals[group]
        return pack
