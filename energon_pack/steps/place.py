"""Track which packs of the stream were read, what each rank reads next, and how another number of ranks goes on.

    Share: what a rank reads ─after─► Share: what is left of it ─joined, all ranks'─► Place: what was read ─► Share …

Rank r's t-th turn is number t · ranks + r of the positions left, so that in each turn all ranks together read a row of
neighbouring packs. A rank's workers share its turns round-robin; their number changes only which worker reads.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from energon_pack.steps.topology import Topology


@dataclass(frozen=True)
class Taken:
    """Which of the numbers 0, 1, 2, … are taken: all below `first`, and a few above it."""

    first: int = 0
    #: ascending
    above: list[int] = field(default_factory=list)

    @property
    def numbers(self) -> list[int]:
        """Return all numbers that stand here."""
        return [self.first, *self.above]

    def left(self, index: int) -> int:
        """Return the number at an index among those left."""
        number = self.first + index
        for taken in self.above:
            if taken > number:
                break
            number += 1
        return number

    def index(self, number: int) -> int:
        """Return the index of a number among those left."""
        return number - self.first - bisect_left(self.above, number)

    def and_of_left(self, num: int, ahead: Iterable[int]) -> "Taken":
        """Return these numbers, with the first `num` of the remaining ones, and some ahead of them.

        Args:
            ahead: indexes above `num` among those left; index `num` itself is not taken.
        """
        first = self.left(num)
        more = {self.left(index) for index in ahead}
        return Taken(first, sorted(more.union(number for number in self.above if number > first)))


@dataclass(frozen=True)
class Place:
    """The packs of a dataset that all ranks together have read."""

    #: packs of an epoch
    num: int
    #: identifies the dataset
    fingerprint: str
    #: the ranks and workers whose order of packs is read
    topology: Topology
    #: positions of the stream that were read
    taken: Taken = Taken()
    #: each later epoch has the steps in another order
    reorders: bool = False


@dataclass(frozen=True)
class Share:
    """The packs that one rank reads from a place on."""

    place: Place
    ranks: int
    rank: int
    #: turns that the rank has taken since
    taken: Taken = Taken()

    def position(self, index: int) -> int:
        """Return the position in the stream of the index-th turn that the rank has left."""
        return self.place.taken.left(self.taken.left(index) * self.ranks + self.rank)

    def index(self, position: int) -> int:
        """Return the turn of a position.

        Raises:
            ValueError: the position belongs to another rank.
        """
        turn, rank = divmod(self.place.taken.index(position), self.ranks)
        if rank != self.rank:
            raise ValueError(f"pack {position} of the stream is rank {rank}'s, not rank {self.rank}'s of {self.ranks}")
        return self.taken.index(turn)

    @property
    def epoch(self) -> int:
        """Return the epoch of the last pack that was read, which is under way even if it has no pack left."""
        if self.taken.first:
            return self.position(self.taken.index(self.taken.first - 1)) // self.place.num
        return max(0, self.place.taken.first - 1) // self.place.num

    @property
    def has_ended(self) -> bool:
        """Tell whether this rank has no pack left in its epoch."""
        return self.position(0) >= (self.epoch + 1) * self.place.num

    def after(self, read: Sequence[int]) -> "Share":
        """Return the share that is left after each worker has read so many packs.

        All workers have read equally many, except that workers that skipped packs are ahead.
        """
        num = min(n * len(read) + worker for worker, n in enumerate(read))
        ahead = [k * len(read) + worker for worker, n in enumerate(read) for k in range(num // len(read), n)]
        return replace(self, taken=self.taken.and_of_left(num, [index for index in ahead if index > num]))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Share":
        """Return the share with these fields, as `dataclasses.asdict` gives them.

        Raises:
            LookupError, TypeError, ValueError, AttributeError: a field is missing, or has another form.
        """
        place, taken = values["place"], Taken(**values["taken"])
        topology, before = Topology(**place["topology"]), Taken(**place["taken"])
        numbers = place["num"], values["ranks"], values["rank"], *(n for of in (taken, before) for n in of.numbers)
        if any(type(number) is not int or number < 0 for number in (*numbers, *place["topology"].values())):
            raise TypeError(f"a number of {numbers} is none")
        if not values["rank"] < values["ranks"]:
            raise ValueError(f"rank {values['rank']} of {values['ranks']}")
        whole = Place(place["num"], place["fingerprint"], topology, before, place.get("reorders", False))
        return cls(whole, values["ranks"], values["rank"], taken)


def joined(shares: Sequence[Share]) -> Place:
    """Join the shares of all ranks into the place they reached together.

    Raises:
        ValueError: a rank is missing or there twice, or they did not begin at the same place.
    """
    ranks, place = shares[0].ranks, shares[0].place
    if any(share.place != place or share.ranks != ranks for share in shares):
        raise ValueError("states that are not of the same run: give those of one checkpoint")
    found = sorted(share.rank for share in shares)
    if found != list(range(ranks)):
        names = ", ".join(map(str, found))
        raise ValueError(f"states of rank {names}, but {ranks} ranks have trained: give the state of each of them")
    num = min(share.taken.first * ranks + share.rank for share in shares)
    ahead = [
        turn * ranks + share.rank
        for share in shares
        for turn in [*range(num // ranks, share.taken.first), *share.taken.above]
    ]
    return replace(place, taken=place.taken.and_of_left(num, [index for index in ahead if index > num]))
