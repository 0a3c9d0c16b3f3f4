"""Videos: what the header says is what is decoded, and the frames that were counted are those that are shown."""

import io
import os
import subprocess
import sys
import tarfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from energon_pack.samples.media.kinds import find_media_format
from energon_pack.samples.media.medium import Media, mp4_boxes
from energon_pack.samples.media.read_media import probe, with_requested_settings
from energon_pack.samples.member import NO_OPTIONS
from energon_pack.samples.placeholders import place_media
from energon_pack.samples.sample import Part
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.storage import InMemoryFile
from energon_pack.templates.families.qwen_vl import Qwen3VL, QwenVL
from energon_pack.templates.families.rules import ProcessorSettings
from energon_pack.templates.families.tiles import LlavaOneVision
from energon_pack.templates.processor import load_saved_template, prepare_template
from energon_pack.templates.sample import Sample
from energon_pack.templates.settings import MediaConfig
from energon_pack.verify.members import check_medium_decodes
from support.models import of_model
from support.running import ROOT, need_torchvision
from support.samples import video

av = pytest.importorskip("av", reason="videos need PyAV")

from energon_pack.samples.media.stream_probe import decode_frame_times  # noqa: E402
from energon_pack.samples.media.streams import decode_frames  # noqa: E402

QWEN = ProcessorSettings(
    image={"patch_size": 14, "merge_size": 2, "size": {"shortest_edge": 3136, "longest_edge": 1_000_000}},
    video={"patch_size": 14, "merge_size": 2, "size": {"shortest_edge": 3136, "longest_edge": 1_000_000}},
)


LLAVA = ProcessorSettings(
    image={"size": {"height": 384, "width": 384}, "image_grid_pinpoints": [[384, 384], [384, 768]]},
    video={"do_sample_frames": True, "num_frames": 7},
    processor={"num_image_tokens": 729},
)


@pytest.mark.parametrize(("format", "extension"), [("mp4", "mp4"), ("avi", "avi"), ("matroska", "mkv")])
def test_the_header_tells_what_is_decoded(format: str, extension: str) -> None:
    data = video(format=format)
    found = probe(io.BytesIO(data))
    assert found == Media("video", 64, 48, extension, 30, 10.0)
    frames = decode_frames(data, range(30))
    assert [frame.size for frame in frames] == [(64, 48)] * 30
    with pytest.raises(ValueError, match="no frame 30"):
        decode_frames(data, [30])


def muxed(codec: str, format: str, gop: int = 30, num_b_frames: int = 0, hidden: int = 0, rate: int = 10) -> bytes:
    """30 frames of noise; as `ffmpeg -ss … -c copy` cuts them, so many of the first are hidden by an edit list."""
    file = io.BytesIO()
    with av.open(file, "w", format=format) as container:
        try:
            stream = container.add_stream(codec, rate=rate)
        except av.codec.codec.UnknownCodecError:
            pytest.skip(f"this PyAV has no {codec}")
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.gop_size, stream.codec_context.max_b_frames = gop, num_b_frames
        rng, packets = np.random.default_rng(0), []
        for _ in range(30):
            packets += stream.encode(av.VideoFrame.from_ndarray(rng.integers(0, 255, (48, 64, 3), np.uint8), "rgb24"))
        for packet in packets + stream.encode():
            shift = hidden * round(1 / (packet.time_base * rate))
            packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
            container.mux(packet)
    return file.getvalue()


@pytest.mark.parametrize("hidden", [0, 1, 7, 13, 29])
@pytest.mark.parametrize(("codec", "gop", "num_b_frames"), [("libx264", 30, 3), ("libx264", 12, 0), ("mpeg4", 12, 0)])
def test_a_clip_that_was_cut_by_an_edit_list(codec: str, gop: int, num_b_frames: int, hidden: int) -> None:
    """30 frames stand in the file, 23 are shown: a plan with the 24th ends the training at its pack."""
    data = muxed(codec, "mp4", gop, num_b_frames, hidden)
    found = probe(io.BytesIO(data))
    assert found.num_frames == 30 - hidden
    assert len(decode_frames(data, [found.num_frames - 1])) == 1
    with pytest.raises(ValueError, match=f"no frame {30 - hidden}"):
        decode_frames(data, [found.num_frames])


