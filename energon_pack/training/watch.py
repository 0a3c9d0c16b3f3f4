"""Run a part of a model and keep what comparisons need: outputs of each token, its loss, its embeddings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from energon_pack.training.batch import tensors_in

#: values kept for each token: a whole vocabulary would take gigabytes, and show the same
_NUM_VALUES = 256


@dataclass
class Seen:
    """What one run shows."""

    #: [B, S, values]: outputs of each token, thinned
    values: Tensor | None = None
    #: the model's own loss; None: it computes none
    loss: Tensor | None = None
    #: [B, S, width]: the embeddings, from which gradients are followed; None: not followed
    embedded: Tensor | None = None
    #: the types in which it computes; under autocast they differ from the types of its weights
    dtypes: set[torch.dtype] = field(default_factory=set)


def see(
    part: Module,
    inputs: Mapping[str, Any],
    call: Callable[..., Any],
    follow: bool = False,
) -> Seen:
    """Run a part of a model.

    Args:
        call: runs it.
        follow: keep the embeddings of the tokens, with gradients, even if their table is frozen.

    Raises:
        ValueError: there are no outputs, or no embeddings, of each token.
    """
    seen, shape = Seen(), tokens_of(inputs).shape[:2]

    def note(_: Module, __: Any, output: Any) -> Any:
        seen.dtypes.update(one.dtype for one in tensors_in(output) if one.is_floating_point())
        if (values := values_of(output, shape)) is None:
            return None
        seen.values = values  # of the last part that has some: a fused loss leaves logits out
        if not follow or seen.embedded is not None or not isinstance(output, Tensor):
            return None
        seen.embedded = output if output.requires_grad else output.detach().requires_grad_()
        return seen.embedded.clone()  # some models write images into it

    with hooked(part, lambda _, one: [one.register_forward_hook(note)]):
        output = call(**inputs)
    loss = output.get("loss") if isinstance(output, Mapping) else None
    seen.loss = loss if isinstance(loss, Tensor) else None
    if seen.values is None or (follow and seen.embedded is None):
        raise ValueError("its output has no values of each token")
    seen.values = seen.values.clone()  # else the whole vocabulary would be kept
    return seen


def tokens_of(inputs: Mapping[str, Any]) -> Tensor:
    """Return the ids [B, S], or the embeddings [B, S, width]."""
    tokens: Tensor = inputs["inputs_embeds"] if inputs.get("input_ids") is None else inputs["input_ids"]
    return tokens


def values_of(output: Any, shape: torch.Size) -> Tensor | None:
    """Return the first output [B, S, values] of a part, thinned to about `_NUM_VALUES` values; None: it has none."""
    parts = output.values() if isinstance(output, Mapping) else (output,)
    for one in tensors_in([*parts]):
        if one.shape[:2] == shape and one.dim() == 3 and one.is_floating_point():
            return one[..., :: -(-one.shape[-1] // _NUM_VALUES)]
    return None


@contextmanager
def hooked(part: Module, hooks: Callable[[str, Module], Sequence[RemovableHandle]]) -> Iterator[None]:
    """Put hooks on all parts, and take them away."""
    handles: list[RemovableHandle] = []
    try:
        for name, one in part.named_modules():
            handles += hooks(name, one)
        yield
    finally:
        for handle in handles:
            handle.remove()
