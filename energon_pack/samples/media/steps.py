"""Carry out the steps that change the pixels of an image, or of a video's frame."""

from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from energon_pack.samples.tokens import CROP, OWN, RESIZE_FRAME, Step


def stepped(image: Image.Image, steps: Sequence[Step], own: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Return an image after its steps.

    Args:
        own: the operation of another package's preprocessor.
    """
    for step in steps:
        size = step.width, step.height
        if step.operation == OWN:
            image = own(image)
        elif step.operation == CROP:
            left, top = (image.width - step.width) // 2, (image.height - step.height) // 2
            image = image.crop((left, top, left + step.width, top + step.height))
        elif step.operation == RESIZE_FRAME:
            image = _resized_by_torch(image, size)
        else:
            image = image.resize(size, Image.Resampling.BICUBIC)
    return image


def _resized_by_torch(frame: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resize a frame as qwen_vl_utils does: with torch, whose pixels differ from Pillow's."""
    from torch import from_numpy
    from torch.nn.functional import interpolate

    pixels = from_numpy(np.array(frame)).permute(2, 0, 1)[None].float()
    pixels = interpolate(pixels, size=size[::-1], mode="bicubic", align_corners=False, antialias=True)
    return Image.fromarray(pixels.clamp(0, 255).round()[0].byte().permute(1, 2, 0).numpy())
