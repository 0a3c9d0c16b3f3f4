"""A batch of samples to try a model with: made ones, or the members of a batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from energon_pack.training.batch import PackedBatch
from energon_pack.training.encoded import Encoded
from energon_pack.training.trial_inputs import is_content


@dataclass(frozen=True)
class Placed:
    """A sample in a batch, which is compared with itself alone."""

    sample: Encoded
    row: int
    #: the places of its tokens in the row, int64 [L]
    places: Tensor
    #: whether the batch's loss is of it
    in_loss: bool = True
    #: its pixels and sounds in the batch, from which gradients are followed
    leaves: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """A batch of samples to try a model with, and how it and each of them run."""

    batch: PackedBatch
    placed: Sequence[Placed]
    #: the inputs of the batch, without labels
    inputs: Mapping[str, Any]
    #: makes the inputs of a sample alone
    plain: Callable[[Encoded], dict[str, Any]]
    #: a kind of `loss_weights`
    weights: str = "token"


def leaves_of(media: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of pixels and sounds from which gradients can be followed."""
    return {
        name: value.detach().clone().requires_grad_()
        for name, value in media.items()
        if value.is_floating_point() and is_content(name)
    }
