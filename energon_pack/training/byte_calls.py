"""Let a processor move bytes: pixels that it resized, cut and ordered become numbers once, in their place in the batch.

Processors of transformers normalize pixels between their steps, and every later step copies four times as many bytes.
Here a copy of the processor does all of its steps but that one, so sizes, tiles and order stay its own; what came
through is then normalized into place. A trial shows for which processors the numbers are the same, bit by bit.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, groupby
from math import prod
from typing import Any, NamedTuple
from warnings import catch_warnings

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from energon_pack.samples.media.kinds import IMAGE, VIDEO
from energon_pack.samples.media.prepared import PreparedMedia
from energon_pack.training.joining import JoinRule, join
from energon_pack.training.processor_calls import MediaProcessorCaller

#: numbers that are normalized at once: more would leave the cache, fewer pay for calls
_AT_ONCE = 1 << 20


class UnknownPixelStepError(ValueError):
    """A processor does something with pixels that is not known here."""


class _Scale(NamedTuple):
    """How bytes become numbers: (byte - mean) / std of their channel, and each is written so many times."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    factor: float
    repeats: int = 1


class _Steps:
    """What a copy of a processor did with the pixels of one call."""

    def __init__(self) -> None:
        self._scales: set[_Scale] = set()
        self._repeats: set[int] = set()
        #: bytes of pixels that have to come out
        self._num_bytes = 0

    def copy_keeping_bytes(self, processor: Any) -> Any:
        """Return a copy of a processor, or of one of its parts, which leaves pixels as bytes."""
        if hasattr(processor, "rescale_and_normalize"):
            return self._copied_part(processor)
        whole = copy.copy(processor)
        for name in {*IMAGE.parts, *VIDEO.parts}:
            if hasattr(part := getattr(whole, name, None), "rescale_and_normalize"):
                setattr(whole, name, self._copied_part(part))
        return whole

    def _copied_part(self, part: Any) -> Any:
        moved = copy.copy(part)
        moved.rescale_and_normalize = self._rescale_and_normalize
        if hasattr(part, "process_image"):
            moved.process_image = partial(_pixels_without_copy, part)
        if hasattr(part, "patchify"):
            moved.patchify = partial(self._patchify, part)
        return moved

    def _rescale_and_normalize(
        self,
        images: Tensor,
        do_rescale: bool,
        rescale_factor: float,
        do_normalize: bool,
        image_mean: Any,
        image_std: Any,
    ) -> Tensor:
        """Note how a processor would normalize pixels, and return them unchanged."""
        if images.dtype != torch.uint8 or not do_normalize:
            raise UnknownPixelStepError("pixels that are no bytes, or are not normalized")
        self._scales.add(_Scale(tuple(image_mean), tuple(image_std), 1.0 / rescale_factor if do_rescale else 1.0))
        self._num_bytes += images.numel()
        return images

    def _patchify(self, part: Any, images: Tensor, **settings: Any) -> Any:
        """Cut pixels into patches: those of an image, which has one frame, once and not for each of their frames."""
        is_image, frames = images.dim() == 4, settings.get("temporal_patch_size", 1)
        self._repeats.add(frames if is_image else 1)
        patches, *sizes = part.patchify(images, **settings | ({"temporal_patch_size": 1} if is_image else {}))
        self._num_bytes += patches.numel() - images.numel()
        return patches, *sizes

    def pixel_input_and_scale(self, tensors: Mapping[str, Tensor]) -> tuple[str, _Scale]:
        """Return the name of the input with the pixels, and how they become numbers, or raise UnknownPixelStepError."""
        pixels = (torch.uint8, torch.float32)  # some processors put bytes into a frame of zeros
        sizes = {name: value.numel() for name, value in tensors.items() if value.dtype in pixels}
        name = next((name for name, size in sizes.items() if size == self._num_bytes), "")
        if not name or len(self._scales) != 1 or len(self._repeats) > 1:
            raise UnknownPixelStepError("pixels in several ways, or with others between them")
        return name, next(iter(self._scales))._replace(repeats=next(iter(self._repeats), 1))


@cache
def _hear_of_readonly_memory() -> None:
    """Let torch give its one warning about memory that can't be written: these bytes are only read."""
    with catch_warnings(action="ignore"):
        torch.from_numpy(np.frombuffer(bytes(1), np.uint8))


