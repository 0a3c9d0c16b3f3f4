"""Makes the stand-ins for media that `asking` shows to a processor: tensors without values, or black images."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from PIL import Image


class Meta:
    """Media as tensors of torch's `meta` device."""

    def image(self, width: int, height: int) -> Any:
        import torch

        return torch.empty((3, height, width), dtype=torch.uint8, device="meta")

    def clip(self, num_frames: int, width: int, height: int) -> Any:
        import torch

        return torch.empty((num_frames, 3, height, width), dtype=torch.uint8, device="meta")

    def running(self) -> AbstractContextManager[Any]:
        from energon_pack.templates.families.meta import ShapesOnly

        return ShapesOnly()


class Blank:
    """Black media."""

    def image(self, width: int, height: int) -> Any:
        return Image.new("RGB", (width, height))

    def clip(self, num_frames: int, width: int, height: int) -> Any:
        return np.zeros((num_frames, height, width, 3), np.uint8)

    def running(self) -> AbstractContextManager[Any]:
        return nullcontext()
