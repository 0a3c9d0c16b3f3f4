"""Keep memory within bounds: a cache of the most recently used values, and arrays of all samples, which lie in files.

The files of `Scratch` have no name, so a killed run leaves none behind.
"""

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """A mapping of limited size: to make room, it forgets what was not used for the longest time.

    Args:
        most: the largest sum of the values' sizes.
        size_of: returns the size of a value; None: each has size 1.
        close: is called with each value that is forgotten.
    """

    def __init__(
        self, most: int, size_of: Callable[[V], int] | None = None, close: Callable[[V], object] | None = None
    ):
        self._most, self._size_of, self._close = most, size_of or _size_one, close
        self._values: dict[K, tuple[V, int]] = {}
        self._size = 0

    def get(self, key: K) -> V | None:
        """Return the value of a key, which counts as used now; None if it is not there."""
        entry = self._values.pop(key, None)
        if entry is None:
            return None
        self._values[key] = entry
        return entry[0]

    def put(self, key: K, value: V) -> V:
        """Store a value, forget others if there is no room, and return the value."""
        self.drop(key)
        size = self._size_of(value)
        while self._values and self._size + size > self._most:
            self.drop(next(iter(self._values)))
        self._values[key] = value, size
        self._size += size
        return value

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        """Forget all values."""
        for key in [*self._values]:
            self.drop(key)

    def drop(self, key: K) -> None:
        """Forget a value, if it is there."""
        entry = self._values.pop(key, None)
        if entry is not None:
            self._size -= entry[1]
            if self._close is not None:
                self._close(entry[0])


def _size_one(value: object) -> int:
    return 1


BLOCK_NUMBERS = 1 << 20  # numbers of a block; results computed in blocks do not depend on it


def split_into_blocks(num_items: int, numbers_per_item: float = 1.0) -> Iterator[slice]:
    """Yield slices of `num_items` items, of `numbers_per_item` each, as blocks of about `BLOCK_NUMBERS` numbers."""
    size = max(1, int(BLOCK_NUMBERS / max(1.0, numbers_per_item)))
    for start in range(0, num_items, size):
        yield slice(start, min(start + size, num_items))


class Scratch:
    """Makes large arrays in nameless files of a folder; in memory if the folder is None."""

    def __init__(self, folder: Path | None = None):
        self._folder = folder

    def column(self, dtype: npt.DTypeLike) -> "GrowingArray":
        """Return a new `GrowingArray`, to fill block by block."""
        return GrowingArray(dtype, self._folder)

    def zeros(self, num: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return a writable array of `num` zeros."""
        if self._folder is None or not num:
            return np.zeros(num, dtype)
        with tempfile.TemporaryFile(dir=self._folder) as file:
            os.posix_fallocate(file.fileno(), 0, num * np.dtype(dtype).itemsize)  # raises here if the disk is full
            return np.memmap(file, dtype, shape=(num,)).view(np.ndarray)


class GrowingArray:
    """An array of unknown length, filled block by block."""

    def __init__(self, dtype: npt.DTypeLike, folder: Path | None):
        self._dtype = np.dtype(dtype)
        self._num = 0
        self._blocks: list[npt.NDArray[Any]] = []
        self._file = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as stack:
                self._file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
                weakref.finalize(self, stack.pop_all().close)

    def add(self, values: npt.NDArray[Any]) -> None:
        """Append values."""
        values = np.ascontiguousarray(values, self._dtype)
        self._num += len(values)
        if self._file is None:
            self._blocks.append(values)
        else:
            self._file.write(values.data)

    def array(self) -> npt.NDArray[Any]:
        """Return the whole array; nothing can be appended after that."""
        if self._file is None or not self._num:
            return np.concatenate([np.zeros(0, self._dtype), *self._blocks])
        with self._file:
            self._file.flush()
            return np.memmap(self._file, self._dtype, shape=(self._num,)).view(np.ndarray)
