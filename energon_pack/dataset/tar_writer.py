"""Write a tar fast: file contents are read into one large buffer, at the places from which they are written."""

import os
import tarfile
from zlib import crc32

from energon_pack.errors import PackError
from energon_pack.sources.storage import File
from energon_pack.sources.tar import BLOCK

_BUFFER_BYTES = 256 << 10  # 1 MB takes twice the CPU where two threads share a second-level cache


def size_of_finished_tar(position: int) -> int:
    """Return the bytes of a tar whose last file ends at `position`: two zero blocks follow, and fill up a record."""
    end = position + 2 * BLOCK
    return end + -end % tarfile.RECORDSIZE


_HEADER_TEMPLATE = bytearray(tarfile.TarInfo("x").tobuf(tarfile.USTAR_FORMAT))
_HEADER_TEMPLATE[0] = 0
_HEADER_TEMPLATE[124:136] = bytes(12)
_HEADER_TEMPLATE[148:156] = b" " * 8
_TEMPLATE_SUM = sum(_HEADER_TEMPLATE)


def tar_header(name: str, size: int) -> bytes:
    """Return the header of a regular file with mode 0644, no owner and time 0, byte for byte as tarfile writes it."""
    encoded = name.encode()
    digits = b"%011o\0" % size
    if len(encoded) > 100 or len(digits) > 12:  # beyond USTAR
        info = tarfile.TarInfo(name)
        info.size = size
        return info.tobuf(tarfile.PAX_FORMAT)
    header = bytearray(_HEADER_TEMPLATE)
    header[: len(encoded)] = encoded
    header[124:136] = digits
    header[148:156] = b"%06o\0 " % (_TEMPLATE_SUM + sum(encoded) + sum(digits))
    return bytes(header)


class TarWriter:
    """Writes files into a USTAR tar with the same metadata for all: mode 0644, no owner, time 0."""

    def __init__(self, fd: int):
        self._fd = fd
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._used = 0
        self._num_written = 0
        #: the CRC-32 of each file that was copied so far
        self.checksums: list[int] = []

    @property
    def position(self) -> int:
        """Return the number of bytes that the tar has so far."""
        return self._num_written + self._used

    def add(self, name: str, data: bytes) -> None:
        """Add a file with this content."""
        self._put(tar_header(name, len(data)))
        self._put(data)
        self._put(bytes(-len(data) % BLOCK))

    def copy(self, name: str, source: File, offset: int, size: int, lead: int = 0, end: int = 0) -> tuple[bytes, bytes]:
        """Add a file with a range of another file as its content; return the bytes before the range, and its ends.

        Args:
            lead: how many bytes before `offset` to return, at most a tar header: one call reads them with the content.
            end: how many of the first, and of the last, bytes of the content to return.
        """
        header = tar_header(name, size)
        padding = bytes(-size % BLOCK)
        whole = len(header) + size + len(padding)
        if whole > _BUFFER_BYTES:
            self._put(header)
            self._put_range(source, offset, size, name)
            self._put(padding)
            first = source.read(offset, min(end, size))
            last = source.read(offset + max(0, size - end), min(end, size))
            return source.read(offset - lead, lead), first + last
        if whole > _BUFFER_BYTES - self._used:
            self._flush()
        start = self._used
        data = start + len(header)
        _read_into(source, offset - lead, self._buffer[data - lead : data + size], name)
        self.checksums.append(crc32(self._buffer[data : data + size]))
        before = bytes(self._buffer[data - lead : data])
        ends = bytes(self._buffer[data : data + min(end, size)]) + bytes(
            self._buffer[data + max(0, size - end) : data + size]
        )
        self._buffer[start:data] = header  # overwrites the lead, which was read before the data
        self._buffer[data + size : start + whole] = padding
        self._used += whole
        return before, ends

    def finish(self) -> None:
        """Finish the tar: two zero blocks, then zeros up to a full record."""
        self._put(bytes(size_of_finished_tar(self.position) - self.position))
        self._flush()

    def _put(self, data: bytes) -> None:
        for start in range(0, len(data), _BUFFER_BYTES):
            piece = data[start : start + _BUFFER_BYTES]
            if len(piece) > _BUFFER_BYTES - self._used:
                self._flush()
            self._buffer[self._used : self._used + len(piece)] = piece
            self._used += len(piece)

    def _put_range(self, source: File, offset: int, size: int, name: str) -> None:
        """Add the bytes of a range that is larger than the buffer, and its checksum."""
        checksum = 0
        for start in range(0, size, _BUFFER_BYTES):
            self._flush()
            piece = self._buffer[: min(_BUFFER_BYTES, size - start)]
            _read_into(source, offset + start, piece, name)
            checksum = crc32(piece, checksum)
            self._used = len(piece)
        self.checksums.append(checksum)

    def _flush(self) -> None:
        self._write(self._buffer[: self._used])
        self._num_written += self._used
        self._used = 0

    def _write(self, view: memoryview) -> None:
        while view:
            view = view[os.write(self._fd, view) :]


class TarDiffers(Exception):
    """An existing tar has other bytes than those that would be written."""


class TarComparer(TarWriter):
    """Compares an existing tar with the files that are added: writes nothing, raises TarDiffers at a difference."""

    def _write(self, view: memoryview) -> None:
        present = memoryview(bytearray(len(view)))
        num_read = os.preadv(self._fd, [present], self._num_written) if view else 0
        if present[:num_read] != view:
            raise TarDiffers


def _read_into(source: File, offset: int, view: memoryview, name: str) -> None:
    while view:
        num_read = source.read_into(offset, view)
        if num_read == 0:
            raise PackError(f"the source of {name} ends early: it changed since it was measured")
        view, offset = view[num_read:], offset + num_read
