"""Counts the samples of Opus or Vorbis in an Ogg without decoding: as many as PyAV decodes.

The file is one whole stream. Each page has its checksum, and says how many samples its packets have.
"""

import os
import struct
from collections.abc import Callable, Iterator
from itertools import count
from typing import BinaryIO
from zlib import crc32

from energon_pack.samples.media import opus
from energon_pack.samples.media.vorbis import Blocks

_CONTINUED, _FIRST, _LAST = 1, 2, 4  # flags of a page
_MIRRORED = bytes(int(f"{value:08b}"[::-1], 2) for value in range(256))


def sound_in_ogg(file: BinaryIO) -> tuple[int, int] | None:
    """Return number of samples and rate; None: decode it.

    Raises:
        struct.error, IndexError: a page is damaged, or is of another stream.
    """
    headers: list[bytes] = []
    measure: Callable[[bytes], int] | None = None
    total = last = skipped = rate = end = 0
    is_last = is_opus = False
    for flags, granule, packets in _pages(file):
        if is_last:
            return None
        is_last = bool(flags & _LAST)
        if measure is None:
            headers += packets
            is_opus = headers[0].startswith(b"OpusHead")
            if len(headers) == 2 and is_opus and headers[0][8] < 16:
                skipped, rate, measure = struct.unpack("<H", headers[0][10:12])[0], opus.RATE, opus.num_samples
            elif len(headers) == 3 and not is_opus:
                blocks = Blocks(headers[0], headers[2])
                rate, measure = blocks.rate, blocks.num_samples
            elif len(headers) > 2 or not all(headers) or is_last:
                return None
            continue
        if is_last and not (total or is_opus):
            return None  # FFmpeg believes the end of a Vorbis only if its last page is not its first
        for packet in packets:
            last = measure(packet)
            total += last
        end = granule if packets else end
        if granule != (total if packets else -1) and not (is_last and total - last < granule < total):
            return None
    return (end - skipped, rate) if is_last and rate and end > skipped else None


def _pages(file: BinaryIO) -> Iterator[tuple[int, int, list[bytes]]]:
    """Yield the flags of each page, its granule, and the packets that end in it."""
    end, position, own, rest = file.seek(0, os.SEEK_END), 0, -1, b""
    file.seek(0)
    for number in count():
        if position == end:
            return
        head = file.read(27)
        magic, flags, granule, stream, order, checksum = struct.unpack("<5sBqII4s", head[:26])
        lengths = file.read(head[26])
        body = file.read(sum(lengths))
        position += len(head) + len(lengths) + len(body)
        own = own if number else stream
        whole = (head[:22] + bytes(4) + head[26:] + lengths + body).translate(_MIRRORED)
        if crc32(whole, 0xFFFFFFFF) ^ 0xFFFFFFFF != int.from_bytes(checksum.translate(_MIRRORED), "big"):
            raise IndexError(f"page {number} has a wrong checksum")
        if (magic, stream, order) != (b"OggS\0", own, number) or bool(flags & _FIRST) != (not number):
            raise IndexError(f"page {number} is of another stream")
        if bool(flags & _CONTINUED) != bool(rest):
            raise IndexError(f"page {number} goes on with another packet")
        packets = []
        begin = size = 0
        for length in lengths:
            size += length
            if length < 255:
                packets.append(rest + body[begin : begin + size])
                rest, begin, size = b"", begin + size, 0
        rest += body[begin:]
        yield flags, granule, packets
