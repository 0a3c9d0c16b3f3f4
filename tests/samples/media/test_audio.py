"""Sounds: their headers say as many samples as the decoder gives, and a bad one costs its sample."""

import io
import struct
import sys
import wave
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from energon_pack.loading import load_multi_mix_qa
from energon_pack.samples.media.kinds import FORMATS, describe
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.read_media import probe
from energon_pack.samples.media.stream_probe import probe_sound_length, probe_sound_length_of_video
from energon_pack.samples.media.streams import UndecodableError, decode_audio, resampled_length
from energon_pack.samples.skip import Reason, Skip
from support.samples import HEARD_IN, chat, sound, video, video_with_sound

av = pytest.importorskip("av", reason="sounds need PyAV")


def encoded(num_samples: int, rate: int, container: str, codec: str, layout: str = "mono", **more: Any) -> bytes:
    """A sound of noise in a file of any kind."""
    file = io.BytesIO()
    with av.open(file, "w", format=container, **more) as writer:
        stream: Any = writer.add_stream(codec, rate=rate)
        stream.layout = layout
        values = np.random.default_rng(num_samples).uniform(-0.5, 0.5, (len(stream.layout.channels), num_samples))
        frame = av.AudioFrame.from_ndarray(values.astype(np.float32), format="fltp", layout=layout)
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        writer.mux(stream.encode(frame))
        writer.mux(stream.encode(None))
    return file.getvalue()


#: container, encoder, rate, extension of the content
KINDS = [
    ("wav", "pcm_u8", 8000, "wav"),
    ("wav", "pcm_s24le", 44_100, "wav"),
    ("wav", "pcm_f32le", 48_000, "wav"),
    ("wav", "adpcm_ima_wav", 16_000, "wav"),
    ("aiff", "pcm_s16be", 22_050, "aiff"),
    ("flac", "flac", 96_000, "flac"),
    ("ogg", "libopus", 16_000, "ogg"),
    ("webm", "libopus", 48_000, "mka"),
    ("mp3", "libmp3lame", 22_050, "mp3"),
    ("mov", "aac", 44_100, "m4a"),
    ("adts", "aac", 16_000, "aac"),
]


@pytest.mark.parametrize(("container", "codec", "rate", "extension"), KINDS, ids=lambda value: str(value))
@pytest.mark.parametrize("layout", ["mono", "stereo"])
def test_as_many_samples_as_training_decodes(
    container: str, codec: str, rate: int, extension: str, layout: str
) -> None:
    """Were the two not one, a sample would have another length in training than it was packed with."""
    for num_samples in (2049, 20_011) if codec == "aac" else (1, 401, 20_011):
        try:
            data = encoded(num_samples, rate, container, codec, layout)
        except av.FFmpegError:  # some encoders want more than one sample
            continue
        found = probe(io.BytesIO(data))
        assert (found.kind, found.extension) == ("audio", extension)
        assert len(decode_audio(data, found.rate)) == found.num_samples > 0
        for wanted in (16_000, 24_000):
            assert len(decode_audio(data, wanted)) == resampled_length(found.num_samples, found.rate, wanted)


def test_a_wav_by_head() -> None:
    assert probe(io.BytesIO(sound(22_051, 22_050, 2))) == Media("audio", 0, 0, "wav", num_samples=22_051, rate=22_050)
    assert resampled_length(22_051, 22_050, 16_000) == 16_001  # 16,000.7
    assert describe(Media("audio", num_samples=8000, rate=16_000)) == "a sound of 8,000 samples at 16,000 a second"


