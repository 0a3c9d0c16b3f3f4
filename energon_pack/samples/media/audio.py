"""Decodes sounds with PyAV."""

import importlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_pack.samples.media.streams import UndecodableError, opened

Samples = npt.NDArray[np.float32]

_MOST_PLANES = 7  # of more channels in planes, PyAV reads memory that is not theirs, and the process ends
_TAIL = 256  # samples of silence after the sound, at the lower of the two rates: the resampler's filter ends in them


def resampled_length(num_samples: int, rate: int, wanted: int) -> int:
    """Return how many samples a sound has after `decode_audio` resamples it: those that begin before its end."""
    return -(-num_samples * wanted // rate)


def decode_audio(data: bytes, rate: int) -> Samples:
    """Decode a sound: float32 [n], the mean of its channels, resampled.

    Args:
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
        with opened(io.BytesIO(data)) as container:
            for piece, own_rate in pieces_in(container):
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


def pieces_in(container: Any) -> Iterator[tuple[Samples, int]]:
    """Yield the mean of the channels, float32 [n], piece by piece, each with its samples a second.

    Raises:
        UndecodableError: there is no sound, its rate changes, or some samples are not finite.
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
