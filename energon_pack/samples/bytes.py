"""Reads bytes by offset and size, wherever they lie: in a tar, in a member of a tar, in a separate file."""

import io
from typing import BinaryIO, Protocol


class Bytes(Protocol):
    """Data of a known size in bytes that can be read at any offset."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes from `offset` on; fewer if the data end before."""


class ByteRange:
    """A part of a file that reads like a whole file: offset 0 is its own first byte."""

    __slots__ = ("_file", "_offset", "size")

    def __init__(self, file: Bytes, offset: int, size: int):
        self._file, self._offset, self.size = file, offset, size

    def read(self, offset: int, size: int) -> bytes:
        return self._file.read(self._offset + offset, max(0, min(size, self.size - offset)))


class _Stream(io.RawIOBase):
    def __init__(self, data: Bytes):
        self._data, self._position = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._data.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        data = self._data.read(self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def as_file(data: Bytes, buffer_size: int = 4096) -> BinaryIO:
    """Wrap bytes as a seekable file that reads only what the caller looks at, `buffer_size` bytes at a time."""
    return io.BufferedReader(_Stream(data), buffer_size)
