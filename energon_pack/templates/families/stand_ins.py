"""Make the stand-ins for media that `asked_processor` shows to a processor: without values, or black and silent.

The spectrogram takes nearly all the time of a feature extractor's call: a stand-in of the right shape replaces it. The
extractor itself still pads, cuts and makes masks, which decide the number of tokens.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from energon_pack.samples.media.kinds import IMAGE, KINDS, VIDEO
from energon_pack.samples.media.medium import Media

#: the method of transformers' extractors that makes a spectrogram of samples [..., n]
_FBANK_METHOD = "_torch_extract_fbank_features"
_TRIED_LENGTHS = (4000, 4001, 7999, 16_123)  # samples


class BlankMedia:
    """Makes black images and silent sounds of a medium's size, to show to a processor in place of the medium."""

    def stand_in(self, medium: Media, num_frames: int) -> Any:
        return KINDS[medium.kind].blank(replace(medium, num_frames=num_frames))

    def extractor_methods(self, extractor: Any) -> Mapping[str, Any]:
        """Return by name the methods that replace a feature extractor's own during the call; empty: none."""
        return {}

    def context(self) -> AbstractContextManager[Any]:
        """Return the context in which the processor's call runs."""
        return nullcontext()


class ShapeOnlyMedia(BlankMedia):
    """Makes tensors with a shape and no values for images and videos; sounds are silent, without spectrograms."""

    def stand_in(self, medium: Media, num_frames: int) -> Any:
        if medium.kind not in (IMAGE.kind, VIDEO.kind):
            return super().stand_in(medium, num_frames)
        import torch

        shape = [num_frames] * (medium.kind == VIDEO.kind) + [3, medium.height, medium.width]
        return torch.empty(shape, dtype=torch.uint8, device="meta")

    def extractor_methods(self, extractor: Any) -> Mapping[str, Any]:
        return blank_spectrogram_method(extractor)

    def context(self) -> AbstractContextManager[Any]:
        from energon_pack.templates.families.meta_tensors import ShapesOnly

        return ShapesOnly()


def blank_spectrogram_method(extractor: Any) -> Mapping[str, Callable[..., Any]]:
    """Return by name a fast method that makes blank spectrograms of the same shape; empty: there is none."""
    method = getattr(extractor, _FBANK_METHOD, None)
    sizes = [getattr(extractor, name, None) for name in ("hop_length", "feature_size", "n_fft")]
    numbers = [size for size in sizes if isinstance(size, int) and size > 0]
    if method is None or len(numbers) < len(sizes):
        return {}
    stand_in = partial(_blank_spectrogram, method, *numbers)
    return {_FBANK_METHOD: stand_in} if all(_same_shapes(stand_in, method, length) for length in _TRIED_LENGTHS) else {}


def _blank_spectrogram(
    method: Callable[..., Any], hop: int, size: int, window: int, samples: Any, *args: Any, **more: Any
) -> Any:
    """Return an array [.., size, frames] of arbitrary values; for sounds shorter than a window, the real one."""
    if samples.shape[-1] <= window:
        return method(samples, *args, **more)
    return np.broadcast_to(np.float32(0), (*samples.shape[:-1], size, samples.shape[-1] // hop))


def _same_shapes(stand_in: Callable[..., Any], method: Callable[..., Any], num_samples: int) -> bool:
    """Say whether both methods make an array of the same type and shape from a batch of two sounds."""
    samples = np.zeros((2, num_samples), np.float32)
    try:
        array, expected = stand_in(samples, "cpu"), method(samples, "cpu")
    except Exception:  # the class has another signature
        return False
    return isinstance(expected, np.ndarray) and (array.shape, array.dtype) == (expected.shape, expected.dtype)
