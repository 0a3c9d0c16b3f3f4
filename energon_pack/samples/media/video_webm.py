"""Reads from the list of tracks of a WebM or Matroska whether it has pictures, and whether players turn them."""

import os
from collections.abc import Iterator
from typing import BinaryIO

_SEGMENT, _TRACKS, _TRACK, _CLUSTER = 0x18538067, 0x1654AE6B, 0xAE, 0x1F43B675
_NUMBER, _KIND, _CODEC, _SEEN = 0xD7, 0x83, 0x86, 0xE0
_PROJECTION = b"\x76\x70"
_PICTURES, _SOUND, _TEXT = b"\x01", b"\x02", b"\x11"  # kinds of tracks
_EMPTY = 0xEC, 0xBF  # void, and a checksum, which FFmpeg does not read
#: elements before the packets, in the list of tracks, and in a track; a file with any other one is not plain
_IN_FILE = frozenset(
    (0x1A45DFA3, _SEGMENT, _TRACKS, _CLUSTER, 0x114D9B74, 0x1549A966, 0x1254C367, 0x1C53BB6B, 0x1043A770, 0x1941A469)
) | frozenset(_EMPTY)
_IN_TRACKS = frozenset((_TRACK, *_EMPTY))
_IN_TRACK = frozenset(
    (
        *(_NUMBER, _KIND, _CODEC, 0x63A2, 0x56AA, 0xE1, _SEEN, 0x73C5, 0x9C, 0x22B59C, 0x22B59D, 0x56BB),
        *(0x23E383, 0x88, 0x55AA, 0xB9, 0x536E, 0x258688, 0x55EE, 0x6DE7, 0xAA, *_EMPTY),
    )
)
#: kinds of tracks → names of encoders
_KNOWN = {
    _PICTURES: (b"V_MPEG4/ISO/", b"V_MPEGH/ISO/HEVC", b"V_VP8", b"V_VP9", b"V_AV1", b"V_MJPEG", b"V_THEORA"),
    _SOUND: (b"A_OPUS", b"A_AAC", b"A_VORBIS", b"A_FLAC", b"A_MPEG/L3", b"A_AC3", b"A_EAC3", b"A_PCM/INT/LIT"),
}
_HEAD = 32  # bytes that hold an element's name and size
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


def _kind(track: dict[int, bytes]) -> bytes | None:
    """Return the kind of a track whose encoder FFmpeg knows."""
    kind, codec = track.get(_KIND), track.get(_CODEC, b"")
    return kind if kind == _TEXT or codec.startswith(_KNOWN.get(kind or b"", ())) else None


def _tracks(file: BinaryIO) -> list[dict[int, bytes]]:
    """Return what the file says of each track; nothing if it says it more than once, or behind the packets."""
    tracks: list[dict[int, bytes]] = []
    position, end = 0, file.seek(0, os.SEEK_END)
    while position < end:
        name, size, length = _name_and_size(_read(file, position, _HEAD), 0)
        position += length
        is_endless = size < 0 and name in (_SEGMENT, _CLUSTER)
        if name not in _IN_FILE or not (is_endless or 0 <= size <= end - position):
            raise IndexError(f"an element {name:#x} of {size} bytes, {end - position} are there")
        if name == _CLUSTER:
            break
        if name == _TRACKS:
            if tracks or size > _LARGEST:
                return []
            inside = _inside(_read(file, position, size), _IN_TRACKS)
            tracks = [dict(_inside(track, _IN_TRACK)) for other, track in inside if other == _TRACK]
        position += 0 if name == _SEGMENT else size
    return tracks


def _inside(data: bytes, names: frozenset[int]) -> Iterator[tuple[int, bytes]]:
    """Yield name and content of each element in the content of its holder."""
    position = 0
    while position < len(data):
        name, size, begin = _name_and_size(data, position)
        position = begin + size
        if not begin <= position <= len(data) or name not in names:
            raise IndexError(f"an element {name:#x} of {size} bytes, {len(data) - begin} are there")
        yield name, data[begin:position]


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
