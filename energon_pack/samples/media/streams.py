"""Opens videos and sounds with PyAV, chooses the stream that a player plays, and turns pictures as players do.

Only the header of an mp4 or a Matroska can ask for that. FFmpeg also turns single frames by what the codec says (an SEI
of H.264 or HEVC, the EXIF of MJPEG), often the first and no other: that is ignored, or a film would have frames of two
sizes.
"""

import importlib
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image

from energon_pack.samples.media.medium import mp4_boxes
from energon_pack.samples.skip import Reason, Skip

_MATRIX_TOLERANCE = 0.02  # of a side: a display matrix is rounded
#: the direction on the screen of the stored rows, then of the columns → the operation that makes the picture upright
_TRANSPOSE_OF_AXES = {
    (1, 0, 0, 1): None,
    (0, -1, 1, 0): Image.Transpose.ROTATE_90,
    (-1, 0, 0, -1): Image.Transpose.ROTATE_180,
    (0, 1, -1, 0): Image.Transpose.ROTATE_270,
    (-1, 0, 0, 1): Image.Transpose.FLIP_LEFT_RIGHT,
    (1, 0, 0, -1): Image.Transpose.FLIP_TOP_BOTTOM,
    (0, 1, 1, 0): Image.Transpose.TRANSPOSE,
    (0, -1, -1, 0): Image.Transpose.TRANSVERSE,
}


SoundSamples = npt.NDArray[np.float32]

_MAX_CHANNEL_PLANES = 7  # of more channels in planes, PyAV reads memory that is not theirs, and the process ends
#: samples of silence after the sound, at the lower of the two rates: the resampler's filter ends in them
_SILENT_TAIL_SAMPLES = 256


_FORMATS = "mov,avi,matroska,mpegts,flv,asf,mpeg,wav,flac,ogg,mp3,aac,aiff"  # FFmpeg's names of `kinds.FORMATS`
#: other formats (playlists, lists of files, SDP) let FFmpeg open any file or address that they name
_FFMPEG_OPTIONS = {"format_whitelist": _FORMATS, "protocol_whitelist": "-"}
_PICTURE_CODECS = frozenset(("mjpeg", "png", "bmp", "gif", "tiff", "webp"))  # codecs of covers and previews
_COVER_FLAGS = "attached_pic", "timed_thumbnails", "still_image"


class UndecodableError(ValueError):
    """Raised if the frames of a video, or the samples of a sound, can't be decoded."""


@contextmanager
def opened_container(file: BinaryIO) -> Iterator[Any]:
    """Open a video or a sound with PyAV, from the file's beginning; the context gives PyAV's container."""
    av: Any = importlib.import_module("av")
    file.seek(0)
    with av.open(file, mode="r", metadata_errors="replace", container_options=_FFMPEG_OPTIONS) as container:
        yield container


def find_shown_video_stream(container: Any) -> Any:
    """Return the video stream of a container that a player shows.

    It is FFmpeg's best (`av_find_best_stream`: by the flag `default`, then by frames and bits), as in torchcodec,
    ffplay and decord. Covers are never taken, streams of one frame or of an image codec only if there are no others.
    """
    streams = [stream for stream in container.streams.video if not is_cover_stream(stream)]
    if not streams:
        raise UndecodableError(f"there is no film in it{', only a cover' if container.streams.video else ''}")
    best = container.streams.best("video")

    def rank(stream: Any) -> tuple[bool, bool, bool, int]:
        codec = stream.codec_context
        return stream.frames != 1, codec.name not in _PICTURE_CODECS, stream is best, codec.width * codec.height

    return max(streams, key=rank)


def is_cover_stream(video_stream: Any) -> bool:
    """Tell whether a video stream is a cover, thumbnails or a still, by the container's flags."""
    return any(video_stream.disposition & getattr(type(video_stream.disposition), name) for name in _COVER_FLAGS)


@contextmanager
def turn_pyav_errors_into_skip(noun: str) -> Iterator[None]:
    """Turn errors of PyAV into Skip; `noun`: what is read, for the message: `video`."""
    try:
        yield
    except Skip:
        raise
    except ImportError:
        raise Skip(Reason.UNSUPPORTED_MEDIA, f"{noun}s need PyAV: pip install 'energon-pack[video]'") from None
    except Exception as error:  # damaged bytes make FFmpeg raise anything, and each costs only its sample
        raise Skip(Reason.UNREADABLE_MEDIA, f"not a readable {noun}: {str(error) or type(error).__name__}") from None


