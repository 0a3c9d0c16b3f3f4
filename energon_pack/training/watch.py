"""Run a part of a model and keep what comparisons need: outputs of each token, its loss, its embeddings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode
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
    routing: "Routing | None" = None,
) -> Seen:
    """Run a part of a model.

    Args:
        call: runs it.
        follow: keep the embeddings of the tokens, with gradients, even if their table is frozen.
        routing: which experts are chosen; the caller enters it.

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

    def hooks(name: str, one: Module) -> list[RemovableHandle]:
        entered = [] if routing is None else [one.register_forward_pre_hook(lambda *_: routing.enter(name))]
        return [*entered, one.register_forward_hook(note)]

    with hooked(part, hooks):
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


class Routing(TorchFunctionMode):
    """Records which experts the routers choose, or has them choose the same again: they do it by `topk`.

    With other words, or alone, sums are rounded in another way, and a token between two experts goes to the other one.
    """

    def __init__(self, before: "Routing | None" = None, rows: Tensor | None = None, num_rows: int = 0):
        """Record; or repeat the choices of another run.

        Args:
            before: the run with the choices.
            rows: which of its rows, in the flattened B·S, are the rows of this run; None: all.
            num_rows: how many it has.
        """
        super().__init__()
        #: choices, and among how many, by the part that was entered last, in their order
        self.chosen: dict[str, list[tuple[Tensor, int]]] = {}
        self._before, self._rows, self._num_rows = before, rows, num_rows
        self._place = ""

    def enter(self, name: str) -> None:
        """Note that a part begins."""
        self._place = name

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk) or not args or made.indices.shape[:-1] != args[0].shape[:-1]:
            return made
        again = self._again(made.indices, args[0].shape[-1])
        self.chosen.setdefault(self._place, []).append((made.indices, args[0].shape[-1]))
        return made if again is None else torch.return_types.topk((args[0].gather(-1, again), again))

    def _again(self, natural: Tensor, among: int) -> Tensor | None:
        """Return the earlier choice at this place; None: there is none that fits."""
        number = len(self.chosen.get(self._place, ()))
        earlier = self._before.chosen.get(self._place, []) if self._before else []
        if number >= len(earlier) or earlier[number][1] != among or natural.dim() < 2:
            return None
        chosen = earlier[number][0]
        if self._rows is not None:
            rows = chosen.reshape(-1, chosen.shape[-1])
            if len(rows) != self._num_rows or natural.numel() != len(self._rows) * natural.shape[-1]:
                return None
            chosen = rows[self._rows].view(natural.shape)
        return chosen if chosen.shape == natural.shape else None
