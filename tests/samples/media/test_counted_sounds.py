"""Sounds are counted as training decodes them, or refused, whatever is damaged."""

import io
import random
import struct
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from energon_pack.samples.media.probe import probe
from energon_pack.samples.media.stream_probe import probe_track
from energon_pack.samples.media.streams import decode_audio
from energon_pack.samples.skip import Reason, Skip
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


#: what it is → a file
CLIPS: dict[str, Callable[[], bytes]] = {
    "m4a": lambda: encoded("ipod", "aac", 44_100),
    "mp4 clip": lambda: video_with_sound(rate=44_100, num_samples=44_100),
    "mkv clip": lambda: video_with_sound(rate=44_100, num_samples=44_100, format="matroska"),
    "webm": lambda: encoded("webm", "libopus", 48_000),
    "ogg opus": lambda: encoded("ogg", "libopus", 48_000),
    "ogg vorbis": lambda: encoded("ogg", "vorbis", 44_100, 90_000),
    "mp3": lambda: encoded("mp3", "libmp3lame", 24_000),
    "mp3 without counts": lambda: without_counts(encoded("mp3", "libmp3lame", 44_100)),
}


@cache
def clip(name: str) -> bytes:
    return CLIPS[name]()


def damaged(data: bytes, seed: int) -> bytes:
    """A file that is cut, or has bytes taken out or changed."""
    result, rng = bytearray(data), random.Random(seed)
    if rng.random() < 0.3:
        del result[rng.randrange(len(result)) :]
    elif rng.random() < 0.3:
        place = rng.randrange(len(result))
        del result[place : place + rng.randrange(1, 600)]
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(result)) if result else 0
        result[place : place + 1] = bytes([rng.choice((0, 1, 0xFF, rng.randrange(256)))])
    return bytes(result)


@pytest.mark.parametrize("name", CLIPS)
def test_a_damaged_sound_costs_its_sample_or_is_counted_as_training_decodes_it(name: str) -> None:
    """Tables of these files said a number that a damaged packet does not have, and training was the first to see it."""
    refused: list[Skip] = []
    for seed in range(12):
        data = damaged(clip(name), seed)
        try:
            found = probe_track(io.BytesIO(data))
        except Skip as skip:
            refused.append(skip)
        else:
            assert found is None or len(decode_audio(data, found[1])) == found[0]
    assert len(refused) < 12
    assert {skip.reason for skip in refused} <= {Reason.UNREADABLE_MEDIA}


def test_a_damaged_packet_is_seen_before_training() -> None:
    """The tables of an m4a know nothing of it: the sound was packed, and training refused it."""
    m4a = clip("m4a")
    middle = m4a.index(b"mdat") + 4000
    with pytest.raises(Skip, match="unreadable_media: not a readable sound"):
        probe(io.BytesIO(m4a[:middle] + b"\xff" * 400 + m4a[middle + 400 :]))


@pytest.mark.parametrize("name", ["m4a", "webm", "ogg opus", "mp4 clip"])
def test_without_the_decoder_a_sound_is_refused_with_its_remedy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = clip(name)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(Skip, match=r"unsupported_media: (sound|video)s need PyAV: pip install 'energon-pack\[video\]'"):
        probe(io.BytesIO(data))


@pytest.mark.parametrize(("format", "codec"), [(f, c) for f, (_, codecs) in HEARD_IN.items() for c in codecs])
def test_the_sound_of_a_clip(format: str, codec: str) -> None:
    """Sounds shorter and longer than the pictures."""
    rate = 48_000 if codec == "libopus" else 44_100
    for num_samples in (30_011, 70_003):
        data = video_with_sound(rate=rate, num_samples=num_samples, format=format, codec=codec)
        assert probe(io.BytesIO(data)).kind == "video"
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


def rf64(num_samples: int) -> bytes:
    """A WAV whose sizes have 64 bits, of 16 kHz in 16 bits and mono."""
    data = np.arange(num_samples, dtype="<i2").tobytes()
    sizes = struct.pack("<4sIQQQI", b"ds64", 28, 4 + 36 + 24 + 8 + len(data), len(data), num_samples, 0)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 16_000, 32_000, 2, 16)
    return b"RF64\xff\xff\xff\xffWAVE" + sizes + form + b"data\xff\xff\xff\xff" + data


def test_a_wav_of_64_bits_that_is_cut_is_refused() -> None:
    """The size that its chunk says is that of a stream: a cut sound was trained as a shorter one."""
    whole = rf64(8_000)
    assert probe(io.BytesIO(whole)).num_samples == 8_000
    for cut in (whole[:-1], whole[:-500], whole[: len(whole) * 6 // 10]):
        with pytest.raises(Skip) as refused:
            probe(io.BytesIO(cut))
        assert refused.value.reason is Reason.UNREADABLE_MEDIA
