"""Arrays over all samples of a run: they lie in files, and only the parts in use are in memory.

The files have no name, so a killed run leaves none behind.
"""

import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK_NUMBERS = 1 << 20  # numbers of a block; results computed in blocks do not depend on it


def blocks(num: int, each: float = 1.0) -> Iterator[slice]:
    """Yield slices that divide `num` items of `each` numbers into blocks of about `BLOCK_NUMBERS` numbers."""
    size = max(1, int(BLOCK_NUMBERS / max(1.0, each)))
    for start in range(0, num, size):
        yield slice(start, min(start + size, num))


class Scratch:
    """Makes large arrays in nameless files of a folder; in memory if the folder is None."""

    def __init__(self, folder: Path | None = None):
        self._folder = folder

    def column(self, dtype: npt.DTypeLike) -> "Column":
        """Return a new `Column`, to fill block by block."""
        return Column(dtype, self._folder)

    def zeros(self, num: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return a writable array of `num` zeros."""
        if self._folder is None or not num:
            return np.zeros(num, dtype)
        with tempfile.TemporaryFile(dir=self._folder) as file:
            os.posix_fallocate(file.fileno(), 0, num * np.dtype(dtype).itemsize)  # raises here if the disk is full
            return np.memmap(file, dtype, shape=(num,)).view(np.ndarray)


class Column:
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
