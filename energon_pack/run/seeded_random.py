"""Random numbers that depend on a seed alone: the same on every machine and with every NumPy."""

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
#: Integers of any width: arrays are as narrow as their values allow.
AnyInts = npt.NDArray[np.integer[Any]]
_SEED_FACTORS = 0xD1342543DE82EF95, 0xAF251AF3B0F025B5
_STEP, _MIX_1, _MIX_2, _MASK_64 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 2**64 - 1


def random_keys(num_keys: int, seed: int, stream: int = 0, first_number: int = 0) -> npt.NDArray[np.uint64]:
    """Return random uint64[num], from number `first_number` of a stream on; they depend only on `seed` and `stream`.

    Source: SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
    """
    z = np.arange(first_number + 1, first_number + num_keys + 1, dtype=np.uint64)
    z *= np.uint64(_STEP)
    z += np.uint64((seed * _SEED_FACTORS[0] + stream * _SEED_FACTORS[1]) & _MASK_64)
    return mix_bits_in_place(z)


def mix_bits_in_place(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix the bits of each number in place, so that each bit of a result depends on all bits; return the array."""
    numbers ^= numbers >> np.uint64(30)
    numbers *= np.uint64(_MIX_1)
    numbers ^= numbers >> np.uint64(27)
    numbers *= np.uint64(_MIX_2)
    numbers ^= numbers >> np.uint64(31)
    return numbers


def mix_bits_of_number(number: int) -> int:
    """Mix the bits of one number as `mix_bits_in_place` does."""
    number &= _MASK_64
    number = ((number ^ (number >> 30)) * _MIX_1) & _MASK_64
    number = ((number ^ (number >> 27)) * _MIX_2) & _MASK_64
    return number ^ (number >> 31)


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the seed for the draws of an epoch (from 0); for epoch 0 it is `seed` itself."""
    return seed + 1_000_003 * epoch


class RandomStream:
    """A generator that draws the numbers of `random_keys` one after another."""

    def __init__(self, seed: int, stream: int = 0):
        self._state = (seed * _SEED_FACTORS[0] + stream * _SEED_FACTORS[1]) & _MASK_64

    def below(self, bound: int) -> int:
        """Draw an integer in [0, bound)."""
        self._state = (self._state + _STEP) & _MASK_64
        return mix_bits_of_number(self._state) % bound

    def skip(self, num_draws: int) -> None:
        """Skip `num_draws` numbers, as if they had been drawn."""
        self._state = (self._state + num_draws * _STEP) & _MASK_64