def resampled_length(num_samples: int, rate: int, new_rate: int) -> int:
    """Return how many samples a sound has after `decode_audio` resamples it: those that begin before its end."""
    return -(-num_samples * new_rate // rate)


def decode_audio(data: bytes, rate: int) -> SoundSamples:
    """Decode a sound: float32 [n], the mean of its channels, resampled. `rate`: samples a second of the result.

    Raises:
        UndecodableError: it can't be decoded, or has samples that are not finite.
        ImportError: PyAV is not installed.
    """
    av: Any = importlib.import_module("av")
    pieces: list[SoundSamples] = []
    own_rate = num_samples = 0
    try:
        resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
        with opened_container(io.BytesIO(data)) as container:
            for piece, own_rate in decode_sound_in_pieces(container):
                num_samples += len(piece)
                pieces += [piece] if own_rate == rate else _resampled(av, resampler, piece, own_rate)
        if own_rate not in (0, rate):
            silence = np.zeros(_SILENT_TAIL_SAMPLES * -(-own_rate // min(own_rate, rate)), np.float32)
            pieces += [*_resampled(av, resampler, silence, own_rate), *_resampled(av, resampler, None, own_rate)]
    except av.FFmpegError as error:
        raise UndecodableError(f"a sound can't be decoded after {num_samples} samples: {error}") from None
    if not num_samples:
        raise UndecodableError("a sound holds no samples")
    return np.concatenate(pieces)[: resampled_length(num_samples, own_rate, rate)]


def decode_sound_in_pieces(container: Any) -> Iterator[tuple[SoundSamples, int]]:
    """Decode the sound of a container piece by piece: the mean of its channels, float32 [n], and the samples a second.

    Raises:
        UndecodableError: there is no sound, its rate changes, or samples are not finite.
    """
    first = 0
    av: Any = importlib.import_module("av")
    stream = container.streams.best("audio")  # as torchcodec and players
    if stream is None:
        raise UndecodableError("there is no sound in it")
    for frame in container.decode(stream):
        first = first or frame.sample_rate
        if frame.sample_rate != first:
            raise UndecodableError(f"a sound of {first} samples a second that goes on with {frame.sample_rate}")
        yield _mean_of_channels(av, frame), first


def _mean_of_channels(av: Any, frame: Any) -> SoundSamples:
    """Return the mean of a frame's channels, float32 [n]."""
    name = frame.format.name
    if frame.format.is_planar and frame.layout.nb_channels > _MAX_CHANNEL_PLANES:
        packed = av.AudioResampler(format=frame.format.packed, layout=frame.layout, rate=frame.sample_rate)
        (frame,) = packed.resample(frame)
    values = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T
    if values.dtype == np.uint8:
        values = (values.astype(np.float32) - 128) / 128
    elif values.dtype.kind == "i":
        values = values.astype(np.float32) / np.float32(-float(np.iinfo(values.dtype).min))
    mean: SoundSamples = values.mean(0, dtype=np.float32) if len(values) > 1 else values[0].astype(np.float32)
    if not np.isfinite(mean).all():
        raise UndecodableError(f"a sound with samples that are no numbers ({name})")
    return mean


def _resampled(av: Any, resampler: Any, piece: SoundSamples | None, rate: int) -> list[SoundSamples]:
    """Return the resampler's output for the next samples; None as `piece`: the sound has ended."""
    frame = None
    if piece is not None:
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(piece[None]), format="flt", layout="mono")
        frame.sample_rate = rate
    return [out.to_ndarray()[0] for out in resampler.resample(frame)]


def decode_frames(data: bytes, indices: Sequence[int]) -> list[Image.Image]:
    """Decode frames of a video: upright, RGB.

    `indices`: ascending indices of frames in the order they are shown; an index may be repeated.

    Raises:
        UndecodableError: the video has fewer frames, or can't be decoded. The message names the frame.
        ImportError: PyAV is not installed.
    """
    av: Any = importlib.import_module("av")
    frames: dict[int, Image.Image] = {}
    numbers = set(indices)
    try:
        with open_video_frames(av, data) as (format_name, shown):
            is_turned = may_turn_pictures(io.BytesIO(data), format_name)
            for index, frame in enumerate(islice(shown, max(numbers, default=-1) + 1)):
                if index in numbers:
                    frames[index] = upright_picture(frame) if is_turned else frame.to_image()
    except av.FFmpegError as error:
        raise UndecodableError(
            f"a video can't be decoded after {len(frames)} of {len(numbers)} frames: {error}"
        ) from None
    missing = numbers - frames.keys()
    if missing:
        raise UndecodableError(f"a video has no frame {min(missing)}")
    return [frames[index] for index in indices]


@contextmanager
def open_video_frames(av: Any, data: bytes) -> Iterator[tuple[str, Iterator[Any]]]:
    """Open a video; the context gives FFmpeg's name of its format, and its frames in the order they are shown."""
    with opened_container(io.BytesIO(data)) as container:
        stream = find_shown_video_stream(container)
        stream.thread_type = _thread_type(av)
        yield container.format.name, container.decode(stream)


def upright_picture(frame: Any) -> Image.Image:
    """Return a video frame as an RGB image, turned or mirrored as its display matrix says; it is never stretched.

    Raises Skip (`unsupported_media`) if the matrix turns by other than right angles.
    """
    image: Image.Image = frame.to_image()
    # `frame.side_data` refers back: the frame would wait for the collector
    of_frame = importlib.import_module("av.sidedata.sidedata").SideDataContainer(frame)
    matrix = next((data for data in of_frame if data.type.name == "DISPLAYMATRIX"), None)  # the container's is first
    axes = np.eye(2) if matrix is None else np.frombuffer(matrix, np.int32).reshape(3, 3)[:2, :2] / 1.0
    if not axes.any(1).all():  # some programs write no matrix, but zeros
        return image
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    right_axes = tuple(int(value) for value in axes.round().flat)
    if right_axes not in _TRANSPOSE_OF_AXES or np.abs(axes - axes.round()).max() > _MATRIX_TOLERANCE:
        numbers = ", ".join(f"{value:.2f}" for value in axes.flat)
        detail = f"a film that players do not turn by a right angle: its display matrix is {numbers}"
        raise Skip(Reason.UNSUPPORTED_MEDIA, detail)
    method = _TRANSPOSE_OF_AXES[right_axes]
    return image if method is None else image.transpose(method)


def _thread_type(av: Any) -> str:
    """Let threads decode, unless a Python callback takes FFmpeg's log. With a callback the threads would wait for the
    GIL to write the log, while freeing the decoder holds the GIL and waits for the threads. By default (level None)
    PyAV drops the log in C."""
    return "AUTO" if av.logging.get_level() is None else "NONE"


_MAX_HEADER_BYTES = 16 << 20  # bytes that are searched
_MATRIX = bytes.fromhex("00010000" + "00" * 12 + "00010000" + "00" * 12 + "40000000")  # of an mp4: it changes nothing
_MATRIX_OFFSETS = {b"mvhd": (36, 48), b"tkhd": (40, 52)}  # of the matrix, in bytes behind the name, in version 0 and 1
_TRACKS_ID, _PROJECTION_ID = b"\x16\x54\xae\x6b", b"\x76\x70"  # of a Matroska
_FIRST_IDS_IN_TRACKS = (b"\xae", b"\xbf", b"\xec")  # a track, a checksum, a gap: what can stand first


def may_turn_pictures(file: BinaryIO, format_name: str) -> bool:
    """Tell whether a container may tell players to turn its pictures.

    `format_name`: FFmpeg's name of the container.
    """
    if format_name.startswith("mov"):
        return not _has_plain_matrices(_mp4_tables(file))
    if format_name.startswith("matroska"):
        file.seek(0)
        tracks = _whole_track_lists(file.read(_MAX_HEADER_BYTES))
        return not tracks or any(_PROJECTION_ID in track for track in tracks)
    return False


def _has_plain_matrices(tables: bytes) -> bool:
    """Tell whether an mp4 has matrices and each changes nothing; the header of a track of chapters holds one more."""
    matrices = []
    for match in re.finditer(b"mvhd|tkhd", tables):
        start = match.end() + _MATRIX_OFFSETS[match[0]][tables[match.end() : match.end() + 1] == b"\1"]
        matrices.append(tables[start : start + len(_MATRIX)])
    return set(matrices) == {_MATRIX}


def _whole_track_lists(header: bytes) -> list[bytes]:
    """Return the lists of tracks of a Matroska that are whole; the directory before them holds only their name."""
    lists = []
    for match in re.finditer(re.escape(_TRACKS_ID), header):
        num_bytes = 9 - int.from_bytes(header[match.end() : match.end() + 1], "big").bit_length()  # of its size
        start = match.end() + num_bytes
        size = int.from_bytes(header[match.end() : start], "big") & ((1 << 7 * num_bytes) - 1)
        if header[start : start + 1] in _FIRST_IDS_IN_TRACKS and start + size <= len(header):
            lists.append(header[start : start + size])
    return lists


def _mp4_tables(file: BinaryIO) -> bytes:
    """Return the tables of an mp4; empty: there are none, or they are too large."""
    place = next(((start, end - start) for name, start, end in mp4_boxes(file) if name == b"moov"), (0, 0))
    file.seek(place[0])
    return file.read(place[1] if place[1] <= _MAX_HEADER_BYTES else 0)
