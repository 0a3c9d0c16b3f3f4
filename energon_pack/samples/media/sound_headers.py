"""Reads the number of samples of plain sounds from their headers: PyAV's result, many times faster.

A plain sound is whole, and is a WAV or AIFF of integers, a FLAC or an MP3. All other sounds are decoded.
"""

import os
import struct
from functools import cache
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from energon_pack.samples.media.sound_mp3 import CutShortError, mp3

_PCM, _ALAW, _MULAW, _EXTENSIBLE = 1, 6, 7, 0xFFFE
_GUID = b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"  # ends the subformat of an extensible WAV
_MOST_CHUNKS = 1000
#: sizes of data that programs write before they know its end, and into a pipe never correct; 0 is another
_UNKNOWN_SIZES = tuple(range(most - 64, most + 1) for most in (0x7F000024, 0x7FFFF000, 0x80000000, 0xFFFFFFFF))
_FLAC_SIZES = (0, 192, 576, 1152, 2304, 4608, 0, 0, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_PERIOD = 32_767  # powers of x
_FLAC_TAIL = 1 << 15  # bytes in which the last frame begins if the header does not tell the size of frames


def plain_sound(file: BinaryIO, extension: str) -> tuple[int, int] | None:
    """Return number of samples and rate of a sound; None: decode it.

    Args:
        extension: the extension of the file's content, as in `formats.FORMATS`.

    Raises:
        CutShortError: the file holds less than its header says.
    """
    read = {"wav": _wav, "aiff": _aiff, "flac": _flac, "mp3": mp3}.get(extension)
    if read is None:
        return None
    end = file.seek(0, os.SEEK_END)
    try:
        return read(file, end)
    except (struct.error, IndexError):  # the header itself ends too early
        raise CutShortError(f"{end} bytes do not hold its header") from None


def _wav(file: BinaryIO, end: int) -> tuple[int, int] | None:
    file.seek(0)
    head = file.read(12)
    riff = struct.unpack("<I", head[4:8])[0]
    wide: list[int] = []  # sizes of the whole and of the data of an RF64
    is_plain, block, rate = False, 0, 0
    position = 12
    for _ in range(_MOST_CHUNKS):
        file.seek(position)
        name, size = struct.unpack("<4sI", file.read(8))
        if name == b"ds64":
            *wide, number = struct.unpack("<qqq", file.read(24))
            if min(*wide, number) < 0:  # FFmpeg refuses it
                return None
        elif name == b"fmt ":
            kind, channels, rate, _, block, bits = struct.unpack("<HHIIHH", file.read(16))
            if kind == _EXTENSIBLE and size >= 40:
                extra = file.read(24)
                kind = struct.unpack("<H", extra[8:10])[0] if extra[10:24] == _GUID else 0
            is_plain = (kind == _PCM and bits in (8, 16, 24, 32)) or (kind in (_ALAW, _MULAW) and bits == 8)
            is_plain = is_plain and channels > 0 and block == channels * bits // 8
        elif name == b"data":
            if wide and head.startswith(b"RF64"):
                riff, size = wide  # FFmpeg reads no other
            there = end - position - 8
            _check_whole(size, size, there, riff + 8 - end)
            if not size and _are_chunks(file, position + 8, end):
                return 0, rate
            return (size // block, rate) if is_plain and 0 < size <= there else None
        position += 8 + size + size % 2
    return None


def _check_whole(promised: int, size: int, there: int, beyond: int) -> None:
    """Check that a file which holds less than promised is whole: it says its own end, or its writer never knew it.

    Args:
        size: of the chunk with the samples.
        beyond: bytes that the file lacks by the size of all its chunks.

    Raises:
        CutShortError: it is cut.
    """
    if promised > there and beyond not in (-1, 0) and not any(size in sizes for sizes in _UNKNOWN_SIZES):
        raise CutShortError(f"its header promises {promised:,} bytes, {there:,} are there")


def _are_chunks(file: BinaryIO, position: int, end: int) -> bool:
    """Tell whether the file goes on with whole chunks up to its end."""
    name = b"data"
    while position + 8 <= end and name.strip().isalnum():
        file.seek(position)
        name, size = struct.unpack("<4sI", file.read(8))
        position += 8 + size + size % 2
    return position in (end, end + 1) and name.strip().isalnum()


def _aiff(file: BinaryIO, end: int) -> tuple[int, int] | None:
    file.seek(4)
    form, is_compressed = int.from_bytes(file.read(4), "big"), file.read(4) == b"AIFC"
    frames = block = rate = 0
    position = 12
    for _ in range(_MOST_CHUNKS):
        file.seek(position)
        name, size = struct.unpack(">4sI", file.read(8))
        if name == b"COMM":
            channels, frames, bits, exponent, mantissa = struct.unpack(">hIhHQ", file.read(18))
            kind = file.read(4) if is_compressed else b"NONE"
            is_plain = kind in (b"NONE", b"sowt") and bits in (8, 16, 24, 32) and channels > 0
            rate = mantissa >> (16383 + 63 - exponent) if 0 <= 16383 + 63 - exponent < 64 else 0
            block = channels * bits // 8 if is_plain else 0
        elif name == b"SSND":
            there = end - position - 16
            _check_whole(max(size - 8, frames * block), size, there, form + 8 - end)
            return (frames, rate) if block and size - 8 == frames * block <= there else None
        position += 8 + size + size % 2
    return None


def _flac(file: BinaryIO, end: int) -> tuple[int, int] | None:
    file.seek(4)
    kind, *_ = file.read(4)
    info = file.read(34)
    if kind & 0x7F or len(info) < 34:
        return None
    least_block, block = struct.unpack(">HH", info[:4])
    largest = int.from_bytes(info[7:10], "big")
    bits = int.from_bytes(info[10:18], "big")
    rate, total = bits >> 44, bits & ((1 << 36) - 1)
    if not total or not rate or least_block != block:
        return None  # the stream was written without an end, or has blocks of several sizes
    start = max(0, end - (largest or _FLAC_TAIL) - 16)
    file.seek(start)
    if _ends_with(file.read(), total, block):
        return total, rate
    return None


def _ends_with(tail: bytes, total: int, block: int) -> bool:
    """Tell whether the last whole frame in these bytes ends after `total` samples."""
    number, last = divmod(total - 1, block)
    begin = len(tail)
    while (begin := tail.rfind(b"\xff\xf8", 0, begin)) >= 0:
        size_code = tail[begin + 2] >> 4 if begin + 6 < len(tail) else 0
        found, position = _coded_number(tail, begin + 4)
        size = _FLAC_SIZES[size_code]
        if size_code in (6, 7):
            size = int.from_bytes(tail[position : position + size_code - 5], "big") + 1
        if found == number and size == last + 1:
            return _is_checked(tail[begin:])
    return False


def _coded_number(data: bytes, position: int) -> tuple[int, int]:
    """Return a number that is coded like a character in UTF-8, and the position after it; -1: there is no number."""
    if position >= len(data):
        return -1, position
    first = data[position]
    if first < 0x80:
        return first, position + 1
    length = 8 - (first ^ 0xFF).bit_length()
    if length < 2 or length > 7 or position + length > len(data):
        return -1, position
    value = first & (0x7F >> length)
    for byte in data[position + 1 : position + length]:
        value = value << 6 | byte & 0x3F
    return value, position + length


@cache
def _powers() -> npt.NDArray[np.uint16]:
    """Return the remainders of the powers of x in FLAC's checksum, [32767]: after so many, they repeat."""
    powers = [1]
    while len(powers) < _PERIOD:
        powers.append((powers[-1] << 1 & 0xFFFF) ^ (0x8005 if powers[-1] & 0x8000 else 0))
    return np.array(powers, np.uint16)


def _is_checked(frame: bytes) -> bool:
    """Tell whether a frame of FLAC ends with its own right checksum: then its bits, as a polynomial, leave no rest."""
    bits = np.unpackbits(np.frombuffer(frame, np.uint8))[::-1]
    return not np.bitwise_xor.reduce(_powers()[np.flatnonzero(bits) % _PERIOD])
