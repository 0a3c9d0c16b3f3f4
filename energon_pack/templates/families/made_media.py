"""Make the stand-ins for media that `asking` shows to a processor: without values, or black and silent."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from PIL import Image

from energon_pack.templates.families.spectrograms import by_shape


class _Silent:
    def sound(self, num_samples: int) -> Any:
        return np.zeros(num_samples, np.float32)


class Meta(_Silent):
    """Media as tensors of torch's `meta` device; sounds are silent, and no spectrogram is computed."""

    def hearing(self, extractor: Any) -> Mapping[str, Any]:
        return by_shape(extractor)

    def image(self, width: int, height: int) -> Any:
        import torch

        return torch.empty((3, height, width), dtype=torch.uint8, device="meta")

    def clip(self, num_frames: int, width: int, height: int) -> Any:
        import torch

        return torch.empty((num_frames, 3, height, width), dtype=torch.uint8, device="meta")

    def running(self) -> AbstractContextManager[Any]:
        from energon_pack.templates.families.meta import ShapesOnly

        return ShapesOnly()


class Blank(_Silent):
    """Black and silent media."""

    def hearing(self, extractor: Any) -> Mapping[str, Any]:
        return {}

    def image(self, width: int, height: int) -> Any:
        return Image.new("RGB", (width, height))

    def clip(self, num_frames: int, width: int, height: int) -> Any:
        return np.zeros((num_frames, height, width, 3), np.uint8)

    def running(self) -> AbstractContextManager[Any]:
        return nullcontext()
