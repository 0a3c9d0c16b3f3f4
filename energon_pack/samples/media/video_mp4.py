"""Reads from the tables of an mp4 whether it has pictures, and whether players turn them."""

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

_LARGEST = 1 << 24  # bytes of `moov`
_PLAIN = frozenset((b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide"))  # the outermost boxes of a plain mp4
_UPRIGHT = struct.pack(">5i", 1 << 16, 0, 0, 0, 1 << 16)  # the first of the nine numbers of a matrix
_PICTURES, _SOUND = b"vide", b"soun"  # kinds of tracks


def pictures_in_mp4(file: BinaryIO) -> bool | None:
    """Tell whether some track has pictures; None: the tables do not say it plainly.

    Raises:
        struct.error, IndexError: a table is damaged.
    """
    moov = _moov(file)
    if moov is None or b"chap" in moov:  # pictures of chapters are covers
        return None
    kinds = {_kind(track) for track in _tracks(moov)}
    return True if _PICTURES in kinds else False if kinds == {_SOUND} else None


def is_upright_mp4(file: BinaryIO) -> bool:
    """Tell whether the movie and all its tracks of pictures surely have the matrix that changes nothing.

    Raises:
        struct.error, IndexError: a table is damaged.
    """
    moov = _moov(file)
    if moov is None:
        return False
    matrices = [_matrix(_find(moov, b"mvhd"), 36)]
    matrices += [_matrix(_find(track, b"tkhd"), 40) for track in _tracks(moov) if _kind(track) == _PICTURES]
    return all(matrix == _UPRIGHT for matrix in matrices)


def _matrix(header: bytes, place: int) -> bytes:
    place += 12 if header[0] else 0  # numbers of 64 bits
    return header[place : place + len(_UPRIGHT)]


def _tracks(moov: bytes) -> list[bytes]:
    return [box for name, box in _boxes(moov) if name == b"trak"]


def _kind(track: bytes) -> bytes:
    return _find(_find(track, b"mdia"), b"hdlr")[8:12]


def _moov(file: BinaryIO) -> bytes | None:
    """Return the content of the only `moov`; None: there is none, it is too large, or there are unknown boxes."""
    end, position, moov = file.seek(0, os.SEEK_END), 0, None
    while position + 8 <= end:
        head = _read(file, position, 16)
        size, name = struct.unpack(">I4s", head[:8])
        begin = position + (16 if size == 1 else 8)
        size = int.from_bytes(head[8:16], "big") if size == 1 else size or end - position
        if name not in _PLAIN or (name == b"moov" and (moov is not None or size > _LARGEST)) or position + size < begin:
            return None
        if name == b"moov":
            moov = _read(file, begin, position + size - begin)
        position += size
    return moov if position == end else None


def _read(file: BinaryIO, place: int, size: int) -> bytes:
    file.seek(place)
    return file.read(size)


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = 0
    while position + 8 <= len(data):
        size, name = struct.unpack(">I4s", data[position : position + 8])
        if size < 8 or position + size > len(data):
            raise IndexError(f"a box of {size} bytes, {len(data) - position} are there")
        yield name, data[position + 8 : position + size]
        position += size


def _find(data: bytes, name: bytes) -> bytes:
    """Return the content of the only box with a name; empty: there is no such box.

    Raises:
        IndexError: there are several.
    """
    boxes = [box for other, box in _boxes(data) if other == name]
    if len(boxes) > 1:
        raise IndexError(f"{len(boxes)} boxes {name!r}")
    return boxes[0] if boxes else b""