def _pixels_without_copy(part: Any, image: Any, **settings: Any) -> Any:
    """Return an image's pixels, uint8 [3, height, width], without a copy that lies in another order."""
    if isinstance(image, Image.Image) and image.mode == "RGB" and settings.get("device") is None:
        _hear_of_readonly_memory()
        return torch.from_numpy(np.asarray(image)).permute(2, 0, 1)
    return part.process_image(image, **settings)


class _Pixels(NamedTuple):
    """Pixels of one call, as bytes, and how they become numbers."""

    values: Tensor
    scale: _Scale

    @property
    def shape(self) -> list[int]:
        """The shape of the numbers."""
        *outer, last = self.values.shape
        return [*outer, last * self.scale.repeats]

    def write(self, place: Tensor) -> None:
        """Write the numbers into their place, a tensor of this shape."""
        mean, std = (torch.tensor(each)[:, None] * self.scale.factor for each in (self.scale.mean, self.scale.std))
        inner = prod(self.values.shape[-2:]) if self.values.dim() > 3 else self.values.shape[-1] // len(mean)
        values = self.values.reshape(-1, len(mean), inner)
        places = place.view(len(values), len(mean), self.scale.repeats, inner)
        several = max(1, _AT_ONCE // (len(mean) * inner))
        for given, numbers in zip(values.split(several), places.split(several), strict=True):
            first = numbers[:, :, 0].copy_(given).sub_(mean).div_(std)
            numbers[:, :, 1:] = first[:, :, None]


class BytePixelProcessor:
    """Makes media inputs with a processor that leaves pixels as bytes, and normalizes them once, in their batch.

    Args:
        call: calls the processor.
        empty: makes a tensor of float32 without values, of a shape.
    """

    def __init__(self, call: MediaProcessorCaller, empty: Callable[[Sequence[int]], Tensor]):
        self._call, self._empty = call, empty

    def __call__(
        self, members: Sequence[PreparedMedia], joins: Mapping[str, JoinRule], needs_no_text: bool, each: bool
    ) -> dict[str, Tensor]:
        """Return the joined media inputs of some members, by name.

        Args:
            joins: the rules that join inputs of several calls.
            needs_no_text: whether the image processor alone is called.
            each: whether each medium is a call; else all of a kind that follow each other.

        Raises:
            UnknownPixelStepError: the processor does something else with these pixels.
            Exception: any error of its class.
        """
        parts: list[dict[str, Tensor]] = []
        pixels: dict[str, list[_Pixels]] = {}
        for media in _media_by_call(members, each):
            steps = _Steps()
            call = self._call.changed(steps.copy_keeping_bytes, only_images=needs_no_text)
            tensors = call.images([media], joins) if needs_no_text else call([media])
            if tensors.keys() - joins.keys():
                raise UnknownPixelStepError("inputs that were not tried")
            name, scale = steps.pixel_input_and_scale(tensors)
            pixels.setdefault(name, []).append(_Pixels(tensors.pop(name), scale))
            parts.append(tensors)
        return join(parts, joins) | {name: self._placed(each, joins[name]) for name, each in pixels.items()}

    def _placed(self, pixels: Sequence[_Pixels], rule: JoinRule) -> Tensor:
        """Write the pixels of several calls as numbers into one tensor, side by side and padded as the rule says."""
        if rule.indexed_input or rule.only_alike_reason:
            raise UnknownPixelStepError("pixels that are joined as indices")
        dim, shapes = rule.dim, [one.shape for one in pixels]
        size = [*map(max, zip(*shapes, strict=True))]
        size[dim] = sum(shape[dim] for shape in shapes)
        joined = self._empty(size)
        for one, shape, place in zip(pixels, shapes, joined.split([shape[dim] for shape in shapes], dim), strict=True):
            own = place[tuple(map(slice, shape))]
            if own.shape != place.shape:
                if rule.pad_value is None:
                    raise UnknownPixelStepError("pixels of several sizes")
                place.fill_(rule.pad_value)
            one.write(own)
        return joined


def _media_by_call(members: Sequence[PreparedMedia], each: bool) -> Iterator[PreparedMedia]:
    """Yield the media of members of each call, in their order: all of a kind that follow each other, or each alone."""
    listed = enumerate(chain.from_iterable(zip(one.order, one.values, strict=True) for one in members))
    for _, media in groupby(listed, lambda one: (one[1][0], one[0] if each else 0)):
        yield PreparedMedia(*zip(*(pair for _, pair in media), strict=True))