@pytest.mark.parametrize("keep", [1, 0.9, 0.6])
@pytest.mark.parametrize(
    ("codec", "format", "extension", "rate"),
    [
        ("libx264", "mpegts", "ts", 10),
        ("libx264", "flv", "flv", 10),
        ("wmv2", "asf", "wmv", 10),
        ("mpeg2video", "mpeg", "mpg", 25),
        ("mpeg4", "3gp", "mp4", 10),
    ],
)
def test_other_containers(codec: str, format: str, extension: str, rate: int, keep: float) -> None:
    """What is counted of one that was cut is what decodes, or it is unreadable."""
    data = muxed(codec, format, rate=rate)
    data = data[: int(len(data) * keep)]
    try:
        found = probe(io.BytesIO(data))
    except Skip as skip:
        assert keep < 1, skip  # noqa: PT017
        return
    assert (found.kind, found.extension, found.width) == ("video", extension, 64)
    assert keep < 1 or (found.num_frames, found.fps) == (30, rate)
    with av.open(io.BytesIO(data)) as container:
        assert sum(1 for _ in container.decode(container.streams.video[0])) == found.num_frames


def test_packets_that_say_that_they_are_damaged() -> None:
    data = bytearray(muxed("libx264", "mpegts"))
    middle = len(data) // 3
    data[middle : middle + 150] = b"\xaa" * 150
    with pytest.raises(Skip, match="packets are damaged"):
        probe(io.BytesIO(bytes(data)))


def filmed(format: str, codec: str, times: list[float], rate: Fraction | int, is_still: bool = False) -> bytes:
    """A film of 64×48 whose frames are shown at these seconds, with a header that says `rate`."""
    file, rng = io.BytesIO(), np.random.default_rng(0)
    with av.open(file, "w", format=format) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.time_base = tick = 1 / Fraction(rate)
        for time in times:
            pixels = np.full((48, 64, 3), 99, np.uint8) if is_still else rng.integers(0, 255, (48, 64, 3), np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, "rgb24")
            frame.pts, frame.time_base = round(time / tick), tick
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


CONTAINERS = [
    ("matroska", "libx264"),
    ("webm", "libvpx"),
    ("avi", "mpeg4"),
    ("mpegts", "mpeg2video"),
    ("flv", "flv"),
    ("asf", "wmv2"),
]


@pytest.mark.parametrize(("format", "codec"), CONTAINERS)
def test_the_rate_is_that_of_the_frames_where_the_header_says_another(format: str, codec: str) -> None:
    """The last frame of a recorded screen was packed at 1.6 s of its film, and is shown at 31 s."""
    times = [*(number / 25 for number in range(25)), *(1.0 + number for number in range(31))]
    found = probe(io.BytesIO(filmed(format, codec, times, 25)))
    assert (found.num_frames, round(found.fps, 4)) == (56, round(55 / 31, 4))


@pytest.mark.parametrize(("format", "codec"), CONTAINERS)
@pytest.mark.parametrize("num_frames", [1, 3, 60])
def test_a_rate_that_the_frames_keep_is_the_headers(format: str, codec: str, num_frames: int) -> None:
    """Times in milliseconds would make 29.97 of it, and other times of the same film in another container."""
    rate = Fraction(30_000, 1001)
    data = filmed(format, codec, [float(number / rate) for number in range(num_frames)], rate)
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        said = float(stream.average_rate or stream.guessed_rate)
    found = probe(io.BytesIO(data))
    assert (found.num_frames, found.fps) == (num_frames, said)
    assert format in ("asf", "flv") or num_frames < 3 or said == 30_000 / 1001


def test_frames_that_are_counted_by_decoding_have_times_too() -> None:
    """Frames of MPEG-4 that only repeat the last one are so small that they may be none."""
    found = probe(io.BytesIO(filmed("avi", "mpeg4", [number / 2 for number in range(20)], 10, is_still=True)))
    assert (found.num_frames, found.fps) == (20, 2.0)


