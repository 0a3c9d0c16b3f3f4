"""A cache of the most recently used values, up to a size."""

from collections.abc import Callable
from typing import Generic, TypeVar

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
