"""Reads videos with PyAV: size, rate and number of frames from the header for measuring, pixels for training.

Frames are used as they are stored: a rotation that the container asks players for is not applied, as in PyAV itself.
"""

import importlib
import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, BinaryIO

from PIL import Image

from energon_pack.samples.media.formats import format_of
from energon_pack.samples.skip import Reason, Skip

_HIDDEN = 0.01  # fraction of a frame that counts as a rounding error


def probe_video(file: BinaryIO) -> tuple[int, int, int, float]:
    """Return width, height, number of frames and frames a second of a video, without decoding it.

    Raises:
        Skip: `unreadable_media` if it is cut short or holds no video, `unsupported_media` without PyAV.
    """
    av = _av()
    file.seek(0)
    container_format = format_of(file.read(16))
    if container_format and container_format.is_whole and not container_format.is_whole(file):
        raise Skip(Reason.UNREADABLE_MEDIA, "the video is cut short")
    file.seek(0)
    try:
        with av.open(file, mode="r", metadata_errors="replace") as container:
            stream = container.streams.video[0]
            num_frames = _num_shown(container, stream)
            rate = stream.average_rate or stream.guessed_rate
            width, height = stream.codec_context.width, stream.codec_context.height
    except Exception as error:  # damaged bytes make FFmpeg raise anything, and each costs only its sample
        raise Skip(Reason.UNREADABLE_MEDIA, f"not a readable video: {str(error) or type(error).__name__}") from None
    if not (width and height and num_frames and rate):
        raise Skip(
            Reason.UNREADABLE_MEDIA, f"a video of {num_frames} frames of {width}×{height} pixels, {rate} a second"
        )
    return width, height, num_frames, float(rate)


def _num_shown(container: Any, stream: Any) -> int:
    """Count the frames of a video that a player shows, without decoding any.

    The index of an mp4 lists more frames if an edit list hides the frames before a cut (`ffmpeg -ss … -c copy`).

    Raises:
        ValueError: some of its packets are damaged.
    """
    if stream.frames and not container.format.name.startswith("mov"):
        return int(stream.frames)
    if stream.frames and hasattr(stream, "index_entries"):  # an older PyAV does not tell
        entries = stream.index_entries
        seconds, rate = stream.duration and stream.duration * stream.time_base, stream.average_rate
        if seconds and rate and len(entries) == stream.frames and abs(seconds * rate - stream.frames) < _HIDDEN:
            return int(stream.frames)  # the duration covers all frames: none is hidden
        return sum(not entry.is_discard for entry in entries)
    packets = [packet for packet in container.demux(stream) if packet.size]
    if damaged := sum(packet.is_corrupt for packet in packets):
        raise ValueError(f"{damaged} of {len(packets)} packets are damaged")
    return sum(not packet.is_discard for packet in packets)


class UndecodableError(ValueError):
    """The frames of a video, or the samples of a sound, can't be decoded."""


def decode_frames(data: bytes, indices: Sequence[int]) -> list[Image.Image]:
    """Decode frames of a video, in RGB.

    Args:
        data: the whole file.
        indices: ascending indices of frames in the order they are shown; an index may be repeated.

    Raises:
        UndecodableError: the video has fewer frames, or can't be decoded. The message names the frame.
        ImportError: PyAV is not installed.
    """
    av: Any = importlib.import_module("av")
    frames: dict[int, Image.Image] = {}
    wanted = set(indices)
    try:
        with _shown(av, data) as shown:
            for index, frame in enumerate(islice(shown, max(wanted, default=-1) + 1)):
                if index in wanted:
                    frames[index] = frame.to_image()
    except av.FFmpegError as error:
        raise UndecodableError(
            f"a video can't be decoded after {len(frames)} of {len(wanted)} frames: {error}"
        ) from None
    missing = wanted - frames.keys()
    if missing:
        raise UndecodableError(f"a video has no frame {min(missing)}")
    return [frames[index] for index in indices]


def frame_times(data: bytes) -> list[float]:
    """Return the time in seconds when each frame is shown, NaN if the file does not say; decodes all frames.

    Raises:
        ValueError: the video can't be decoded.
        ImportError: PyAV is not installed.
    """
    av: Any = importlib.import_module("av")
    times: list[float] = []
    try:
        with _shown(av, data) as shown:
            times.extend(math.nan if frame.time is None else frame.time for frame in shown)
    except av.FFmpegError as error:
        raise ValueError(f"a video can't be decoded after {len(times)} frames: {error}") from None
    return times


@contextmanager
def _shown(av: Any, data: bytes) -> Iterator[Iterator[Any]]:
    """Open a video; the context gives its frames in the order they are shown."""
    with av.open(io.BytesIO(data), mode="r", metadata_errors="replace") as container:
        stream = container.streams.video[0]
        stream.thread_type = _thread_type(av)
        yield container.decode(stream)


def _thread_type(av: Any) -> str:
    """Let threads decode, unless a Python callback takes FFmpeg's log. With a callback the threads would wait for the
    GIL to write the log, while freeing the decoder holds the GIL and waits for the threads. By default (level None)
    PyAV drops the log in C."""
    return "AUTO" if av.logging.get_level() is None else "NONE"


def _av() -> Any:
    try:
        import av
    except ImportError:
        raise Skip(Reason.UNSUPPORTED_MEDIA, "videos need PyAV: pip install 'energon-pack[video]'") from None
    return av