def test_the_rate_is_the_headers_where_the_clock_jumps() -> None:
    """Two recordings in one file: by the times alone it would have twice the rate, or one frame in a minute."""
    times = [number / 25 for number in range(50)]
    twice = 2 * filmed("webm", "libvpx", times, 25)
    jumped = filmed("mpegts", "mpeg2video", [*times, *(3600 + time for time in times)], 25)
    for data in (twice, jumped):
        found = probe(io.BytesIO(data))
        assert (found.num_frames, found.fps) == (100, 25.0)


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
@pytest.mark.parametrize("format", ["mp4", "mov"])
def test_frames_that_build_on_what_was_cut_off_are_not_counted(format: str, codec: str) -> None:
    """Cut at a key frame without an edit list, the B-frames before it in time do not decode: training ended there."""
    whole, file = io.BytesIO(), io.BytesIO()
    params = "keyint=10:min-keyint=10:open-gop=1:bframes=3:b-adapt=0:scenecut=0:log-level=none"
    with av.open(whole, "w", format="mp4") as container:
        try:
            stream = container.add_stream(codec, rate=10, options={f"{codec.removeprefix('lib')}-params": params})
        except av.codec.codec.UnknownCodecError:
            pytest.skip(f"this PyAV has no {codec}")
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        rng = np.random.default_rng(0)
        for _ in range(40):
            pixels = rng.integers(0, 255, (48, 64, 3), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        container.mux(stream.encode())
    whole.seek(0)
    with av.open(whole) as container, av.open(file, "w", format=format) as cut:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        kept = packets[[number for number, packet in enumerate(packets) if packet.is_keyframe][1] :]
        earliest, copy = min(packet.pts for packet in kept), cut.add_stream_from_template(stream)
        assert earliest < kept[0].pts
        for packet in kept:
            packet.pts, packet.dts, packet.stream = packet.pts - earliest, packet.dts - earliest, copy
            cut.mux(packet)
    data = file.getvalue()
    found = probe(io.BytesIO(data))
    assert found.num_frames < len(kept)
    assert len(decode_frames(data, [found.num_frames - 1])) == 1
    with pytest.raises(ValueError, match=f"no frame {found.num_frames}"):
        decode_frames(data, [found.num_frames])


@pytest.mark.parametrize("num_frames", [4, 30])
@pytest.mark.parametrize(("format", "codec"), [("webm", "libvpx"), ("mpegts", "mpeg2video")])
def test_a_film_whose_pictures_change_their_size_is_named(format: str, codec: str, num_frames: int) -> None:
    """It was measured by the later size, and ended training. A late change is seen only where all is decoded."""
    file = io.BytesIO()
    with av.open(file, "w", format=format) as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number, (width, height) in enumerate(((64, 48), (32, 32))):
            encoder = stream.codec_context
            if number:
                encoder = av.CodecContext.create(codec, "w")
                encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuv420p"
                encoder.time_base, encoder.framerate = Fraction(1, 25), Fraction(25)
            for shown in range(num_frames):
                frame = av.VideoFrame.from_ndarray(np.full((height, width, 3), 8 * shown, np.uint8), "rgb24")
                frame.pts, frame.time_base = number * num_frames + shown, Fraction(1, 25)
                for packet in encoder.encode(frame):
                    packet.stream = stream
                    container.mux(packet)
            for packet in encoder.encode(None):
                packet.stream = stream
                container.mux(packet)
    data = file.getvalue()
    named = "a film whose pictures change from 64×48 to 32×32 pixels"
    with pytest.raises(Skip, match=named) as skip:
        (probe if num_frames < 16 else decode_frame_times)(io.BytesIO(data))
    assert skip.value.reason is Reason.UNSUPPORTED_MEDIA
    (said,) = check_medium_decodes(InMemoryFile(data, ""), Part("s000.v00.mkv", 0, len(data)))
    assert named in said


@pytest.mark.parametrize("name", [b"wide", b"free", b"skip", b"pnot"])
def test_an_old_quicktime_begins_with_any_box(name: bytes) -> None:
    """Without `ftyp` it was no known video."""
    data = video(format="mov")
    assert data[4:8] == b"ftyp"
    for film in (data[:4] + name + data[8:], data.replace(b"ftyp", b"free", 1)[int.from_bytes(data[:4], "big") :]):
        found = find_media_format(film[:16])
        assert found is not None
        assert (found.kind, found.extension) == ("video", "mp4")
    assert probe(io.BytesIO(data[:4] + name + data[8:])).num_frames == 30


@pytest.mark.parametrize(
    "text", [b"The wide river and the sea", b"I'm free to say what I want", "Öl, free für alle".encode()]
)
def test_a_text_is_no_old_quicktime(text: bytes) -> None:
    assert find_media_format(text[:16]) is None


@pytest.mark.parametrize("behind", [b"\n", b"\0\0\0", b"\0\0\0\x08fre"])
def test_a_few_bytes_behind_an_mp4_are_no_cut(behind: bytes) -> None:
    """The whole film was refused as cut short."""
    assert probe(io.BytesIO(video() + behind)).num_frames == 30


def test_a_cut_within_the_head_of_a_box_is_a_cut() -> None:
    """Behind a whole header, or a whole fragment, a few bytes are where the frames began."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4", options={"movflags": "frag_keyframe+empty_moov"}) as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt, stream.codec_context.gop_size = 64, 48, "yuv420p", 10
        for number in range(30):
            pixels = np.full((48, 64, 3), 8 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        container.mux(stream.encode())
    data = file.getvalue()
    assert probe(io.BytesIO(data)).num_frames == 30
    ends = [end for name, _, end in mp4_boxes(io.BytesIO(data)) if name in (b"moov", b"mdat")]
    assert len(ends) > 2
    for end in ends[:-1]:
        with pytest.raises(Skip, match="cut short"):
            probe(io.BytesIO(data[: end + 5]))


def test_the_frames_asked_for_are_those_that_come() -> None:
    shown = decode_frames(video(), [3, 3, 20])
    greys = [np.asarray(frame).mean() / 8 for frame in shown]
    assert [round(grey) for grey in greys] == [3, 3, 20]


@pytest.mark.parametrize("keep", [0.3, 0.7, 0.99])
@pytest.mark.parametrize("format", ["mp4", "avi"])
def test_a_cut_video_is_unreadable(format: str, keep: float) -> None:
    data = video(format=format)
    with pytest.raises(Skip) as skip:
        probe(io.BytesIO(data[: int(len(data) * keep)]))
    assert skip.value.reason is Reason.UNREADABLE_MEDIA


# -------------------------------------------------------------------------------------------- which frames are chosen


def clip(num_frames: int, fps: float = 10.0) -> Media:
    return Media("video", 56, 56, "mp4", num_frames, fps)


SAMPLED = {"do_sample_frames": True}


@pytest.mark.parametrize(
    ("make", "settings", "num_frames", "expected"),
    [
        (QwenVL, {}, 5, [0, 1, 2, 3, 4]),  # all
        (QwenVL, {**SAMPLED, "fps": 2, "min_frames": 2}, 30, [0, 5, 10, 15, 20, 25]),
        (QwenVL, {**SAMPLED, "fps": 2, "max_frames": 4}, 30, [0, 7, 15, 22]),
        (QwenVL, {**SAMPLED, "num_frames": 3}, 30, [0, 7, 15, 22]),  # 3 rounds to 4: whole temporal patches
        (Qwen3VL, {}, 30, [0, 6, 12, 17, 23, 29]),  # it has the first and the last
    ],
)
def test_qwens_choice(make: Any, settings: dict[str, object], num_frames: int, expected: list[int]) -> None:
    assert make(ProcessorSettings(QWEN.image, {**QWEN.video, **settings})).frames.choose(clip(num_frames)) == expected
    few = QwenVL(ProcessorSettings(QWEN.image, {**QWEN.video, **SAMPLED, "num_frames": 8}))
    with pytest.raises(Skip, match="8 frames are asked for, the video has 5"):
        few.frames.choose(clip(5))


def test_times_stand_before_each_pair_of_frames() -> None:
    text, num_tokens = Qwen3VL(QWEN).expand(clip(30), [0, 6, 12])
    patch = "<|vision_start|>" + "<|video_pad|>" * 4 + "<|vision_end|>"
    assert text == f"<0.3 seconds>{patch}<1.2 seconds>{patch}"  # (0 + 0.6) / 2, and the last frame twice
    assert num_tokens == 8


def test_a_video_is_measured_and_shown_with_the_same_frames(demo: tuple[Path, Path], cache: Path) -> None:
    settings = of_model("qwen_vl", demo[1], MediaConfig(video="uniform", num_frames=6))
    template = load_saved_template(prepare_template(settings, cache))
    data = video()
    medium = probe(io.BytesIO(data))
    messages = [{"role": "user", "content": "<video>what?"}, {"role": "assistant", "content": "grey"}]
    placed, _, _ = place_media(messages, ["video"])
    rendered = template.render(Sample(placed, [medium]))
    chosen = template.choose_frames(medium)
    frames = template.prepare_frames(decode_frames(data, chosen))
    assert (len(frames), rendered.num_visual_tokens) == (6, 3 * 2 * 2)  # 64×48 pixels become 2×2 tokens
    assert rendered.text.count("<|video_pad|>") == rendered.num_visual_tokens


def test_qwen_vl_utils_resizes_frames_itself(demo: tuple[Path, Path], cache: Path) -> None:
    settings = of_model("qwen_vl", demo[1], MediaConfig(video="qwen_vl_utils"))
    template = load_saved_template(prepare_template(settings, cache))
    frames = template.prepare_frames([Image.new("RGB", (64, 48))] * 4)
    width, height = frames[0].size
    assert width % 28 == height % 28 == 0
    assert width * height >= 128 * 28 * 28


@pytest.mark.parametrize(
    ("rules", "settings"),
    [
        (QwenVL, {"do_sample_frames": True, "fps": 2}),
        (QwenVL, {"do_sample_frames": True, "num_frames": 14}),
        (Qwen3VL, {"fps": 3}),
        (Qwen3VL, {"fps": None, "num_frames": 8}),
    ],
)
def test_indices_are_transformers_own(rules: type[QwenVL], settings: dict[str, object]) -> None:
    """For every length up to 400 frames: `torch.arange` computes in single precision, and so do we."""
    need_torchvision()
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    from transformers.video_utils import VideoMetadata

    ours = rules(ProcessorSettings(QWEN.image, {**QWEN.video, **settings})).frames
    theirs: Any = (Qwen3VLVideoProcessor if rules is Qwen3VL else Qwen2VLVideoProcessor)()
    asked = {name: value for name, value in settings.items() if name in ("fps", "num_frames") and value}
    if rules is Qwen3VL and "num_frames" in asked:
        theirs.fps = None
    for total in range(1, 400):
        try:
            expected = theirs.sample_frames(VideoMetadata(total_num_frames=total, fps=25.0), **asked).tolist()
        except (ValueError, ZeroDivisionError):
            expected = None
        try:
            found = ours.choose(clip(total, 25.0))
        except Skip:
            found = None
        if expected and expected[-1] >= total:  # transformers itself fails on these when it takes the frames
            expected = expected[:-1]
        assert found == expected, total


def test_llavas_choice_is_in_whole_numbers() -> None:
    frames = LlavaOneVision(LLAVA).frames
    assert frames.choose(clip(17)) == [0, 2, 4, 7, 9, 12, 14]  # i × 17 // 7


# ------------------------------------------------------------------------------------ frames that a sample lists itself


def test_listed_frames_are_those_the_model_sees(demo: tuple[Path, Path], cache: Path) -> None:
    """`video_frames` goes before the model's own choice; each list belongs to the video at its place."""
    template = load_saved_template(prepare_template(of_model("qwen_vl", demo[1]), cache))
    image, first, second = with_requested_settings(
        [Media("image", 56, 56), clip(30), clip(9)], [[0, 10, 20, 29], None], NO_OPTIONS
    )
    assert image == Media("image", 56, 56)
    assert template.choose_frames(first) == [0, 10, 20, 29]
    assert template.choose_frames(second) == list(range(9))
    assert with_requested_settings([clip(30)], None, NO_OPTIONS) == [clip(30)]


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        ([[0], [1]], Reason.BAD_MESSAGE),
        ("0,1", Reason.BAD_MESSAGE),
        ([[]], Reason.BAD_MESSAGE),
        ([[0.5]], Reason.BAD_MESSAGE),
        ([[3, 1]], Reason.UNREADABLE_MEDIA),
        ([[0, 30]], Reason.UNREADABLE_MEDIA),
        ([[-1]], Reason.UNREADABLE_MEDIA),
    ],
)
def test_frames_that_are_not_there_cost_the_sample(listed: object, reason: Reason) -> None:
    with pytest.raises(Skip) as skip:
        with_requested_settings([clip(30)], listed, NO_OPTIONS)
    assert skip.value.reason is reason


