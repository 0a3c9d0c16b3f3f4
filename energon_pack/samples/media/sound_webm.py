"""Reads a WebM or Matroska: whether it has pictures, and how many samples PyAV decodes of its Opus, Vorbis or AAC.

The packets are counted, less the samples that the file says to leave out at both ends.
"""

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import BinaryIO

from energon_pack.samples.media.aac import FRAME, plain_rate
from energon_pack.samples.media.opus import RATE, SAMPLES, num_samples
from energon_pack.samples.media.vorbis import Blocks

_ROOT, _SEGMENT, _TRACKS, _TRACK = 0, 0x18538067, 0x1654AE6B, 0xAE
_CLUSTER, _GROUP, _SIMPLE, _BLOCK, _DISCARD = 0x1F43B675, 0xA0, 0xA3, 0xA1, 0x75A2
_NUMBER, _KIND, _CODEC, _PRIVATE, _DELAY, _HEARD, _SEEN, _RATE = 0xD7, 0x83, 0x86, 0x63A2, 0x56AA, 0xE1, 0xE0, 0xB5
_PROJECTION = b"\x76\x70"
_PICTURES, _SOUND, _TEXT = b"\x01", b"\x02", b"\x11"  # kinds of tracks
_EMPTY = 0xEC, 0xBF  # void, and a checksum, which FFmpeg does not read
#: elements that are made of others → these others; a file with any other one is not plain
_HOLDS = {
    _ROOT: frozenset((0x1A45DFA3, _SEGMENT)),
    _SEGMENT: frozenset(
        (_TRACKS, _CLUSTER, 0x114D9B74, 0x1549A966, 0x1254C367, 0x1C53BB6B, 0x1043A770, 0x1941A469, *_EMPTY)
    ),
    _CLUSTER: frozenset((_SIMPLE, _GROUP, 0xE7, 0xA7, 0xAB, *_EMPTY)),
    _GROUP: frozenset((_BLOCK, _DISCARD, 0x9B, 0xFB, 0x75A1, *_EMPTY)),
    _TRACKS: frozenset((_TRACK, *_EMPTY)),
    _TRACK: frozenset(
        (
            *(_NUMBER, _KIND, _CODEC, _PRIVATE, _DELAY, _HEARD, _SEEN, 0x73C5, 0x9C, 0x22B59C, 0x22B59D, 0x56BB),
            *(0x23E383, 0x88, 0x55AA, 0xB9, 0x536E, 0x258688, 0x55EE, 0x6DE7, 0xAA, *_EMPTY),
        )
    ),
    _HEARD: frozenset((_RATE, 0x78B5, 0x9F, 0x6264, *_EMPTY)),
}
#: kinds of tracks → names of encoders
_KNOWN = {
    _PICTURES: (b"V_MPEG4/ISO/", b"V_MPEGH/ISO/HEVC", b"V_VP8", b"V_VP9", b"V_AV1", b"V_MJPEG", b"V_THEORA"),
    _SOUND: (b"A_OPUS", b"A_AAC", b"A_VORBIS", b"A_FLAC", b"A_MPEG/L3", b"A_AC3", b"A_EAC3", b"A_PCM/INT/LIT"),
}
_BLOCKS = frozenset((_SIMPLE, _BLOCK))
_LACED = 0x06
_MOST_DELAY = 8192  # samples, of Vorbis
_WINDOW, _HEAD = 1 << 16, 32  # bytes that are read at once, and that hold the first bytes of an element
_LARGEST = 1 << 20  # bytes of the list of tracks


def pictures_in_webm(file: BinaryIO) -> bool | None:
    """Tell whether some track has pictures; None: the file does not say it plainly.

    Raises:
        IndexError: an element is damaged.
    """
    kinds = {_kind(track) for track in _tracks(file)}
    return True if _PICTURES in kinds else False if _SOUND in kinds and kinds <= {_SOUND, _TEXT} else None


def is_upright_webm(file: BinaryIO) -> bool:
    """Tell whether no track of pictures has a projection, in which a turn stands.

    Raises:
        IndexError: an element is damaged.
    """
    tracks = _tracks(file)
    return bool(tracks) and not any(_PROJECTION in track.get(_SEEN, b"") for track in tracks)


def sound_in_webm(file: BinaryIO) -> tuple[int, int] | None:
    """Return number of samples and rate of the only track of sound; None: decode it.

    Raises:
        struct.error, IndexError: an element is damaged.
    """
    tracks = _tracks(file)
    sounds = [track for track in tracks if _kind(track) == _SOUND]
    numbers = {track[_NUMBER][0] | 0x80 for track in tracks if len(track.get(_NUMBER, b"")) == 1}
    if len(sounds) != 1 or len(numbers) != len(tracks):
        return None
    (sound,) = sounds
    own, private, codec = sound[_NUMBER][0] | 0x80, sound.get(_PRIVATE, b""), sound[_CODEC]
    rate: int = 0
    known: Sequence[int] = (FRAME,) * 256  # samples of a packet by its first byte; 0: `measure` it
    measure: Callable[[bytes, int], int] = num_samples
    if codec == b"A_OPUS":
        rate, known = RATE, SAMPLES
    elif codec == b"A_VORBIS":
        blocks = Blocks(*_vorbis_headers(private))
        rate, known, measure = blocks.rate, (0,) * 256, blocks.num_samples
    elif codec != b"A_AAC":
        return None
    total = discarded = last = owner = 0
    for name, place, size, window, begin in _elements(file):
        if name in _BLOCKS:
            owner = window[begin]
            if owner == own:
                if discarded or window[begin + 3] & _LACED or size < 6:
                    return None
                rate = rate or plain_rate(private, partial(_read, file, place + 4, size - 4))
                last = known[window[begin + 4]] or measure(window, begin + 4)
                total += last
            elif owner not in numbers:
                return None
        elif name == _GROUP:
            owner = 0
        elif name == _DISCARD and owner == own:
            discarded = _samples(int.from_bytes(window[begin : begin + size], "big", signed=True), rate)
        elif name == _DISCARD and not owner:
            return None
    delay = _samples(int.from_bytes(sound.get(_DELAY, b""), "big"), rate)
    if codec == b"A_VORBIS" and delay > _MOST_DELAY:
        return None
    skipped = 0 if codec == b"A_VORBIS" else delay  # it is left out of the first packet: Vorbis has no samples there
    if codec == b"A_OPUS" and struct.unpack("<H", private[10:12]) != (skipped,):
        return None
    heard = dict(_inside(sound.get(_HEARD, b""), _HEARD))
    if codec != b"A_OPUS" and heard.get(_RATE) != struct.pack(">d", rate):
        return None
    return (total - skipped - discarded, rate) if rate and total - last >= skipped and last >= discarded >= 0 else None


