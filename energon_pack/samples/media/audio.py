"""Reads sounds with PyAV: rate and number of samples for measuring, samples for training.

Headers and tables of some files say exactly how many samples the decoder gives; `sound_headers` reads them. In other
files delays, paddings and cuts hide samples, so the decoder that training uses decodes and counts the sound.
"""

import importlib
import io
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from energon_pack.samples.media.formats import FORMATS, SOUNDS_LIKE, format_of
from energon_pack.samples.media.medium import MediaFormat
from energon_pack.samples.media.sound_headers import plain_pictures, plain_sound
from energon_pack.samples.media.sound_mp3 import CutShortError
from energon_pack.samples.media.streams import UndecodableError, is_cover, opened, probing
from energon_pack.samples.skip import Reason, Skip

Samples = npt.NDArray[np.float32]

_LONGEST = 4 * 3600  # seconds: a longer sound, decoded, would fill the memory, and no model hears so much
_MOST_PLANES = 7  # of more channels in planes, PyAV reads memory that is not theirs, and the process ends
_TAIL = 256  # samples of silence after the sound, at the lower of the two rates: the resampler's filter ends in them


def probe_audio(file: BinaryIO, container: MediaFormat) -> tuple[int, int]:
    """Return how many samples a sound has in each channel, and how many there are in a second.

    Raises:
        Skip: `unreadable_media` if the file is cut short, too long or holds no sound, `unsupported_media` without PyAV.
    """
    _check_whole(file, container)
    try:
        found = plain_sound(file, container.extension)
    except CutShortError as error:
        raise Skip(Reason.UNREADABLE_MEDIA, f"the sound is cut short: {error}") from None
    return _checked(*(found or _decoded_length(file)))


def probe_track(file: BinaryIO) -> tuple[int, int] | None:
    """Return what `probe_audio` returns, for the first sound of a video; None: the video has no sound."""
    file.seek(0)
    found = format_of(file.read(16))
    plain = plain_sound(file, SOUNDS_LIKE.get(found.extension, "")) if found else None
    if plain is not None:
        return _checked(*plain)
    with probing("video"), opened(file) as container:
        is_silent = not container.streams.audio
    return None if is_silent else _checked(*_decoded_length(file))


def _checked(num_samples: int, rate: int) -> tuple[int, int]:
    if not (num_samples and 0 < rate < 1 << 31):  # more is no rate to FFmpeg
        raise Skip(Reason.UNREADABLE_MEDIA, f"a sound of {num_samples} samples, {rate} a second")
    if num_samples > _LONGEST * rate:
        raise Skip(Reason.UNREADABLE_MEDIA, f"a sound of {num_samples / rate / 3600:.1f} hours: more than 4")
    return num_samples, rate


def resampled_length(num_samples: int, rate: int, wanted: int) -> int:
    """Return how many samples a sound has after `decode_audio` resamples it: those that begin before its end."""
    return -(-num_samples * wanted // rate)


def decode_audio(data: bytes, rate: int) -> Samples:
    """Decode a sound: float32 [n], the mean of its channels, resampled.

    Args:
        data: the whole file.
        rate: samples a second of the result.

    Raises:
        UndecodableError: it can't be decoded, or has samples that are not finite.
        ImportError: PyAV is not installed.
    """
    av: Any = importlib.import_module("av")
    pieces: list[Samples] = []
    own_rate = num_samples = 0
    try:
        resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
        for piece, own_rate in _pieces(io.BytesIO(data)):
            num_samples += len(piece)
            pieces += [piece] if own_rate == rate else _resampled(av, resampler, piece, own_rate)
        if own_rate not in (0, rate):
            silence = np.zeros(_TAIL * -(-own_rate // min(own_rate, rate)), np.float32)
            pieces += [*_resampled(av, resampler, silence, own_rate), *_resampled(av, resampler, None, own_rate)]
    except av.FFmpegError as error:
        raise UndecodableError(f"a sound can't be decoded after {num_samples} samples: {error}") from None
    if not num_samples:
        raise UndecodableError("a sound holds no samples")
    return np.concatenate(pieces)[: resampled_length(num_samples, own_rate, rate)]


def stream_format(head: bytes, file: BinaryIO) -> MediaFormat | None:
    """Return the format of a file; a container of videos may hold only a sound.

    Args:
        head: the first 16 bytes of the file.
    """
    found = format_of(head)
    if found is None or found.extension not in SOUNDS_LIKE or _has_video(file, found.extension):
        return found
    return next(format for format in FORMATS if format.extension == SOUNDS_LIKE[found.extension])


def _has_video(file: BinaryIO, extension: str) -> bool:
    """Tell whether a container has a stream of pictures; a cover does not count."""
    has_pictures = plain_pictures(file, extension)
    if has_pictures is not None:
        return has_pictures
    try:
        with opened(file) as container:
            return not container.streams.audio or not all(map(is_cover, container.streams.video))
    except Exception:  # damaged bytes make FFmpeg raise anything; what reads the video says what is wrong
        return True


def _check_whole(file: BinaryIO, container: MediaFormat) -> None:
    if container.is_whole and not container.is_whole(file):
        raise Skip(Reason.UNREADABLE_MEDIA, "the sound is cut short")


def _decoded_length(file: BinaryIO) -> tuple[int, int]:
    """Decode a sound; return its number of samples, and its samples a second."""
    num_samples = rate = 0
    with probing("sound"):
        for piece, rate in _pieces(file):
            num_samples += len(piece)
            if num_samples > _LONGEST * rate:
                break
    return num_samples, rate


def _pieces(file: BinaryIO) -> Iterator[tuple[Samples, int]]:
    """Yield the mean of the channels, float32 [n], piece by piece, each with its samples a second.

    Raises:
        UndecodableError: there is no sound, its rate changes, or some samples are not finite.
    """
    first = 0
    av: Any = importlib.import_module("av")
    with opened(file) as container:
        stream = container.streams.best("audio")  # as torchcodec and players
        if stream is None:
            raise UndecodableError("there is no sound in it")
        for frame in container.decode(stream):
            first = first or frame.sample_rate
            if frame.sample_rate != first:
                raise UndecodableError(f"a sound of {first} samples a second that goes on with {frame.sample_rate}")
            yield _mean(av, frame), first


def _mean(av: Any, frame: Any) -> Samples:
    """Return the mean of a frame's channels, float32 [n]."""
    name = frame.format.name
    if frame.format.is_planar and frame.layout.nb_channels > _MOST_PLANES:
        packed = av.AudioResampler(format=frame.format.packed, layout=frame.layout, rate=frame.sample_rate)
        (frame,) = packed.resample(frame)
    values = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T
    if values.dtype == np.uint8:
        values = (values.astype(np.float32) - 128) / 128
    elif values.dtype.kind == "i":
        values = values.astype(np.float32) / np.float32(-float(np.iinfo(values.dtype).min))
    mean: Samples = values.mean(0, dtype=np.float32) if len(values) > 1 else values[0].astype(np.float32)
    if not np.isfinite(mean).all():
        raise UndecodableError(f"a sound with samples that are no numbers ({name})")
    return mean


def _resampled(av: Any, resampler: Any, piece: Samples | None, rate: int) -> list[Samples]:
    """Return the resampler's output for the next samples; None as `piece`: the sound has ended."""
    frame = None
    if piece is not None:
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(piece[None]), format="flt", layout="mono")
        frame.sample_rate = rate
    return [out.to_ndarray()[0] for out in resampler.resample(frame)]
