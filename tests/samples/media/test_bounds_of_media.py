"""A small video or sound whose header promises millions of frames takes no memory for them: it is left out by name."""

import io
import struct
from pathlib import Path

import pytest

from energon_pack.run import untrusted_input
from energon_pack.samples.media.read_media import probe
from energon_pack.samples.skip import Skip
from support.samples import sound, video, video_with_sound

pytest.importorskip("av", reason="videos need PyAV")

_MATRIX = bytes.fromhex("00010000" + "00" * 12 + "00010000" + "00" * 12 + "40000000")


@pytest.fixture(autouse=True)
def _bounds_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted_input, "_is_enabled", [True])  # as in the command, and in workers


def _box(name: bytes, *parts: bytes) -> bytes:
    return struct.pack(">I", 8 + sum(map(len, parts))) + name + b"".join(parts)


def _full(name: bytes, *parts: bytes, flags: int = 0) -> bytes:
    return _box(name, struct.pack(">I", flags), *parts)


def _mp4_of(num: int, is_sound: bool) -> bytes:
    """An mp4 of one track with so many frames of one byte; its tables are some numbers each."""
    side = 0 if is_sound else 64
    track = struct.pack(">5I8x4H", 0, 0, 1, 0, 1000, 0, 0, 0, 0) + _MATRIX + struct.pack(">2I", side << 16, side << 16)
    of_sound = struct.pack(">6xH8x4HI", 1, 1, 16, 0, 0, 16_000 << 16)
    of_video = struct.pack(">6xH16x2H2I4xH32xHh", 1, side, side, 0x480000, 0x480000, 1, 24, -1)
    tables = (
        _full(b"stsd", struct.pack(">I", 1), _box(b"mp4a", of_sound) if is_sound else _box(b"mp4v", of_video)),
        _full(b"stts", struct.pack(">3I", 1, num, 1024)),
        _full(b"stsc", struct.pack(">4I", 1, 1, num, 1)),
        _full(b"stsz", struct.pack(">2I", 1, num)),
        _full(b"stco", struct.pack(">2I", 1, 700)),
    )
    media = (
        _full(b"mdhd", struct.pack(">4I2H", 0, 0, 1000, num, 0x55C4, 0)),
        _full(b"hdlr", bytes(4), b"soun" if is_sound else b"vide", bytes(12), b"x\0"),
        _box(
            b"minf",
            _box(b"dinf", _full(b"dref", struct.pack(">I", 1), _full(b"url ", flags=1))),
            _box(b"stbl", *tables),
        ),
    )
    film = struct.pack(">4IIH10x", 0, 0, 1000, 1000, 0x10000, 0x100) + _MATRIX + bytes(24) + struct.pack(">I", 2)
    moov = _box(b"moov", _full(b"mvhd", film), _box(b"trak", _full(b"tkhd", track, flags=7), _box(b"mdia", *media)))
    return _box(b"ftyp", b"M4A " if is_sound else b"isom", bytes(4), b"isom") + moov + _box(b"mdat", bytes(100))


@pytest.mark.parametrize(
    ("is_sound", "message"), [(False, "promises 60,000,000 frames"), (True, "a sound of 0 samples")]
)
def test_sixty_million_frames_in_some_hundred_bytes_are_not_listed(is_sound: bool, message: str) -> None:
    """The table of a single number took 2 GB and 15 s."""
    _peak_bytes()
    before = _peak_bytes()
    with pytest.raises(Skip, match=f"unreadable_media: .*{message}"):
        probe(io.BytesIO(_mp4_of(60_000_000, is_sound)))
    assert _peak_bytes() - before < 500 << 20


def _peak_bytes() -> int:
    """Return the most memory that this process has had since the last call."""
    with open("/proc/self/status") as file:
        peak = 1024 * next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return peak


def test_ordinary_media_are_read_within_the_bound() -> None:
    assert probe(io.BytesIO(video(12))).num_frames == 12
    assert probe(io.BytesIO(video_with_sound(12))).num_frames == 12
    assert probe(io.BytesIO(sound(3000))).num_samples == 3000
