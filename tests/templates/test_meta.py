"""Tensors without values have the shapes that torch gives those with values."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from energon_pack.templates.families.meta import ShapesOnly

Made = Callable[[Tensor], Any]

#: what processors do to images [3, 8, 6] of floats
SHAPES: dict[str, Made] = {
    "divided": lambda image: image / 255,
    "stacked at the end": lambda image: torch.stack([image, image], -1),
    "stacked before the end": lambda image: torch.stack([image, image], dim=-2),
    "joined at the end": lambda image: torch.cat([image, image[..., :2]], -1),
    "joined with none": lambda image: torch.cat([image[:0], image, image], dim=0),
    "resized": lambda image: interpolate(image[None], size=(4, 5), mode="bilinear"),
    "resized to a square": lambda image: interpolate(image[None], 4),
    "resized in time": lambda image: interpolate(image[None, None], size=(2, 4, 5)),
    "halved": lambda image: interpolate(image[None], scale_factor=0.5),
    "some of it": lambda image: image[torch.tensor([0, 2])],
    "as an array": lambda image: image.numpy(),
}


def half(side: int) -> Any:
    return side / 2


#: what torch refuses
REFUSED: dict[str, Made] = {
    "no pixels": lambda image: interpolate(image[None], size=(0, 5)),
    "a side too few": lambda image: interpolate(image, size=(4, 5)),
    "half a pixel": lambda image: interpolate(image[None], size=[*map(half, (5, 10))]),
    "no such dimension": lambda image: torch.stack([image, image], 7),
    "joined with another size": lambda image: torch.cat([image, image[:, :3, :3]], -1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_done_to_shapes_is_what_torch_does(name: str) -> None:
    """A processor counts tokens by shapes: one other shape, and each of its images has another length in training."""
    image = torch.zeros(3, 8, 6)
    with ShapesOnly():
        found = SHAPES[name](image.to("meta"))
    assert tuple(found.shape) == tuple(SHAPES[name](image).shape)


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_is_refused(name: str) -> None:
    """An image that its processor can't resize was counted and packed, and training met it."""
    for image, context in (
        (torch.zeros(3, 8, 6), nullcontext()),
        (torch.zeros(3, 8, 6, device="meta"), ShapesOnly()),
    ):
        with context, pytest.raises((RuntimeError, ValueError, TypeError, IndexError)):
            REFUSED[name](image)


def test_values_are_never_made_up() -> None:
    """A processor that looks at pixels would count by pixels that are not there."""
    image = torch.zeros(3, 8, 6, device="meta")
    with ShapesOnly(), pytest.raises(RuntimeError, match="meta"):
        image.sum().item()
