"""Choose which waiting samples share the next pack: best fit over a bounded buffer. Pure.

add(sample) … until num_to_add is 0 ──take──► one pack … end() ──take──► the rest, planned as offline

A pack begins with the longest sample of a group, and is filled as full as the samples of that group allow, older ones
before newer. The group is the one with most samples to pack, so that rare media wait until they fill a pack. But if the
oldest of all samples has waited for `buffer_size` packs, the next pack begins with it.

If every pack began with the oldest sample, packs of several groups would be 2 to 4 % less full (measured by
benchmarks/online.py).
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np

from energon_pack.errors import check_buffer_size
from energon_pack.plan.bins import pack_bins
from energon_pack.plan.bins.planned_bins import choose_fullest_sum
from energon_pack.plan.settings import PackingConfig, limits_of

Costs = Sequence[int]


def fill_pack_from_first(costs: Sequence[Costs], limits: Costs) -> list[int]:
    """Choose the samples that fill a pack best together with the first one; return their indices, ascending, with 0.

    If tokens are the only limit, no choice is fuller; of equal choices, the one with earlier samples is taken. If the
    choice breaks another limit, it is made again among samples that together keep within all limits, collected in the
    order they came, or by least cost a token.

    Args:
        costs: for each sample, its cost for each limit of a pack; tokens come first.
        limits: of a pack, in the same order.
    """
    room = [limit - cost for limit, cost in zip(limits, costs[0], strict=True)]
    fits = [i for i in range(1, len(costs)) if not _exceeds(costs[i], room)]
    best = _fill_room(fits, costs, room[0])
    if _exceeds(_sums(best, costs, len(room)), room):
        best, most = [], 0
        frugal = sorted(
            fits,
            key=lambda i: max(cost / limit for cost, limit in _other_costs_with_limits(costs[i], limits)) / costs[i][0],
        )
        for order in (fits, frugal):
            chosen = _fill_room(_within_other_limits(order, costs, room), costs, room[0])
            tokens = sum(costs[i][0] for i in chosen)
            if tokens > most:
                best, most = chosen, tokens
    return [0, *sorted(best)]


def _exceeds(cost: Costs, room: Costs) -> bool:
    return any(a > b for a, b in zip(cost, room, strict=True))


def _sums(chosen: Iterable[int], costs: Sequence[Costs], num_limits: int) -> list[int]:
    sums = [0] * num_limits
    for i in chosen:
        sums = [a + b for a, b in zip(sums, costs[i], strict=True)]
    return sums


def _other_costs_with_limits(cost: Costs, limits: Costs) -> list[tuple[int, int]]:
    """Pair each cost of a sample other than tokens with its limit; a limit of 0 becomes 1, to divide by it."""
    return [(a, max(b, 1)) for a, b in zip(cost[1:], limits[1:], strict=True)]


def _within_other_limits(order: Sequence[int], costs: Sequence[Costs], limits: Costs) -> list[int]:
    """Collect samples in this order as long as they keep within every limit but tokens."""
    room, chosen = list(limits[1:]), []
    for i in order:
        after = [a - b for a, b in zip(room, costs[i][1:], strict=True)]
        if min(after) >= 0:
            room = after
            chosen.append(i)
    return chosen


def _fill_room(items: Sequence[int], costs: Sequence[Costs], room: int) -> list[int]:
    """Choose items whose tokens fill the room best; between equal choices, the one whose last item is earliest."""
    return [items[number] for number in choose_fullest_sum((costs[i][0] for i in items), room)]


#: counters of a pool, which its state holds
_COUNTERS = ("num_added", "num_taken", "num_packs", "longest_wait")


@dataclass(frozen=True, slots=True)
class WaitingSample:
    """A sample that waits for its pack."""

    #: the caller's name for it
    name: Any
    #: its cost for each limit of a pack: `costs_of_sample`, tokens first
    costs: tuple[int, ...]
    #: samples of different groups share no pack
    group: Hashable = None
    #: samples that came before it
    number: int = 0
    #: packs that were made before it came
    since: int = 0


def costs_of_sample(counts: Mapping[str, Any], packing: PackingConfig) -> tuple[int, ...]:
    """Return how much a sample adds to each limited sum of a pack, tokens first; only limits that are set.

    `counts`: as for `exceeded_limits`.
    """
    multiple = packing.pad_to_multiple_of
    limits = limits_of(packing)
    return tuple(int(counts.get(cap.name, cap.member_cost(counts[cap.column], multiple))) for cap, _ in limits)


class WaitingPool:
    """A buffer of waiting samples that makes full packs of them, one at a time.

    Every sample is in exactly one pack, and no pack is empty or over a limit. Once `buffer_size` packs were made since
    a sample came, it waits only for samples that came before it.

    Args:
        packing: the limits. A longer sample that may have a pack of its own gets it at once.
        buffer_size: samples that wait when a pack is made; more if so many do not fill one.
        seed: seed of the plan for the rest at the end.
    """

    def __init__(self, packing: PackingConfig, buffer_size: int, seed: int = 0):
        check_buffer_size("buffer_size", buffer_size)
        self._limits = tuple(limit for _, limit in limits_of(packing))
        self._alone = (packing.sample_token_limit[1], *self._limits[1:])
        self._algorithm, self._buffer_size, self._seed = packing.algorithm, buffer_size, seed
        #: by group, each in the order they came
        self._groups: dict[Hashable, list[WaitingSample]] = {}
        self._totals: dict[Hashable, list[int]] = {}
        #: packs to take before others: single long samples, and the plan of the rest at the end
        self._planned: list[list[WaitingSample]] = []
        self.num_added = self.num_taken = self.num_packs = self.longest_wait = 0

    def __len__(self) -> int:
        return self.num_added - self.num_taken

    @property
    def num_planned_packs(self) -> int:
        """Number of packs that `plan_rest` has planned and `take` has not returned."""
        return len(self._planned)

    @property
    def num_samples_to_add(self) -> int:
        """Number of samples to add before `take` can choose well: 0 if enough are waiting."""
        if self._planned:
            return 0
        return max(0 if self.can_fill_pack else 1, self._buffer_size - len(self))

    @property
    def can_fill_pack(self) -> bool:
        """Whether some group of waiting samples reaches a limit of a pack."""
        return any(self._fullness(group) >= 1 for group in self._totals)

    def _fullness(self, group: Hashable) -> float:
        """Return the group's largest share of any limit: 0.8 if it already has 80 % of the images a pack may hold."""
        return max(total / max(limit, 1) for total, limit in zip(self._totals[group], self._limits, strict=True))

    def add(self, name: Any, costs: tuple[int, ...], group: Hashable = None, since: int | None = None) -> None:
        """Let a sample wait for a pack.

        Args:
            name: the caller's name for the sample, of any type that JSON can hold.
            costs: for each limit of a pack, tokens first: `costs_of_sample`.
            group: samples of different groups share no pack.
            since: how many packs were made before it came; None: all until now.

        Raises:
            ValueError: the sample alone is over a limit.
        """
        if any(cost > limit for cost, limit in zip(costs, self._alone, strict=True)):
            raise ValueError(f"{name} takes {costs}, a pack holds {self._alone}")
        sample = WaitingSample(name, costs, group, self.num_added, self.num_packs if since is None else since)
        self.num_added += 1
        if costs[0] > self._limits[0]:
            self._planned.append([sample])
            return
        self._groups.setdefault(group, []).append(sample)
        before = self._totals.get(group, [0] * len(costs))
        self._totals[group] = [a + b for a, b in zip(before, costs, strict=True)]

    def state(self) -> dict[str, Any]:
        """Return what a pool with the same settings needs to go on from here: waiting samples, and counters."""
        groups, planned = (
            [[list(astuple(sample)) for sample in pack] for pack in packs]
            for packs in (self._groups.values(), self._planned)
        )
        return {"groups": groups, "planned": planned, **{name: getattr(self, name) for name in _COUNTERS}}

    def load(self, state: Mapping[str, Any]) -> None:
        """Set the pool to a result of `state`, which may have been stored as JSON."""
        groups, self._planned = _samples_in_state(state, "groups"), _samples_in_state(state, "planned")
        self._groups = {waiting[0].group: waiting for waiting in groups}
        self._totals = {waiting[0].group: _total(waiting) for waiting in groups}
        for name in _COUNTERS:
            setattr(self, name, state[name])

    def take(self) -> list[WaitingSample]:
        """Make the next pack and return its samples, the oldest first; empty if no sample waits."""
        pack = self._planned.pop(0) if self._planned else self._take_best() if self._groups else []
        self.num_taken += len(pack)
        if pack:
            self.longest_wait = max(self.longest_wait, self.num_packs - pack[0].since)
            self.num_packs += 1
        return pack

    def plan_rest(self) -> None:
        """Plan packs for all waiting samples at once, because no more samples come; `take` returns these packs."""
        packs: list[list[WaitingSample]] = []
        for waiting in self._groups.values():
            costs = np.array([sample.costs for sample in waiting], np.int64).T
            bins = pack_bins(costs, np.array(self._limits), self._algorithm, self._seed)
            packs += [[waiting[item] for item in sorted(items)] for items in np.split(bins.items, bins.starts[1:-1])]
        self._planned += sorted(packs, key=lambda pack: pack[0].number)
        self._groups, self._totals = {}, {}

    def _take_best(self) -> list[WaitingSample]:
        oldest = min((waiting[0] for waiting in self._groups.values()), key=attrgetter("number"))
        if self.num_packs - oldest.since >= self._buffer_size:
            group, first = oldest.group, 0
        else:
            group = max(self._totals, key=self._fullness)
            lens = [sample.costs[0] for sample in self._groups[group]]
            first = lens.index(max(lens))
        waiting = self._groups[group]
        order = [first, *(i for i in range(len(waiting)) if i != first)]
        chosen = sorted(order[i] for i in fill_pack_from_first([waiting[i].costs for i in order], self._limits))
        pack = [waiting[i] for i in chosen]
        taken = set(chosen)
        rest = [sample for i, sample in enumerate(waiting) if i not in taken]
        if rest:
            self._groups[group] = rest
            self._totals[group] = [a - b for a, b in zip(self._totals[group], _total(pack), strict=True)]
        else:
            del self._groups[group], self._totals[group]
        return pack


def waiting_samples(states: Iterable[Mapping[str, Any]]) -> list[WaitingSample]:
    """Return the samples that wait in the states of several pools; those that have waited for most packs come first."""
    samples = [
        replace(sample, since=sample.since - state["num_packs"])
        for state in states
        for pack in _samples_in_state(state, "groups") + _samples_in_state(state, "planned")
        for sample in pack
    ]
    return sorted(samples, key=attrgetter("since"))


def _samples_in_state(state: Mapping[str, Any], name: str) -> list[list[WaitingSample]]:
    return [
        [WaitingSample(_as_tuple(name), tuple(costs), *rest) for name, costs, *rest in pack] for pack in state[name]
    ]


def _total(samples: Iterable[WaitingSample]) -> list[int]:
    return [sum(column) for column in zip(*(sample.costs for sample in samples), strict=True)]


def _as_tuple(name: Any) -> Any:
    """Turn a list back into a tuple: JSON has no tuples."""
    return tuple(name) if isinstance(name, list) else name
