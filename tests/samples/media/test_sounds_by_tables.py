"""Sounds whose tables and packets are counted: the count is the decoder's, or there is none, whatever is damaged."""

import io
import random
import re
import struct
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.samples.media.audio import decode_audio
from energon_pack.samples.media.containers import probe_track
from energon_pack.samples.media.formats import SOUNDS_LIKE
from energon_pack.samples.media.probe import probe
from energon_pack.samples.media.sound_headers import plain_pictures, plain_sound
from energon_pack.samples.media.sound_mp3 import CutShortError
from energon_pack.samples.media.streams import UndecodableError
from support.samples import HEARD_IN, video, video_with_sound

av = pytest.importorskip("av", reason="sounds need PyAV")


@cache
def encoded(container: str, codec: str, rate: int, num_samples: int = 60_011, layout: str = "stereo") -> bytes:
    """A sound of a tone under noise in a file of any kind."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as writer:
        stream: Any = writer.add_stream(codec, rate=rate, layout=layout, options={"strict": "experimental"})
        noise = np.random.default_rng(num_samples).uniform(-0.1, 0.1, (len(stream.layout.channels), num_samples))
        values = (noise + 0.4 * np.sin(np.arange(num_samples) / 9)).astype(np.float32)
        frame = av.AudioFrame.from_ndarray(values, format="fltp", layout=layout)
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        writer.mux(stream.encode(frame))
        writer.mux(stream.encode(None))
    return file.getvalue()


def without_counts(data: bytes) -> bytes:
    """An MP3 without its tag and without its first frame, which holds the counts."""
    start = 10 + (data[6] << 21 | data[7] << 14 | data[8] << 7 | data[9])
    return data[data.index(data[start : start + 2], start + 2) :]


#: what it is → a file, the extension of a sound like it, how many bytes from its beginning are damaged
CLIPS: dict[str, tuple[Callable[[], bytes], str, int]] = {
    "m4a": (lambda: encoded("ipod", "aac", 44_100), "m4a", 0),
    "mp4 clip": (lambda: video_with_sound(rate=44_100, num_samples=44_100), "m4a", 0),
    "mkv clip": (lambda: video_with_sound(rate=44_100, num_samples=44_100, format="matroska"), "mka", 500),
    "webm": (lambda: encoded("webm", "libopus", 48_000), "mka", 400),
    "ogg opus": (lambda: encoded("ogg", "libopus", 48_000), "ogg", 0),
    "ogg vorbis": (lambda: encoded("ogg", "vorbis", 44_100, 90_000), "ogg", 0),
    "mp3": (lambda: encoded("mp3", "libmp3lame", 24_000), "mp3", 0),
    "mp3 without counts": (lambda: without_counts(encoded("mp3", "libmp3lame", 44_100)), "mp3", 0),
}


@cache
def clip(name: str) -> bytes:
    return CLIPS[name][0]()


def counted(data: bytes, extension: str) -> tuple[int, int] | None:
    try:
        return plain_sound(io.BytesIO(data), extension)
    except CutShortError:
        return None


@pytest.mark.parametrize("name", CLIPS)
def test_tables_count_what_training_decodes(name: str) -> None:
    found = counted(clip(name), CLIPS[name][1])
    assert found is not None
    assert len(decode_audio(clip(name), found[1])) == found[0]


@pytest.mark.parametrize("name", CLIPS)
@given(seed=st.integers(0, 1 << 32))
def test_damaged_tables_count_nothing_else(name: str, seed: int) -> None:
    """Whoever cuts or damages a file gets the decoder's count, no count, or a sound that training refuses, too."""
    _, extension, damaged = CLIPS[name]
    data, rng = bytearray(clip(name)), random.Random(seed)
    tables = data.index(b"moov") if b"moov" in data else 0
    if rng.random() < 0.3:
        del data[rng.randrange(len(data)) :]
    elif rng.random() < 0.3:
        place = rng.randrange(len(data))
        del data[place : place + rng.randrange(1, 600)]
    for _ in range(rng.randrange(4)):
        place = rng.randrange(min(tables, len(data) - 1), min(damaged or len(data), len(data))) if data else 0
        data[place : place + 1] = bytes([rng.choice((0, 1, 0xFF, rng.randrange(256)))])
    found = counted(bytes(data), extension)
    if found is not None:
        try:
            assert len(decode_audio(bytes(data), found[1])) == found[0] > 0
        except UndecodableError:
            return


@pytest.mark.parametrize(("format", "codec"), [(f, c) for f, (_, codecs) in HEARD_IN.items() for c in codecs])
def test_the_sound_of_a_clip_by_its_tables(format: str, codec: str) -> None:
    """Sounds shorter and longer than the pictures; only FLAC and PCM are decoded."""
    rate = 48_000 if codec == "libopus" else 44_100
    for num_samples in (30_011, 70_003):
        data = video_with_sound(rate=rate, num_samples=num_samples, format=format, codec=codec)
        extension = probe(io.BytesIO(data)).extension
        tells = counted(data, SOUNDS_LIKE[extension]) is not None
        assert tells == (codec in ("aac", "libopus", "vorbis"))
        assert plain_pictures(io.BytesIO(data), extension) is True
        track = probe_track(io.BytesIO(data))
        assert track is not None
        assert len(decode_audio(data, track[1])) == track[0]