def _kind(track: dict[int, bytes]) -> bytes | None:
    """Return the kind of a track whose encoder FFmpeg knows."""
    kind, codec = track.get(_KIND), track.get(_CODEC, b"")
    return kind if kind == _TEXT or codec.startswith(_KNOWN.get(kind or b"", ())) else None


def _vorbis_headers(private: bytes) -> tuple[bytes, bytes]:
    """Return the first and the third of the three headers of Vorbis; the sizes of two are said, in steps of 255."""
    position, sizes = 1, [0, 0]
    for index in range(2):
        while private[position] == 255:
            sizes[index] += 255
            position += 1
        sizes[index] += private[position]
        position += 1
    if private[0] != 2:
        raise IndexError("not three headers")
    return private[position : position + sizes[0]], private[position + sum(sizes) :]


def _samples(nanoseconds: int, rate: int) -> int:
    return (nanoseconds * rate + 500_000_000) // 1_000_000_000


def _tracks(file: BinaryIO) -> list[dict[int, bytes]]:
    """Return what the file says of each track; nothing if it says it more than once, or behind the packets."""
    tracks: list[dict[int, bytes]] = []
    for name, place, size, _, _ in _elements(file):
        if name == _CLUSTER:
            break
        if name == _TRACKS:
            if tracks or size > _LARGEST:
                return []
            inside = _inside(_read(file, place, size), _TRACKS)
            tracks = [dict(_inside(track, _TRACK)) for other, track in inside if other == _TRACK]
    return tracks


def _inside(data: bytes, holder: int) -> Iterator[tuple[int, bytes]]:
    """Yield name and content of each element in the content of its holder."""
    position = 0
    while position < len(data):
        name, size, begin = _name_and_size(data, position)
        position = begin + size
        if position > len(data) or name not in _HOLDS[holder]:
            raise IndexError(f"an element {name:#x} of {size} bytes, {len(data) - begin} are there")
        yield name, data[begin:position]


def _elements(file: BinaryIO) -> Iterator[tuple[int, int, int, bytes, int]]:
    """Yield each element's name, place and size of its content, and a window of the file with the place in it.

    The window has at least 16 bytes of the content, if the file has. Elements in `_HOLDS` are entered.

    Raises:
        IndexError: an element is not within the one that holds it, or is unknown.
    """
    end = upto = file.seek(0, os.SEEK_END)
    in_cluster, allowed, is_endless = _HOLDS[_CLUSTER], _HOLDS[_ROOT], False
    levels: list[tuple[frozenset[int], int, bool]] = []
    window, base, last, position = b"", 0, -1, 0  # an element that begins behind `last` needs another window
    while position < end:
        if position == upto:
            allowed, upto, is_endless = levels.pop()
            continue
        if position > last:
            window, base = _read(file, position, _WINDOW), position
            last = end if base + len(window) == end else base + len(window) - _HEAD
        start, rest = position - base, upto - base
        stop = min(rest, last - base) if allowed is in_cluster else 0
        while start < stop and window[start] == _SIMPLE and 0x40 <= window[start + 1] < 0x7F:  # the same, faster
            size = (window[start + 1] & 0x3F) << 8 | window[start + 2]
            if start + 3 + size > rest:
                break
            start += 3 + size
            yield _SIMPLE, base + start - size, size, window, start - size
        if base + start > position:
            position = base + start
            continue
        name, size, begin = _name_and_size(window, start)
        if is_endless and name not in allowed and name in levels[-1][0]:
            allowed, upto, is_endless = levels.pop()
        position = base + begin
        stop = upto if size < 0 and name in (_SEGMENT, _CLUSTER) else position + size
        if name not in allowed or stop > upto or stop < position:
            raise IndexError(f"an element {name:#x} of {size} bytes, {upto - position} are there")
        yield name, position, size, window, begin
        if name in (_SEGMENT, _CLUSTER, _GROUP):
            levels.append((allowed, upto, is_endless))
            allowed, upto, is_endless = _HOLDS[name], stop, size < 0
        else:
            position = stop


def _name_and_size(data: bytes, position: int) -> tuple[int, int, int]:
    """Return name and size of the element that begins at a position, and where its content begins; size -1: unknown."""
    begin = position + 9 - data[position].bit_length()
    name = int.from_bytes(data[position:begin], "big")
    length = 9 - data[begin].bit_length()
    mask = (1 << 7 * length) - 1
    size = int.from_bytes(data[begin : begin + length], "big") & mask
    if begin - position > 4 or length > 8:
        raise IndexError(f"no element at {position}")
    return name, -1 if size == mask else size, begin + length


def _read(file: BinaryIO, place: int, size: int) -> bytes:
    file.seek(place)
    return file.read(size)
