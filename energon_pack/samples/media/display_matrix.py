"""Tells by the header of a video whether its container may turn the pictures, for the probe and for training.

Only an mp4 and a Matroska can. FFmpeg also turns single frames by what the codec says (an SEI of H.264 or HEVC, the
EXIF of MJPEG), often the first and no other: that is ignored, or a film would have frames of two sizes.
"""

import os
import re
from typing import BinaryIO

_MOST_HEADER = 16 << 20  # bytes that are searched
_MATRIX = bytes.fromhex("00010000" + "00" * 12 + "00010000" + "00" * 12 + "40000000")  # of an mp4: it changes nothing
_PLACES = {b"mvhd": (36, 48), b"tkhd": (40, 52)}  # of the matrix, in bytes behind the name, in version 0 and 1
_TRACKS, _PROJECTION = b"\x16\x54\xae\x6b", b"\x76\x70"  # of a Matroska
_IN_TRACKS = (b"\xae", b"\xbf", b"\xec")  # a track, a checksum, a gap: what can stand first


def may_turn(file: BinaryIO, format_name: str) -> bool:
    """Tell whether a container may ask players to turn its pictures.

    `format_name`: FFmpeg's name of the container.
    """
    if format_name.startswith("mov"):
        return not _is_plain(_moov(file))
    if format_name.startswith("matroska"):
        file.seek(0)
        tracks = _tracks(file.read(_MOST_HEADER))
        return not tracks or any(_PROJECTION in track for track in tracks)
    return False


def _is_plain(tables: bytes) -> bool:
    """Tell whether each matrix of an mp4 changes nothing; the header of a track of chapters holds one more."""
    matrices = []
    for match in re.finditer(b"mvhd|tkhd", tables):
        start = match.end() + _PLACES[match[0]][tables[match.end() : match.end() + 1] == b"\1"]
        matrices.append(tables[start : start + len(_MATRIX)])
    return set(matrices) == {_MATRIX}


def _tracks(header: bytes) -> list[bytes]:
    """Return the lists of tracks of a Matroska that are whole; the directory before them holds only their name."""
    lists = []
    for match in re.finditer(re.escape(_TRACKS), header):
        num_bytes = 9 - int.from_bytes(header[match.end() : match.end() + 1], "big").bit_length()  # of its size
        start = match.end() + num_bytes
        size = int.from_bytes(header[match.end() : start], "big") & ((1 << 7 * num_bytes) - 1)
        if header[start : start + 1] in _IN_TRACKS and start + size <= len(header):
            lists.append(header[start : start + size])
    return lists


def _moov(file: BinaryIO) -> bytes:
    """Return the tables of an mp4; empty: there are none, or they are too large."""
    end, position = file.seek(0, os.SEEK_END), 0
    while position + 8 <= end:
        file.seek(position)
        head = file.read(16)
        size = int.from_bytes(head[:4], "big")
        size = int.from_bytes(head[8:], "big") if size == 1 else size or end - position
        if head[4:8] == b"moov":
            file.seek(position)
            return file.read(size if size <= _MOST_HEADER else 0)
        if size < 8:
            break
        position += size
    return b""
