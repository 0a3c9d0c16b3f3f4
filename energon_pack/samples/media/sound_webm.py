"""Counts the samples of Opus in a WebM or Matroska by its packets: as many as PyAV decodes, without decoding."""

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

from energon_pack.samples.media.opus import num_samples

_SEGMENT, _CLUSTER, _GROUP = 0x18538067, 0x1F43B675, 0xA0
_TRACKS, _TRACK, _KIND, _CODEC, _PRIVATE, _DELAY = 0x1654AE6B, 0xAE, 0x83, 0x86, 0x63A2, 0x56AA
_SIMPLE, _BLOCK, _DISCARD = 0xA3, 0xA1, 0x75A2
_INSIDE = frozenset((_SEGMENT, _CLUSTER, _GROUP, _TRACKS, _TRACK))
_LACED = 0x06
_RATE = 48_000


def opus_in_webm(file: BinaryIO) -> tuple[int, int] | None:
    """Return number of samples and rate; None: decode it.

    Raises:
        struct.error, IndexError: an element ends too early.
    """
    total = discarded = last = 0
    codec, head, delay = b"", b"", -1
    num_tracks = 0
    for name, content in _elements(file):
        if name == _TRACK:
            num_tracks += 1
        elif name == _CODEC:
            codec = content
        elif name == _PRIVATE:
            head = content
        elif name == _DELAY:
            delay = int.from_bytes(content, "big")
        elif name in (_SIMPLE, _BLOCK):
            if discarded or content[0] != 0x81 or content[3] & _LACED:
                return None
            last = num_samples(content, 4)
            total += last
        elif name == _DISCARD:
            discarded = round(int.from_bytes(content, "big", signed=True) * _RATE / 1e9)
    if num_tracks != 1 or codec != b"A_OPUS" or len(head) < 12 or discarded < 0:
        return None
    skipped = struct.unpack("<H", head[10:12])[0]
    if round(delay * _RATE / 1e9) != skipped or total - last < skipped or last < discarded:
        return None
    return total - skipped - discarded, _RATE


def _elements(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield each element with its content; an element that is made of others comes without content."""
    end, position = file.seek(0, os.SEEK_END), 0
    file.seek(0)
    data = file.read()
    while position < end:
        length = 9 - data[position].bit_length()
        name = int.from_bytes(data[position : position + length], "big")
        position += length
        length = 9 - data[position].bit_length()
        size = int.from_bytes(data[position : position + length], "big") & ((1 << 7 * length) - 1)
        position += length
        if name in _INSIDE:
            yield name, b""
            continue
        if position + size > end:
            raise IndexError(f"an element of {size} bytes, {end - position} are there")
        yield name, data[position : position + size]
        position += size
