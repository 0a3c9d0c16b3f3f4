"""Reads the tables of an mp4: whether it has pictures, and how many samples PyAV decodes of its AAC.

The decoder gives 1,024 samples for each packet, and leaves out the samples before the edit begins.
"""

import os
import struct
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from typing import BinaryIO, NamedTuple

from energon_pack.samples.media.aac import FRAME, plain_rate

_LARGEST = 1 << 24  # bytes of `moov`
_PLAIN = frozenset((b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide"))  # the outermost boxes of a plain mp4
_UPRIGHT = struct.pack(">5i", 1 << 16, 0, 0, 0, 1 << 16)  # the first of the nine numbers of a matrix
_PICTURES, _SOUND = b"vide", b"soun"  # kinds of tracks


class _Packets(NamedTuple):
    number: int  # at least one
    place: int  # of the first
    size: int  # of the first, in bytes


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


def aac_in_mp4(file: BinaryIO) -> tuple[int, int] | None:
    """Return number of samples and rate of the only sound; None: decode it.

    Raises:
        struct.error, IndexError: a table is damaged.
    """
    moov = _moov(file)
    if moov is None or b"iTunSMPB" in moov:  # with this tag FFmpeg leaves out other samples
        return None
    end = file.seek(0, os.SEEK_END)
    tables: dict[bytes, list[tuple[bytes, bytes, _Packets]]] = {}
    for track in _tracks(moov):
        table = _find(_find(_find(track, b"mdia"), b"minf"), b"stbl")
        packets = _packets(table, end)
        if packets is None:
            return None
        tables.setdefault(_kind(track), []).append((track, table, packets))
    if len(tables.get(_SOUND, ())) != 1 or _find(moov, b"mvex"):
        return None
    ((track, table, packets),) = tables[_SOUND]
    rate, times = _timescale(_find(_find(track, b"mdia"), b"mdhd")), _find(table, b"stts")
    counts = [struct.unpack(">II", times[start : start + 8]) for start in range(8, len(times) - 7, 8)]
    if packets.number < 2 or sum(count for count, _ in counts) != packets.number or _find(table, b"ctts"):
        return None
    if any(length != FRAME for _, length in counts[:-1]) or not (counts[-1][1] == FRAME or counts[-1][0] == 1):
        return None
    edits = _find(_find(track, b"edts"), b"elst")
    begin = _begin(edits, _timescale(_find(moov, b"mvhd")), rate, packets.number)
    config = _configuration(_find(table, b"stsd"))
    if begin is None or plain_rate(config, partial(_read, file, packets.place, packets.size)) != rate:
        return None
    return packets.number * FRAME - begin, rate


def _packets(table: bytes, end: int) -> _Packets | None:
    """Return the packets of a track; None: the tables contradict each other, or some packet is not within the file."""
    sizes, runs, wide = _find(table, b"stsz"), _find(table, b"stsc"), _find(table, b"co64")
    same, number = struct.unpack(">II", sizes[4:12])
    each = (same,) * number if same and number * same <= end else struct.unpack(f">{number}I", sizes[12:])
    places = wide or _find(table, b"stco")
    num_chunks = struct.unpack(">I", places[4:8])[0]
    begins = struct.unpack(f">{num_chunks}{'Q' if wide else 'I'}", places[8:])
    steps = list(struct.iter_unpack(">III", runs[8:]))
    firsts = [first for first, _, _ in steps] + [num_chunks + 1]
    if not all(each) or firsts[0] != 1 or any(kind != 1 for _, _, kind in steps):
        return None
    if firsts != sorted(set(firsts)) or struct.unpack(">I", runs[4:8]) != (len(steps),):
        return None
    upto = list(accumulate(each, initial=0))
    packet = 0
    for (first, count, _), after in zip(steps, firsts[1:], strict=True):
        for begin in begins[first - 1 : after - 1]:
            packet += count
            if packet > number or begin + upto[packet] - upto[packet - count] > end:
                return None
    return _Packets(number, begins[0], each[0]) if packet == number else None


def _begin(edits: bytes, movie_rate: int, rate: int, number: int) -> int | None:
    """Return the number of samples before the edit; None: there is not just one edit that reaches the last packet."""
    if not edits:
        return 0
    if edits[0] or struct.unpack(">I", edits[4:8]) != (1,):
        return None
    duration, begin, speed = struct.unpack(">IiI", edits[8:20])
    if begin < 0 or begin > min(4, max(number - 2, 0)) * FRAME or speed != 1 << 16 or not movie_rate:
        return None
    return begin if begin + duration * rate / movie_rate > (number - 1) * FRAME + 1 else None


def _configuration(described: bytes) -> bytes:
    """Return the configuration of AAC; empty: anything else."""
    if described[4:8] != b"\0\0\0\1" or described[12:16] != b"mp4a":
        return b""
    version = int.from_bytes(described[24:26], "big")  # 1: a description of QuickTime
    if version > 1:
        return b""
    inside = _find(described[60:], b"wave") if version else described[44:]
    stream = _descriptor(_find(inside, b"esds")[4:], 3)
    decoder = _descriptor(stream[3:], 4) if not stream[2] >> 5 else b""
    return _descriptor(decoder[13:], 5) if decoder[:1] == b"\x40" else b""


def _descriptor(data: bytes, name: int) -> bytes:
    """Return the content of the descriptor that begins `data`; empty: it has another name."""
    size, place = 0, 1
    while True:
        size = size << 7 | data[place] & 0x7F
        place += 1
        if data[place - 1] < 0x80:
            return data[place : place + size] if data[0] == name else b""


def _timescale(header: bytes) -> int:
    place = 20 if header[0] else 12
    return int(struct.unpack(">I", header[place : place + 4])[0])


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
