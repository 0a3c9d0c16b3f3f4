"""What a client of a store answers: the objects of a profile, by their keys."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

#: The size of a part of an object that is written in parts; a store accepts 10,000 parts.
PART_BYTES = 16 << 20


class Found(NamedTuple):
    """Size and version of an object, which tell whether it has changed."""

    size: int
    version: str


class Objects(ABC):
    """The objects of a profile, by their keys. Methods raise FileNotFoundError and the errors that `tried` expects."""

    @abstractmethod
    def find(self, key: str) -> Found:
        """Return the present size and version."""

    @abstractmethod
    def read(self, key: str, start: int, end: int) -> tuple[memoryview, str | None]:
        """Return bytes, and the version they belong to if the store reports it."""

    @abstractmethod
    def entries(self, prefix: str) -> Iterator[tuple[str, Found]]:
        """Yield the whole keys of all objects below a prefix, which is a folder."""

    @abstractmethod
    def names(self, prefix: str) -> Iterator[str]:
        """Yield the keys directly in a folder; those of folders end in a slash."""

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Write an object: either whole, or not at all."""

    def put_if(self, key: str, data: bytes, version: str | None) -> bool:
        """Write an object if it still has this version; None: if it does not exist. Say whether it was written.

        A store without conditional writes is asked for the version first; a write between the two requests is lost.
        """
        try:
            now = self.find(key).version
        except FileNotFoundError:
            now = None
        if now == version:
            self.put(key, data)
        return now == version

    @abstractmethod
    def put_file(self, key: str, path: Path) -> None:
        """Write an object from a file, in parts if it is large."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; missing ones are no error."""
