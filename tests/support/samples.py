"""Samples and sources that a test makes: pictures, videos, frames with times, conversations, tars, JSON lines."""

import io
import json
import os
import random
import tarfile
import wave
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from energon_pack.dataset.tar_writer import tar_header
from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.media.medium import Media
from energon_pack.samples.sample import MediaPart


def picture(width: int = 40, height: int = 30, format: str = "JPEG", **save: Any) -> bytes:
    """An image file."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(file, format, **save)
    return file.getvalue()


def noise(seed: int, side: int = 256) -> bytes:
    """A PNG of three bytes a pixel, which nothing makes smaller."""
    file = io.BytesIO()
    Image.frombytes("RGB", (side, side), random.Random(seed).randbytes(3 * side * side)).save(file, "PNG")
    return file.getvalue()


def video(num_frames: int = 30, width: int = 64, height: int = 48, fps: int = 10, format: str = "mp4") -> bytes:
    """A video whose nth frame is n grey."""
    av = pytest.importorskip("av", reason="videos need PyAV")
    file = io.BytesIO()
    with av.open(file, "w", format=format) as container:
        stream = container.add_stream("mpeg4", rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for i in range(num_frames):
            frame = av.VideoFrame.from_ndarray(np.full((height, width, 3), 8 * i, np.uint8), "rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


#: container → encoders of pictures and of sounds that it holds
HEARD_IN = {
    "mp4": ("mpeg4", ("aac",)),
    "matroska": ("mpeg4", ("libopus", "aac", "flac", "pcm_s16le")),
    "webm": ("libvpx", ("libopus", "vorbis")),
}


def video_with_sound(
    num_frames: int = 12,
    fps: float = 10,
    num_samples: int = 20_000,
    rate: int = 16_000,
    format: str = "mp4",
    codec: str = "aac",
    width: int = 64,
    height: int = 48,
    channels: int = 1,
    volume: float = 0.5,
) -> bytes:
    """A video of noise with a sound of noise, either of which may be longer."""
    av = pytest.importorskip("av", reason="videos need PyAV")
    channels = 2 if codec == "vorbis" else channels  # FFmpeg's own encoder takes no other
    rng, file, layout = np.random.default_rng(num_samples), io.BytesIO(), {1: "mono", 2: "stereo"}[channels]
    with av.open(file, "w", format=format) as container:
        seen = container.add_stream(HEARD_IN[format][0], rate=Fraction(fps).limit_denominator(1001))
        seen.width, seen.height, seen.pix_fmt = width, height, "yuv420p"
        heard = container.add_stream(codec, rate=rate, options={"strict": "experimental"})
        heard.layout = layout
        for _ in range(num_frames):
            pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
            container.mux(seen.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        values = rng.uniform(-volume, volume, (channels, num_samples)).astype(np.float32)
        frame = av.AudioFrame.from_ndarray(values, format="fltp", layout=layout)
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        container.mux(heard.encode(frame))
        for stream in (seen, heard):
            container.mux(stream.encode())
    return file.getvalue()


def sound(num_samples: int = 16_000, rate: int = 16_000, channels: int = 1) -> bytes:
    """A WAV of noise, which is another for each length."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((channels, 2, rate, 0, "NONE", ""))
        values = np.random.default_rng(num_samples).integers(-9000, 9000, (num_samples, channels))
        writer.writeframes(values.astype("<i2").tobytes())
    return file.getvalue()


def npy(t: int, num: int = 4) -> bytes:
    file = io.BytesIO()
    np.save(file, np.full((num, 3), t))
    return file.getvalue()


def read(
    messages: Sequence[Any],
    tools: list[Any] | None = None,
    parts: Sequence[tuple[str, str]] = (),
    media: Sequence[Media] = (),
    **fields: Any,
) -> ReadSample:
    """A sample as it is read, with media of these kinds and extensions; `media` as a model sees them."""
    named = [MediaPart(f"{number}.{ext}", 0, 0, kind, ext) for number, (kind, ext) in enumerate(parts)]
    return ReadSample(b"", [*messages], [*messages], tools, fields, named, [], [], False, [*media])


def chat(*texts: str, **fields: Any) -> bytes:
    """The JSON of a sample: texts are the turns, user first."""
    turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    return json.dumps({"messages": turns, **fields}).encode()


def structure(content: str, has_media: bool) -> Any:
    """A user's string as transformers' chat templates want it: placeholders as parts of their own, nothing stripped."""
    if not has_media:
        return content
    pieces = content.split("<image>")
    parts: list[dict[str, str]] = [{"type": "text", "text": pieces[0]}]
    for piece in pieces[1:]:
        parts += [{"type": "image"}, {"type": "text", "text": piece}]
    return parts


def write_tar(path: Path, members: dict[str, bytes] | list[tuple[str, bytes]], **how: Any) -> Path:
    """A tar of the members, in their order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **how) as tar:
        for name, data in members.items() if isinstance(members, dict) else members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


WORDS = "one two three four five six seven eight nine ten " * 4


def write_source(folder: Path) -> Path:
    """Images as files, frames with times, several turns, text, drawn by a ratio; three are no samples."""
    folder.mkdir()
    for i in range(6):
        (folder / f"f{i}.jpg").write_bytes(picture(40 + 28 * i, 60))
        (folder / f"f{i}.npy").write_bytes(npy(15 * i))
    (folder / "p.png").write_bytes(picture(50, 50, "PNG"))
    (folder / "no name").write_bytes(picture(33, 44))
    frames, names = ([f"f{i}.{end}" for i in range(6)] for end in ("jpg", "npy"))
    video = {"images": [frames], "prompts": ["<video>what?"], "captions": ["this"]}
    two = {"images": ["f0.jpg", "p.png"], "prompts": ["<image>a", "<image>b"], "captions": ["1", "2"]}
    lines: list[Any] = [
        {**video, "patch_positions": [names], "fps": 30, "id": 7},
        {**video, "patch_positions": [*names[:5], ""], "fps": [2], "timestamp_decimal": 2},
        {**two, "patch_positions": ["f0.npy", None]},
        *({**two, "id": i} for i in range(8)),
        {"images": ["no name"], "prompts": ["<image>?"], "captions": [WORDS]},
        {"prompts": [f"{i} {WORDS}" for i in range(9)], "captions": [f"{i} {WORDS}" for i in range(9)], "id": "long"},
        {"messages": [{"role": r, "content": "x"} for r in ("system", "user", "assistant")]},
        {"images": ["gone.jpg"], "prompts": ["<image>?"], "captions": ["yes"]},
    ]
    texts = [{"prompts": [f"{i} {WORDS}"], "captions": [f"{i} {WORDS}"]} for i in range(20)]
    for name, values in (("media", lines), ("text", texts)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in values) + "}\n")
    meta = {"media": {"file_name": "media.jsonl"}, "text": {"file_name": "text.jsonl", "sample_ratio": 1.5}}
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder / "meta.json"


def renamed_in_place(shard: Path) -> None:
    """Give the first member of a shard another name; the size and the time of the file stay."""
    status = shard.stat()
    data = bytearray(shard.read_bytes())
    with tarfile.open(shard) as tar:
        first = next(iter(tar))
    data[first.offset : first.offset_data] = tar_header(first.name.swapcase(), first.size)
    shard.write_bytes(data)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
