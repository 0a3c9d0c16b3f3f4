"""Make the stand-ins for media that `asking` shows to a processor: without values, or black and silent."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from energon_pack.samples.media.kinds import IMAGE, KINDS, VIDEO
from energon_pack.samples.media.medium import Media
from energon_pack.templates.families.spectrograms import by_shape


class Meta:
    """Images and videos as tensors of torch's `meta` device; sounds are silent, and no spectrogram is computed."""

    def hearing(self, extractor: Any) -> Mapping[str, Any]:
        return by_shape(extractor)

    def stand_in(self, medium: Media, num_frames: int) -> Any:
        if medium.kind not in (IMAGE.kind, VIDEO.kind):
            return KINDS[medium.kind].blank(medium)
        import torch

        shape = [num_frames] * (medium.kind == VIDEO.kind) + [3, medium.height, medium.width]
        return torch.empty(shape, dtype=torch.uint8, device="meta")

    def running(self) -> AbstractContextManager[Any]:
        from energon_pack.templates.families.meta import ShapesOnly

        return ShapesOnly()


class Blank:
    """Black and silent media."""

    def hearing(self, extractor: Any) -> Mapping[str, Any]:
        return {}

    def stand_in(self, medium: Media, num_frames: int) -> Any:
        return KINDS[medium.kind].blank(replace(medium, num_frames=num_frames))

    def running(self) -> AbstractContextManager[Any]:
        return nullcontext()