def test_a_clip_without_sound() -> None:
    for format in ("mp4", "matroska"):
        assert probe_track(io.BytesIO(video(format=format))) is None


def test_names_in_another_alphabet() -> None:
    """Tags of old files are not in UTF-8. A file whose header counts must not be refused in training for them."""
    mp4, mkv = clip("mp4 clip"), clip("mkv clip")
    for data in (clip("m4a"), mp4.replace(b"SoundHandler", b"S\xe9undHandler"), mkv.replace(b"Lavf", b"L\xe4vf")):
        track = probe_track(io.BytesIO(data))
        assert track is not None
        assert len(decode_audio(data, track[1])) == track[0]
        assert probe(io.BytesIO(data)).kind == ("audio" if data == clip("m4a") else "video")


def test_a_configuration_that_is_silent_about_its_rate() -> None:
    """Many encoders write two bytes. Only the first packet says that its rate is not doubled."""
    m4a = encoded("ipod", "aac", 44_100)
    short = m4a.replace(b"\x05\x80\x80\x80\x05", b"\x05\x80\x80\x80\x02")
    assert short != m4a
    assert counted(short, "m4a") == counted(m4a, "m4a") == (len(decode_audio(short, 44_100)), 44_100)
    first = m4a.index(b"mdat") + 4
    broken = short[:first] + b"\xff" * 40 + short[first + 40 :]
    assert counted(broken, "m4a") is None


def test_packets_that_are_not_there() -> None:
    """FFmpeg stops at a chunk behind the end of the file, even at one of pictures."""
    clip = bytearray(video_with_sound())
    assert counted(bytes(clip), "m4a") is not None
    for place in (clip.index(b"stco"), clip.rindex(b"stco")):
        moved = clip[: place + 12] + struct.pack(">I", len(clip)) + clip[place + 16 :]
        assert counted(bytes(moved), "m4a") is None


def test_tracks_that_are_not_plain() -> None:
    """Packets with compressed beginnings, a codec that FFmpeg does not know, packets of no track, chapters."""
    webm, clip = encoded("webm", "libopus", 48_000), video_with_sound(format="matroska", codec="libopus", rate=48_000)
    mkv = encoded("matroska", "aac", 44_100)
    compressed = mkv.replace(b"\x55\xee\x81\x00", b"\x6d\x80\x81\x00")
    assert compressed != mkv
    assert (counted(mkv, "mka") is None, counted(compressed, "mka")) == (False, None)
    assert plain_pictures(io.BytesIO(webm.replace(b"A_OPUS", b"A_LUTE")), "mkv") is None
    assert plain_pictures(io.BytesIO(clip.replace(b"V_MPEG4", b"V_LUTES")), "mkv") is None
    number = clip.index(b"\xd7\x81") + 2
    assert counted(clip[:number] + b"\x09" + clip[number + 1 :], "mka") is None
    assert plain_pictures(io.BytesIO(video_with_sound().replace(b"vmhd", b"chap")), "mp4") is None


@pytest.mark.parametrize("name", ["ogg opus", "ogg vorbis"])
def test_pages_that_say_other_lengths(name: str) -> None:
    """With the right checksum, too: a stream that was cut out of another, and an end that is before its last packet."""
    data = clip(name)
    pages = [found.start() for found in re.finditer(b"OggS", data)]
    assert len(pages) > 3
    for page, more in ((pages[-2], 1), (pages[-1], 100_000), (pages[-1], -20_000)):
        end = next((other for other in pages if other > page), len(data))
        whole = bytearray(data[page:end])
        whole[6:14] = struct.pack("<q", struct.unpack("<q", whole[6:14])[0] + more)
        whole[22:26] = bytes(4)
        whole[22:26] = struct.pack("<I", ogg_checksum(bytes(whole)))
        assert counted(data[:page] + whole + data[end:], "ogg") is None


def ogg_checksum(data: bytes) -> int:
    rest = 0
    for byte in data:
        rest ^= byte << 24
        for _ in range(8):
            rest = (rest << 1 ^ 0x04C11DB7 if rest & 0x80000000 else rest << 1) & 0xFFFFFFFF
    return rest


def test_an_end_that_ffmpeg_does_not_believe() -> None:
    """A Vorbis of one page is decoded: FFmpeg does not cut its end. A short MP3 with a tag at its end, neither."""
    short = encoded("ogg", "vorbis", 44_100, 9000)
    assert counted(short, "ogg") is None
    assert probe(io.BytesIO(short)).num_samples == len(decode_audio(short, 44_100)) == 9216
    mp3 = encoded("mp3", "libmp3lame", 16_000, 1000, "mono")
    tagged = mp3 + b"TAG" + bytes(125)
    assert counted(mp3, "mp3") == (1000, 16_000)
    assert counted(tagged, "mp3") is None
    assert probe(io.BytesIO(tagged)).num_samples == len(decode_audio(tagged, 16_000)) == 1199
    frames = encoded("mp3", "libmp3lame", 24_000)
    place = frames.index(b"Info") + 8
    assert counted(frames[:place] + struct.pack(">I", 10**6) + frames[place + 4 :], "mp3") is None
    assert counted(b"ID3\3", "mp3") is None