def test_ffmpeg_does_not_call_python() -> None:
    """A level other than None has FFmpeg's threads take the GIL for each message: runs then deadlocked by chance."""
    data = video()
    probe(io.BytesIO(data))
    decode_frames(data, [3])
    assert av.logging.get_level() is None


_DECODE = """
import io, sys
import av
from energon_pack.samples.media.read_media import probe
from energon_pack.samples.media.streams import decode_frames
av.logging.set_level(av.logging.PANIC if sys.argv[2] == "python" else None)
data = open(sys.argv[1], "rb").read()
num_frames = probe(io.BytesIO(data)).num_frames
for _ in range(500):
    decode_frames(data, range(0, num_frames, 18))
"""


@pytest.mark.slow
@pytest.mark.parametrize("log", ["none", "python"])
def test_two_thousand_decodes_end(real: Path, tmp_path: Path, log: str) -> None:
    """In four processes, each of which hung within 100 s; also where a user has turned PyAV's logging on."""
    with tarfile.open(real / "wds" / "video_demo" / "video_demo-000001.tar") as tar:
        clips = [member for member in tar if "000019" in member.name and not member.name.endswith("json")]
        file = tar.extractfile(clips[-1])
        assert file is not None
        (tmp_path / "clip").write_bytes(file.read())
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _DECODE, tmp_path / "clip", log], env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        for _ in range(4)
    ]
    try:
        assert [process.wait(timeout=900) for process in processes] == [0, 0, 0, 0]
    finally:
        for process in processes:
            process.kill()
