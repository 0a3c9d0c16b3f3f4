"""Where a training is in the stream of packs, what a rank reads from there, how another number of ranks goes on.

    Share: what a rank reads ─after─► Share: what is left of it ─joined, all ranks'─► Place: what was read ─► Share …

Of the positions that are left, rank r's t-th turn is number t · ranks + r, so that ranks read as many packs in a row as
there are ranks; its workers take its turns by turns. How many workers it has changes nothing but who reads.
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
    #: in their order
    above: list[int] = field(default_factory=list)

    def left(self, index: int) -> int:
        """The number that is the index-th of those left."""
        number = self.first + index
        for taken in self.above:
            if taken > number:
                break
            number += 1
        return number

    def index(self, number: int) -> int:
        """Which of those left a number is."""
        return number - self.first - bisect_left(self.above, number)

    def and_of_left(self, num: int, ahead: Iterable[int]) -> "Taken":
        """These, and of those left the first `num` and some ahead.

        Args:
            ahead: indexes above `num`, which is not taken itself.
        """
        first = self.left(num)
        more = {self.left(index) for index in ahead}
        return Taken(first, sorted(more.union(number for number in self.above if number > first)))


@dataclass(frozen=True)
class Place:
    """What all ranks together have read of the packs of a dataset."""

    #: packs of an epoch
    num: int
    #: which dataset it is
    fingerprint: str
    #: in whose order its packs are read
    topology: Topology
    #: positions of the stream that were read
    taken: Taken = Taken()


@dataclass(frozen=True)
class Share:
    """What one rank reads from a place on."""

    place: Place
    ranks: int
    rank: int
    #: turns that it has had since
    taken: Taken = Taken()

    def position(self, index: int) -> int:
        """Where in the stream the rank's index-th turn is, of those that are left."""
        return self.place.taken.left(self.taken.left(index) * self.ranks + self.rank)

    def index(self, position: int) -> int:
        """Which turn a position is.

        Raises:
            ValueError: it is another rank's.
        """
        turn, rank = divmod(self.place.taken.index(position), self.ranks)
        if rank != self.rank:
            raise ValueError(f"pack {position} of the stream is rank {rank}'s, not rank {self.rank}'s of {self.ranks}")
        return self.taken.index(turn)

    def after(self, read: Sequence[int]) -> "Share":
        """What is left after each worker has read so many packs.

        Workers are level but for those that skipped packs: they are ahead.
        """
        num = min(n * len(read) + worker for worker, n in enumerate(read))
        ahead = [k * len(read) + worker for worker, n in enumerate(read) for k in range(num // len(read), n)]
        return replace(self, taken=self.taken.and_of_left(num, [index for index in ahead if index > num]))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Share":
        """The share with these fields, as `dataclasses.asdict` gives them."""
        place = values["place"]
        topology, taken = Topology(**place["topology"]), Taken(**place["taken"])
        return cls(
            Place(place["num"], place["fingerprint"], topology, taken),
            values["ranks"],
            values["rank"],
            Taken(**values["taken"]),
        )


def joined(shares: Sequence[Share]) -> Place:
    """Where all ranks together are, from what is left for each.

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
