"""Reads the number of samples of an MP3 from LAME's counts, or counts its frames if it has none."""

import struct
from typing import BinaryIO

_DELAY = 529  # samples of the decoder itself
_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8000)}  # by version
_KILOBITS = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),  # of MPEG 1
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
)
_WINDOW = 1 << 16  # bytes that are read at once
_FEWEST = 8  # frames: of fewer, FFmpeg is not sure that they are an MP3


class CutShortError(ValueError):
    """A file ends earlier than its header promises."""


def mp3(file: BinaryIO, end: int) -> tuple[int, int] | None:
    """Return number of samples and rate; None: decode it.

    Raises:
        CutShortError: the file holds less than its header says.
        struct.error: the file ends in its first tag or frame.
    """
    file.seek(0)
    head = file.read(10)
    start = 0
    if head[:3] == b"ID3":
        major, minor, flags, *size = struct.unpack(">7B", head[3:])
        if 0xFF in (major, minor) or flags & 0x10 or max(size) > 0x7F:
            return None  # FFmpeg does not take it for a tag, or the tag has a second end
        start = 10 + (size[0] << 21 | size[1] << 14 | size[2] << 7 | size[3])
    file.seek(start)
    frame = file.read(192)
    if len(frame) < 192 or frame[0] != 0xFF or frame[1] & 0xE6 != 0xE2 or frame[2] & 0x0C == 0x0C:
        return None
    version = frame[1] >> 3 & 3  # 3: MPEG 1, 2: MPEG 2, 0: MPEG 2.5
    if version == 1:
        return None
    is_mono = frame[3] >> 6 == 3
    begin = 4 + ((17 if is_mono else 32) if version == 3 else (9 if is_mono else 17))
    rate, each = _RATES[version][frame[2] >> 2 & 3], 1152 if version == 3 else 576
    file.seek(max(0, end - 128))
    has_tag = file.read(3) == b"TAG"
    end -= 128 * has_tag
    sizes = _sizes(frame, rate)
    if frame[begin : begin + 4] not in (b"Xing", b"Info"):
        number = 0 if frame[36:40] == b"VBRI" else _num_frames(file, start, end, sizes)
        return (number * each, rate) if number >= _FEWEST else None
    flags, frames, length = struct.unpack(">III", frame[begin + 4 : begin + 16])
    if flags & 3 != 3:
        return None
    file.seek(start + begin + 16 + 100 * bool(flags & 4) + 4 * bool(flags & 8))
    tail = file.read(24)
    if tail[:4] not in (b"LAME", b"Lavf", b"Lavc"):
        return None
    delay, padding = tail[21] << 4 | tail[22] >> 4, (tail[22] & 15) << 8 | tail[23]
    if end - start < length:
        raise CutShortError(f"its header promises {length:,} bytes, {end - start:,} are there")
    if end - start != length or delay + padding < 2 * _DELAY or padding < _DELAY or (has_tag and length < 16 * 128):
        return None  # FFmpeg thinks that a file that is a sixteenth longer than it says has other counts
    number = frames * each - delay - padding
    is_plain = number > 0 and frames == _num_frames(file, start + sizes.get(frame[2], end), end, sizes)
    return (number, rate) if is_plain else None


def _num_frames(file: BinaryIO, start: int, end: int, sizes: dict[int, int]) -> int:
    """Count the frames of an MP3 from one place to another; 0: there is something else, or another kind of frame."""
    number, position, window, base, last = 0, start, b"", 0, -1
    kind = channels = 0
    while position < end:
        if position > last:
            file.seek(position)
            window, base = file.read(_WINDOW), position
            last = position + len(window) - 4
            if position > last:
                return 0
        place = position - base
        if not number:
            kind, channels = window[place + 1] & 0xFE, window[place + 3] & 0xCF
        size = sizes.get(window[place + 2])
        if window[place] != 0xFF or window[place + 1] & 0xFE != kind or size is None:
            return 0
        if window[place + 3] & 0xCF != channels:
            return 0
        position += size
        number += 1
    return number if position == end else 0


def _sizes(first: bytes, rate: int) -> dict[int, int]:
    """Return the bytes of a frame by its third byte, for frames of the rate of the first one."""
    is_first_version = first[1] >> 3 & 3 == 3
    kilobits = _KILOBITS[not is_first_version]
    each = 144_000 if is_first_version else 72_000
    return {
        third: each * kilobits[third >> 4] // rate + (third >> 1 & 1)
        for third in range(256)
        if kilobits[third >> 4] and (third ^ first[2]) & 0x0C == 0
    }
