"""Frames are counted as they decode, whatever a header or the packets of a file say."""

import io
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_pack.samples.media.read_media import probe
from energon_pack.verify import Options, verify
from support.packed import Make, lengths, packed
from support.running import need_torchvision

av = pytest.importorskip("av", reason="videos need PyAV")


def muxed(
    codec: str, format: str, cut: int = 0, change: Callable[[int, bytes], bytes] = lambda _, data: data, **options: str
) -> bytes:
    """Thirty frames of noise, without the first `cut` packets; `change` makes other bytes of each."""
    file = io.BytesIO()
    with av.open(file, "w", format=format) as container:
        stream: Any = container.add_stream(codec, rate=25, options=options)
        stream.width, stream.height = 64, 48
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.gop_size = 12
        noise = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
        packets: list[Any] = []
        for number in range(30):
            packets += stream.encode(av.VideoFrame.from_ndarray(np.roll(noise, number, 1), "rgb24"))
        for number, packet in enumerate([*packets, *stream.encode()][cut:]):
            changed = av.Packet(change(number, bytes(packet)))
            changed.stream, changed.pts, changed.dts = stream, packet.pts, packet.dts
            changed.time_base, changed.is_keyframe = packet.time_base, packet.is_keyframe
            container.mux(changed)
    return file.getvalue()


def with_length(data: bytes, number: int) -> bytes:
    """An AVI whose two headers count so many frames."""
    for name, offset in ((b"avih", 24), (b"strh", 40)):
        place = data.index(name) + offset
        data = data[:place] + struct.pack("<I", number) + data[place + 4 :]
    return data


def num_decoded(data: bytes) -> int:
    with av.open(io.BytesIO(data)) as container:
        return sum(1 for _ in container.decode(video=0))


def dropping(numbers: Sequence[int]) -> Callable[[int, bytes], bytes]:
    """Change these frames of MPEG-4 so that they say only to show the last frame again (`vop_coded` is 0)."""

    def change(number: int, data: bytes) -> bytes:
        place = data.index(b"\0\0\1\xb6") + 5
        return data[:place] + bytes([data[place] & 0xBF]) + data[place + 1 :] if number in numbers else data

    return change


LYING = {
    "avi_few.avi": lambda: with_length(muxed("mjpeg", "avi"), 3),
    "avi_many.avi": lambda: with_length(muxed("mjpeg", "avi"), 1000),
    "avi_cut.avi": lambda: muxed("mpeg2video", "avi", 5),
    "h264_many.avi": lambda: with_length(muxed("libx264", "avi"), 77),
    "wmv.wmv": lambda: muxed("wmv2", "asf"),
    "wmv_cut.wmv": lambda: muxed("msmpeg4", "asf", 5),
    "flv.flv": lambda: muxed("flv", "flv"),
    "flv_cut.flv": lambda: muxed("libx264", "flv", 5),
    "mpg.mpg": lambda: muxed("mpeg2video", "mpeg"),
    "mpg_cut.mpg": lambda: muxed("mpeg2video", "mpeg", 5),
    "ts_cut.ts": lambda: muxed("libx264", "mpegts", 5),
    "mkv_cut.mkv": lambda: muxed("libx264", "matroska", 5),
    "dropped.avi": lambda: muxed("mpeg4", "avi", change=lambda n, data: b"\0\0\1\xb6\x50\0\0" if n == 20 else data),
}


@pytest.mark.parametrize("name", LYING)
def test_a_video_has_as_many_frames_as_decode(name: str) -> None:
    data = LYING[name]()
    assert probe(io.BytesIO(data)).num_frames == num_decoded(data)


def source_of(folder: Path, videos: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, data in videos.items():
        (folder / name).write_bytes(data)
    turns = [{"role": "user", "content": "<video>What is it?"}, {"role": "assistant", "content": "Noise."}]
    lines = [json.dumps({"messages": turns, "videos": [name]}) for name in videos]
    (folder / "videos.jsonl").write_text("\n".join(lines))
    return folder / "videos.jsonl"


@pytest.mark.long("the audit decodes with the full processor")
def test_where_a_drawn_video_hides_frames_its_whole_file_is_decoded(
    config: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of three clips drop six frames each behind the first sixteen, in packets as large as others."""
    need_torchvision()
    clips = {
        "plain.avi": muxed("mpeg4", "avi"),
        "a.avi": muxed("mpeg4", "avi", change=dropping(range(17, 23))),
        "b.avi": muxed("mpeg4", "avi", change=dropping(range(18, 24))),
    }
    decoded = {name: num_decoded(data) for name, data in clips.items()}
    assert decoded == {"plain.avi": 30, "a.avi": 24, "b.avi": 24}
    source = source_of(tmp_path / "source", clips)
    (tmp_path / "other").mkdir()
    texts = json.dumps({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi"}]})
    (tmp_path / "other" / "texts.jsonl").write_text(texts)
    folder = packed(config([str(source), str(tmp_path / "other" / "texts.jsonl")], measure__verify=1.0))
    line = "source/videos.jsonl:2: 30 frames in the file, 24 when decoded: the videos of 1 source file are counted by"
    assert line in capsys.readouterr().out
    shorter = lengths(folder)["source/videos.jsonl", "2", ""][0]
    assert lengths(folder)["source/videos.jsonl", "3", ""][0] == shorter
    assert lengths(folder)["source/videos.jsonl", "1", ""][0] > shorter
    assert json.loads((folder / "report.json").read_text())["files_decoded"] == ["source/videos.jsonl"]
    findings = verify(folder, Options(source=[], num_workers=1))
    assert findings.num_defects.total() == 0, findings.first_defects(3)
