"""How a stream is dealt to ranks, and where each rank is in it: what is taken, what comes next, where others go on.

    Position of a rank ─after─► a later Position ─numbers_taken_together, all ranks'─► Taken ─► Position of others …

A stream is endless: packs on disk, packs planned while loading, batches of like lengths, or draws from a dataset.
Rank r's t-th turn is number t · ranks + r of those left, so that in each turn all ranks together take a row of
neighbours. A rank's workers share its turns round-robin; their number changes only which worker reads. `PackOrder` says
which pack on disk a number is.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from energon_pack.errors import PackError, one_line
from energon_pack.run.bounded_memory import LruCache
from energon_pack.run.seeded_random import Ints, random_keys
from energon_pack.steps.topology import Topology, reading_order

_UNITS_PER_BLOCK = 64  # steps that stay together, so that a stretch of them is still like the whole

#: state of one rank: `position` is a Position as `dataclasses.asdict` gives it, `batches` how many the rank had
State = Mapping[str, Any]


@dataclass(frozen=True)
class TakenNumbers:
    """A set of stream numbers (0, 1, 2, …) that were taken: all below `first`, and a few above it."""

    first: int = 0
    #: ascending
    above: list[int] = field(default_factory=list)

    def number_at(self, index: int) -> int:
        """Return the index-th number that is not taken, in ascending order."""
        number = self.first + index
        return number + bisect_right(range(len(self.above)), number, key=lambda i: self.above[i] - i)

    def index_of(self, number: int) -> int:
        """Return how many smaller numbers are not taken: the inverse of `number_at`."""
        return number - self.first - bisect_left(self.above, number)

    def with_taken(self, num: int, ahead: Iterable[int]) -> "TakenNumbers":
        """Return the set with the first `num` numbers not in it, and with those `ahead`: indices of `number_at`."""
        first = self.number_at(num)
        more = {self.number_at(index) for index in ahead if index > num}
        return TakenNumbers(first, sorted(more.union(number for number in self.above if number > first)))


@dataclass(frozen=True)
class Position:
    """Where one rank is in a stream of packs, batches or samples that all ranks share.

    All ranks together take one row of neighbours after another: of those that were left when these ranks began, rank r
    takes number t · ranks + r as its t-th.
    """

    #: identifies the stream
    stream: str
    #: the ranks, workers and micro-batches for which the stream is laid out
    topology: Topology = field(default_factory=Topology)
    #: numbers of the stream count from the beginning of this epoch
    epoch: int = 0
    ranks: int = 1
    rank: int = 0
    #: the numbers that were taken before these ranks began
    before: TakenNumbers = TakenNumbers()
    #: which of its numbers, counted from 0 since these ranks began, this rank has taken
    turns: TakenNumbers = TakenNumbers()

    def number_at(self, items_ahead: int = 0) -> int:
        """Return the place in the stream (0, 1, 2, …) of an item that this rank has yet to read: 0 is its next one."""
        return self.before.number_at(self.turns.number_at(items_ahead) * self.ranks + self.rank)

    def index_of(self, number: int) -> int:
        """Return how many items this rank reads before the one at a place in the stream: the inverse of `number_at`.

        Raises ValueError if that item is another rank's.
        """
        turn, rank = divmod(self.before.index_of(number), self.ranks)
        if rank != self.rank:
            raise ValueError(f"pack {number} of the stream is rank {rank}'s, not rank {self.rank}'s of {self.ranks}")
        return self.turns.index_of(turn)

    def after(self, *read: int) -> "Position":
        """Return the position after each of the rank's workers has taken so many turns; `read` has one number a worker.

        Workers take turns one after another, so the numbers differ by at most 1, unless workers skipped packs.
        """
        num = min(n * len(read) + worker for worker, n in enumerate(read))
        ahead = [k * len(read) + worker for worker, n in enumerate(read) for k in range(num // len(read), n)]
        return replace(self, turns=self.turns.with_taken(num, ahead))

    @property
    def last(self) -> int:
        """Return the last stream number that was taken without a gap among this rank's; -1: none was taken."""
        turn = self.turns.first - 1
        return self.before.first - 1 if turn < 0 else self.before.number_at(turn * self.ranks + self.rank)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Position":
        """Build a position from the dict that `dataclasses.asdict` made of one; raise an error if a value is wrong."""
        topology, before, turns = values["topology"], TakenNumbers(**values["before"]), TakenNumbers(**values["turns"])
        numbers = [values["ranks"], values["rank"], values["epoch"], *topology.values(), turns.first, *turns.above]
        if any(type(number) is not int for number in (*numbers, before.first, *before.above)) or min(numbers) < 0:
            raise TypeError(f"a number of {numbers} is none")
        if not values["rank"] < values["ranks"]:
            raise ValueError(f"rank {values['rank']} of {values['ranks']}")
        return cls(**{**values, "topology": Topology(**topology), "before": before, "turns": turns})


