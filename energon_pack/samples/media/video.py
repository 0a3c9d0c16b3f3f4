"""Decodes videos with PyAV.

Frames are turned and mirrored as their display matrix asks players to. Pixels that are not square stay as they are
stored, and interlaced lines as they are woven, as in torchcodec and decord.
"""

import importlib
import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
from PIL import Image

from energon_pack.samples.media.streams import UndecodableError, film, opened
from energon_pack.samples.skip import Reason, Skip

_ASKEW = 0.02  # of a side: a display matrix is rounded
#: the direction on the screen of the stored rows, then of the columns → the operation that makes the picture upright
_TURNS = {
    (1, 0, 0, 1): None,
    (0, -1, 1, 0): Image.Transpose.ROTATE_90,
    (-1, 0, 0, -1): Image.Transpose.ROTATE_180,
    (0, 1, -1, 0): Image.Transpose.ROTATE_270,
    (-1, 0, 0, 1): Image.Transpose.FLIP_LEFT_RIGHT,
    (1, 0, 0, -1): Image.Transpose.FLIP_TOP_BOTTOM,
    (0, 1, 1, 0): Image.Transpose.TRANSPOSE,
    (0, -1, -1, 0): Image.Transpose.TRANSVERSE,
}


def decode_frames(data: bytes, indices: Sequence[int]) -> list[Image.Image]:
    """Decode frames of a video: upright, RGB.

    Args:
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
                    frames[index] = upright(frame)
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
    with opened(io.BytesIO(data)) as container:
        stream = film(container)
        stream.thread_type = _thread_type(av)
        yield container.decode(stream)


def upright(frame: Any) -> Image.Image:
    """Return a frame as a player shows it, RGB; its pixels keep their shape, which a matrix may stretch."""
    image: Image.Image = frame.to_image()
    of_frame = importlib.import_module("av.sidedata.sidedata").SideDataContainer(frame)
    matrix = of_frame.get("DISPLAYMATRIX")  # `frame.side_data` refers back: the frame would wait for the collector
    axes = np.eye(2) if matrix is None else np.frombuffer(matrix, np.int32).reshape(3, 3)[:2, :2] / 1.0
    if not axes.any(1).all():  # some programs write no matrix, but zeros
        return image
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    turn = tuple(int(value) for value in axes.round().flat)
    if turn not in _TURNS or np.abs(axes - axes.round()).max() > _ASKEW:
        numbers = ", ".join(f"{value:.2f}" for value in axes.flat)
        what = f"a film that players do not turn by a right angle: its display matrix is {numbers}"
        raise Skip(Reason.UNSUPPORTED_MEDIA, what)
    method = _TURNS[turn]
    return image if method is None else image.transpose(method)


def _thread_type(av: Any) -> str:
    """Let threads decode, unless a Python callback takes FFmpeg's log. With a callback the threads would wait for the
    GIL to write the log, while freeing the decoder holds the GIL and waits for the threads. By default (level None)
    PyAV drops the log in C."""
    return "AUTO" if av.logging.get_level() is None else "NONE"