def test_channels_are_heard_alike() -> None:
    """A sum of two would be twice as loud as one."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((2, 2, 16_000, 0, "NONE", ""))
        writer.writeframes(np.array([[16384, 0], [-16384, -16384]], "<i2").tobytes())
    assert decode_audio(file.getvalue(), 16_000).tolist() == [0.25, -0.5]


@pytest.mark.parametrize(("container", "codec"), [("ipod", "aac"), ("ogg", "libopus"), ("matroska", "aac")])
def test_eight_channels(container: str, codec: str) -> None:
    """Were their planes read as those of a stereo sound are, the process would end without a word."""
    file, values = io.BytesIO(), np.random.default_rng(0).integers(-9000, 9000, (9600, 8)).astype(np.int16)
    with av.open(file, "w", format=container) as writer:
        stream: Any = writer.add_stream(codec, rate=48_000, layout="7.1")
        frame = av.AudioFrame.from_ndarray(values.reshape(1, -1), format="s16", layout="7.1")
        frame.sample_rate, frame.pts, frame.time_base = 48_000, 0, Fraction(1, 48_000)
        writer.mux(stream.encode(frame))
        writer.mux(stream.encode(None))
    found = probe(io.BytesIO(file.getvalue()))
    samples = decode_audio(file.getvalue(), 48_000)
    assert len(samples) == found.num_samples >= 9600
    assert 0.01 < samples.std() < 0.2


def test_what_has_pictures_is_a_video() -> None:
    """An mp4 and an mkv may hold a sound alone: only their streams tell."""
    assert probe(io.BytesIO(video())).kind == "video"
    assert probe(io.BytesIO(video(format="matroska"))).kind == "video"
    assert probe(io.BytesIO(encoded(9000, 16_000, "mp4", "aac"))).kind == "audio"


@pytest.mark.parametrize(("container", "extension"), [("mp4", "mp4"), ("matroska", "mkv")])
def test_a_sound_in_the_container_of_a_video_is_trained_as_a_sound(container: str, extension: str) -> None:
    """It was packed as a sound, and read unpacked as a video: "1 audio in the text for 1 video"."""
    name = f"0.{extension}"
    own = chat("<audio>q", "a", audios=[name])
    sample = load_multi_mix_qa({"json": own, name: encoded(9000, 16_000, container, "aac")})
    assert sample["video"] is None
    assert len(sample["audio"]) == 1


def hostile() -> Iterator[tuple[str, bytes, str]]:
    wav, mp3 = sound(800), encoded(9000, 16_000, "mp3", "libmp3lame")
    flac, opus = encoded(9000, 16_000, "flac", "flac"), encoded(9000, 16_000, "ogg", "libopus")
    yield "no samples", sound(0), "a sound of 0 samples"
    yield "cut", wav[:-100], "cut short: its header promises 1,600 bytes, 1,500 are there"
    huge = struct.pack("<I", 3_000_000_000)
    yield "3 GB declared", wav[:4] + huge + wav[8:40] + huge + wav[44:], "promises 3,000,000,000 bytes"
    yield "only a header", wav[:30], "cut short"
    yield "no rate", wav[:24] + bytes(4) + wav[28:], "a sound of 800 samples, 0 a second"
    yield "an MP3 that lacks its end", mp3[: len(mp3) // 2], "cut short: its header promises"
    yield "a bomb of ID3", b"ID3\x04\x00\x00\x7f\x7f\x7f\x7f" + bytes(500), "not a readable sound"
    yield "nothing", b"fLaC" + bytes(20), "not a readable sound"
    yield "a FLAC of garbage", flac[:60] + bytes(400), "not a readable sound"
    yield "an Ogg of garbage", opus[:100] + bytes(400), "not a readable sound"
    nan = np.full(64, np.nan, "<f4").tobytes()
    head = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 3, 1, 16_000, 64_000, 4, 32) + b"data" + struct.pack("<I", 256)
    yield "no numbers", b"RIFF" + struct.pack("<I", len(head) + 256) + head + nan, "samples that are no numbers"


@pytest.mark.parametrize(("data", "detail"), [pytest.param(*of, id=name) for name, *of in hostile()])
def test_a_bad_sound_costs_its_sample(data: bytes, detail: str) -> None:
    with pytest.raises(Skip, match=f"unreadable_media: .*{detail}"):
        probe(io.BytesIO(data))


ID3V1 = b"TAG" + bytes(125)


@pytest.mark.parametrize("behind", [b"", ID3V1, b"APETAGEX" + bytes(24) + ID3V1])
def test_an_mp3_that_promises_nothing_is_decoded_to_its_end(behind: bytes) -> None:
    """FFmpeg guesses the length by the bytes, and counts the tag, too: a whole sound was refused as cut short."""
    data = encoded(220_500, 44_100, "mp3", "libmp3lame", options={"write_xing": "0"})
    assert b"Info" not in data
    found = probe(io.BytesIO(data + behind))
    assert found.num_samples == len(decode_audio(data + behind, 44_100)) >= 220_500


@pytest.mark.parametrize("before", [b"", b"ID3\x03\0\0\0\0\x01\0" + bytes(128)])
def test_an_mp3_that_counts_its_frames_and_was_cut_is_none(before: bytes) -> None:
    data = before + encoded(220_500, 44_100, "mp3", "libmp3lame")
    assert probe(io.BytesIO(data + ID3V1)).num_samples == 220_500
    with pytest.raises(Skip, match="its header promises 220,500 samples"):
        probe(io.BytesIO(data[: len(data) * 9 // 10]))


def sized(wav: bytes, riff: int, data: int) -> bytes:
    """The same WAV with other sizes in its header."""
    return wav[:4] + struct.pack("<I", riff) + wav[8:40] + struct.pack("<I", data) + wav[44:]


_ALL = 0xFFFFFFFF


#: sizes that FFmpeg, SoX and arecord write; none at all; a whole of the right size; one that counts its header
PIPED = ((_ALL, _ALL), (0x7FFFF024, 0x7FFFF000), (0x80000024, 0x80000000), (0, 0), (1636, 99_999_999), (1636, 1608))


@pytest.mark.parametrize(("riff", "size"), PIPED)
def test_a_wav_from_a_pipe_is_whole(riff: int, size: int) -> None:
    """Its program could not go back to write the size: such sounds were refused as cut short."""
    data = sized(sound(800), riff, size)
    assert probe(io.BytesIO(data)).num_samples == 800 == len(decode_audio(data, 16_000))


@pytest.mark.parametrize(("riff", "size"), [(1636, 1600), (3_000_000_036, 3_000_000_000)])
def test_a_wav_that_was_cut_is_none(riff: int, size: int) -> None:
    with pytest.raises(Skip, match=f"cut short: its header promises {size:,} bytes, 1,590 are there"):
        probe(io.BytesIO(sized(sound(800), riff, size)[:-10]))


def test_a_wav_of_floats_that_was_cut_is_none() -> None:
    """It was decoded without a look at its size, and packed with the samples that were left."""
    head = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 3, 1, 16_000, 64_000, 4, 32) + b"data" + struct.pack("<I", 3200)
    data = b"RIFF" + struct.pack("<I", len(head) + 3200) + head + bytes(3200)
    assert probe(io.BytesIO(data)).num_samples == 800
    with pytest.raises(Skip, match="cut short: its header promises 3,200 bytes, 3,000 are there"):
        probe(io.BytesIO(data[:-200]))


def test_chunks_behind_no_samples_are_no_sound() -> None:
    """FFmpeg decodes them as samples."""
    wav = sound(0)[:40] + bytes(4) + b"LIST" + struct.pack("<I", 4) + b"INFO"
    with pytest.raises(Skip, match="a sound of 0 samples"):
        probe(io.BytesIO(wav))


@pytest.mark.parametrize("size", [0x7F000008, _ALL])
def test_an_aiff_from_a_pipe_is_whole(size: int) -> None:
    samples = b"\1\2" * 800
    common = b"COMM" + struct.pack(">IhIhHQ", 18, 1, size // 2 % (1 << 31), 16, 16383 + 13, 16_000 << 50)
    data = b"FORM" + struct.pack(">I", size) + b"AIFF" + common + b"SSND" + struct.pack(">III", size, 0, 0) + samples
    assert probe(io.BytesIO(data)).num_samples == 800 == len(decode_audio(data, 16_000))


def test_a_sound_of_hours_is_none() -> None:
    """Decoded, it would fill the memory of whoever trains on it."""
    wav = io.BytesIO(sound(5 * 3600, 1))
    with pytest.raises(Skip, match=r"a sound of 5\.0 hours: more than 4"):
        probe_sound_length(wav, next(format for format in FORMATS if format.extension == "wav"))


def test_what_is_no_sound_is_not_decoded() -> None:
    with pytest.raises(UndecodableError, match="there is no sound in it"):
        decode_audio(video(), 16_000)


M4A = encoded(60_011, 44_100, "ipod", "aac")
MP4 = video_with_sound(rate=44_100, num_samples=44_100)
MKV = video_with_sound(rate=44_100, num_samples=44_100, format="matroska")


def test_a_damaged_packet_is_seen_before_training() -> None:
    """The tables of an m4a know nothing of it: the sound was packed, and training refused it."""
    middle = M4A.index(b"mdat") + 4000
    with pytest.raises(Skip, match="unreadable_media: not a readable sound"):
        probe(io.BytesIO(M4A[:middle] + b"\xff" * 400 + M4A[middle + 400 :]))


@pytest.mark.parametrize("data", [M4A, encoded(9000, 48_000, "webm", "libopus"), MP4], ids=["m4a", "webm", "mp4"])
def test_without_the_decoder_a_sound_is_refused_with_its_remedy(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
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
        track = probe_sound_length_of_video(io.BytesIO(data))
        assert track is not None
        assert len(decode_audio(data, track[1])) == track[0]


def test_a_clip_without_sound() -> None:
    for format in ("mp4", "matroska"):
        assert probe_sound_length_of_video(io.BytesIO(video(format=format))) is None


def test_names_in_another_alphabet() -> None:
    """Tags of old files are not in UTF-8. A file whose header counts must not be refused in training for them."""
    for data in (M4A, MP4.replace(b"SoundHandler", b"S\xe9undHandler"), MKV.replace(b"Lavf", b"L\xe4vf")):
        track = probe_sound_length_of_video(io.BytesIO(data))
        assert track is not None
        assert len(decode_audio(data, track[1])) == track[0]
        assert probe(io.BytesIO(data)).kind == ("audio" if data == M4A else "video")


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
