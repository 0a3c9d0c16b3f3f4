"""Choose the dataset and sample that a lane draws next, from its position in each dataset. Pure.

A lane is a worker of a rank. All lanes together draw one endless sequence of permutations of each dataset, a stream in
which a lane is what elsewhere is a rank. So each permutation is drawn once, and a lane holds nothing but its positions.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from energon_pack.run.seeded import Chance, mixed_one
from energon_pack.steps.position import Position

_ROUNDS = 6
_WORD = 1 << 64
#: 2^64 / golden ratio
_GOLDEN = 0x9E3779B97F4A7C15


class Draw(NamedTuple):
    """A drawn sample: its dataset, its number, and how often it was drawn before."""

    dataset: int
    number: int
    #: permutations of the dataset before this one
    turn: int


class Draws:
    """The draws of one lane.

    Args:
        positions: this lane's position in each dataset. Each epoch has another order.
        weights: relative frequency of each dataset; by default its number of samples.
        replacement: begin a dataset anew when it is used up, so that draws never end; else it drops out.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        positions: Sequence[Position],
        weights: Sequence[float] | None = None,
        *,
        replacement: bool,
        seed: int = 0,
    ):
        self._sizes = list(sizes)
        self._weights = list(map(float, sizes if weights is None else weights))
        _check(self._sizes, self._weights)
        self._replacement = replacement
        #: the whole state
        self.positions = list(positions)
        chance = Chance(seed, 2 * positions[0].epoch)
        self._keys = [chance.below(_WORD) for _ in self._sizes]
        self._phase = mixed_one(chance.below(_WORD) + positions[0].rank)

    def next(self) -> Draw | None:
        """Return the next draw; None: all datasets are used up."""
        there = [d for d, weight in enumerate(self._weights) if weight and not self._is_used_up(d)]
        if not there:
            return None
        dataset = there[self._choose([self._weights[d] for d in there])]
        turn, place = divmod(self.positions[dataset].number(), self._sizes[dataset])
        self.positions[dataset] = self.positions[dataset].after(1)
        return Draw(dataset, permuted(place, self._sizes[dataset], self._keys[dataset] + turn), turn)

    def _is_used_up(self, dataset: int) -> bool:
        return not self._replacement and self.positions[dataset].number() >= self._sizes[dataset]

    def _choose(self, weights: Sequence[float]) -> int:
        """Choose a dataset so that every stretch of draws has about the right shares.

        Source: the sequence of multiples of the golden ratio, whose every stretch is spread evenly over [0, 1)
        (Knuth, The Art of Computer Programming 3, 6.4).
        """
        sums = list(accumulate(weights))
        num = sum(position.turns.first for position in self.positions)
        at = (self._phase + num * _GOLDEN) % _WORD / _WORD
        return min(bisect_right(sums, at * sums[-1]), len(sums) - 1)


def permuted(place: int, size: int, key: int) -> int:
    """Return the item at a place of the permutation of 0 … size - 1 that a key names, without computing the others.

    Source: Black, Rogaway, "Ciphers with Arbitrary Finite Domains", 2002: a Feistel network over the next power of 4,
    applied until its result is in range.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    keys = [mixed_one(key * _ROUNDS + number) for number in range(_ROUNDS)]
    while True:
        left, right = place >> half, place & mask
        for of_round in keys:
            left, right = right, left ^ mixed_one(of_round + right) & mask
        place = left << half | right
        if place < size:
            return place


def _check(sizes: Sequence[int], weights: Sequence[float]) -> None:
    if len(sizes) != len(weights) or min(weights, default=0) < 0 or not 0 < sum(weights) < float("inf"):
        raise ValueError(f"weights={weights}: one of at least 0 for each of {len(sizes)} datasets, not all 0")
    for number, (size, weight) in enumerate(zip(sizes, weights, strict=True)):
        if weight and not size:
            raise ValueError(f"weights[{number}]={weight:g} of a dataset that is empty")
