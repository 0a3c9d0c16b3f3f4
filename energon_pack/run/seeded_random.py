"""Random numbers that depend on a seed alone: the same on every machine and with every NumPy."""

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
#: Integers of any width: arrays are as narrow as their values allow.
AnyInts = npt.NDArray[np.integer[Any]]
_SEED_FACTORS = 0xD1342543DE82EF95, 0xAF251AF3B0F025B5
_STEP, _MIX_1, _MIX_2, _MASK_64 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 2**64 - 1


def random_keys(num: int, seed: int, stream: int = 0, first: int = 0) -> npt.NDArray[np.uint64]:
    """Return random uint64[num], from number `first` of a stream on; they depend only on `seed` and `stream`.

    Source: SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
    """
    z = np.arange(first + 1, first + num + 1, dtype=np.uint64)
    z *= np.uint64(_STEP)
    z += np.uint64((seed * _SEED_FACTORS[0] + stream * _SEED_FACTORS[1]) & _MASK_64)
    return mix_bits_in_place(z)


def mix_bits_in_place(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix the bits of each number in place, so that each bit of a result depends on all bits; return the array."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(_MIX_1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_MIX_2)
    z ^= z >> np.uint64(31)
    return z


def mix_number(z: int) -> int:
    """Mix the bits of one number as `mix_bits_in_place` does."""
    z &= _MASK_64
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK_64
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK_64
    return z ^ (z >> 31)


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
        return mix_number(self._state) % bound

    def skip(self, num: int) -> None:
        """Skip `num` numbers, as if they had been drawn."""
        self._state = (self._state + num * _STEP) & _MASK_64