def combine_taken_numbers(positions: Sequence[Position], reader_noun: str = "rank") -> TakenNumbers:
    """Return the stream numbers that all ranks together have taken, from one position of each rank.

    Raises:
        PackError: a rank's position is missing, or is of another run; `reader_noun` is what the message calls a rank.
    """
    ranks, before = positions[0].ranks, positions[0].before
    begun = [replace(position, rank=0, turns=TakenNumbers()) for position in positions]
    if any(position != begun[0] for position in begun):
        raise PackError("states that are not of the same run: give those of one checkpoint")
    present = sorted(position.rank for position in positions)
    if present != list(range(ranks)):
        names = ", ".join(map(str, present))
        raise PackError(
            f"states of {reader_noun} {names}, but {ranks} {reader_noun}s have trained: give the state of each of them"
        )
    num = min(position.turns.first * ranks + position.rank for position in positions)
    ahead = [
        turn * ranks + position.rank
        for position in positions
        for turn in [*range(num // ranks, position.turns.first), *position.turns.above]
    ]
    return before.with_taken(num, ahead)


def positions_of_states(states: Sequence[State], here: Position, method: str) -> list[Position]:
    """Return the position in each state of a checkpoint; `method` is the name of the method that made the states.

    Raises:
        ValueError: a state is damaged, or of another stream than the position `here`.
    """
    check_states(states, method)
    with parsing_state(method):
        if any(state["position"] is None for state in states):
            raise PackError("states of a blend: it is no blend now, and its packs would come twice")
        positions = [Position.from_dict(state["position"]) for state in states]
    for position in positions:
        if position.stream != here.stream:
            raise ValueError(
                f"states of another dataset, of {position.stream}; this one has {here.stream}: go on with the one that"
                " they are of"
            )
    return positions


def check_states(states: Sequence[State], method: str) -> None:
    """Raise ValueError unless the argument is a list of states; the message names the method that makes them."""
    are_listed = isinstance(states, Sequence) and not isinstance(states, str)
    if not are_listed or any(not isinstance(each, Mapping) or "position" not in each for each in states):
        raise ValueError(
            f"states: a list with what {method} was on each rank; these are none, a single one, or an earlier version's"
        )


@contextmanager
def parsing_state(method: str) -> Iterator[None]:
    """Turn errors while a state is parsed into one ValueError that names the method which makes states."""
    try:
        yield
    except PackError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:  # RuntimeError: torch
        raise ValueError(f"a state that is damaged, or that {method} did not give: {one_line(error)}") from None


class PackOrder:
    """The endless order in which all ranks together read the packs of a dataset, epoch after epoch.

    Every epoch has each pack once. If their number is no multiple of `topology.unit_size`, an epoch ends within a unit.
    The next epoch first fills that unit up, with its last unit and the packs left over, so all other units stay whole.

    Args:
        reorders: later epochs have another order of units; else all have the order of the first.
    """

    def __init__(self, num: int, topology: Topology, reorders: bool = False):
        self.num, self.topology = num, topology
        self._stream = reading_order(num, topology)
        self._orders: LruCache[int, Ints] | None = LruCache(2) if reorders else None
        self._body = max(0, num // topology.unit_size - 1) * topology.unit_size if num % topology.unit_size else num

    def pack_at(self, position: int) -> int:
        """Return the number on disk (0 to num - 1) of the pack at a place in the stream; places go on over epochs."""
        epoch, place = divmod(position, self.num)
        filled = -epoch * self.num % self.topology.unit_size if 0 < self._body < self.num else 0
        if place < filled:
            place += self._body
        elif place < filled + self._body:
            place = self._pack_in_epoch(epoch, place - filled)
        return int(self._stream[place])

    def _pack_in_epoch(self, epoch: int, place: int) -> int:
        if not epoch or self._orders is None:
            return place
        order = self._orders.get(epoch)
        if order is None:
            order = self._orders.put(epoch, order_of_epoch(self._body // self.topology.unit_size, epoch))
        unit, offset = divmod(place, self.topology.unit_size)
        return int(order[unit]) * self.topology.unit_size + offset


def order_of_epoch(num: int, epoch: int) -> Ints:
    """Return an order of `num` units for an epoch: blocks of units are shuffled, and the units within each block."""
    block = np.arange(num) // _UNITS_PER_BLOCK
    of_block = random_keys(num // _UNITS_PER_BLOCK + 1, epoch, 40)[block]
    return np.lexsort((random_keys(num, epoch, 41), of_block))
