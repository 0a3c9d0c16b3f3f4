"""Run a part of a model and record outputs, loss and embeddings; check each call of a model."""

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from energon_pack.training.batch import tensors_in
from energon_pack.training.forward_inputs import MixingError, attention_of

#: values kept for each token: a whole vocabulary would take gigabytes, and show the same
_NUM_OUTPUT_VALUES = 256


@dataclass
class RunValues:
    """Outputs, loss and embeddings of one run of a model."""

    #: [B, S, values]: outputs of each token, thinned
    values: Tensor | None = None
    #: the model's own loss; None: it computes none
    loss: Tensor | None = None
    #: [B, S, width]: the embeddings, from which gradients are followed; None: not followed
    embeddings: Tensor | None = None
    #: the types in which it computes; under autocast they differ from the types of its weights
    dtypes: set[torch.dtype] = field(default_factory=set)


def run_and_record(
    part: Module,
    inputs: Mapping[str, Any],
    call: Callable[..., Any],
    follow: bool = False,
) -> RunValues:
    """Run a part of a model by `call`; record its outputs. `follow`: record embeddings that require gradients, too."""
    seen, shape = RunValues(), tokens_of(inputs).shape[:2]

    def note(_: Module, __: Any, output: Any) -> Any:
        seen.dtypes.update(one.dtype for one in tensors_in(output) if one.is_floating_point())
        if (values := token_values_of(output, shape)) is None:
            return None
        seen.values = values  # of the last part that has some: a fused loss leaves logits out
        if not follow or seen.embeddings is not None or not isinstance(output, Tensor):
            return None
        seen.embeddings = output if output.requires_grad else output.detach().requires_grad_()
        return seen.embeddings.clone()  # some models write images into it

    with hooked(part, lambda _, one: [one.register_forward_hook(note)]):
        output = call(**inputs)
    loss = output.get("loss") if isinstance(output, Mapping) else None
    seen.loss = loss if isinstance(loss, Tensor) else None
    if seen.values is None or (follow and seen.embeddings is None):
        raise ValueError("its output has no values of each token")
    seen.values = seen.values.clone()  # else the whole vocabulary would be kept
    return seen


def tokens_of(inputs: Mapping[str, Any]) -> Tensor:
    """Return the token ids [B, S]; without any, the embeddings [B, S, width]."""
    tokens: Tensor = inputs["inputs_embeds"] if inputs.get("input_ids") is None else inputs["input_ids"]
    return tokens


def token_values_of(output: Any, shape: torch.Size) -> Tensor | None:
    """Return a part's first output [B, S, values] with `_NUM_OUTPUT_VALUES` values a token; None: it has none."""
    parts = output.values() if isinstance(output, Mapping) else (output,)
    for one in tensors_in([*parts]):
        if one.shape[:2] == shape and one.dim() == 3 and one.is_floating_point():
            return one[..., :: -(-one.shape[-1] // _NUM_OUTPUT_VALUES)]
    return None


@contextmanager
def hooked(part: Module, hooks: Callable[[str, Module], Sequence[RemovableHandle]]) -> Iterator[None]:
    """Put hooks, made by a function of name and part, on all parts of a model while the block runs."""
    handles: list[RemovableHandle] = []
    try:
        for name, one in part.named_modules():
            handles += hooks(name, one)
        yield
    finally:
        for handle in handles:
            handle.remove()


#: checks the inputs, by name, of the part that was called
InputCheck = Callable[[Module, dict[str, Any]], None]


class _RunningCalls(threading.local):
    """The running calls of guarded parts in one thread."""

    def __init__(self) -> None:
        #: parts whose forward is running, the outermost first
        self.running: list[Module] = []
        #: whether the model runs a test
        self.is_trial = False


def hook_calls(model: Module, check_call: InputCheck) -> tuple[list[RemovableHandle], InputCheck]:
    """Hook `check_call` before outermost calls of a model and its parts; return the handles, and a check of inputs."""
    calls = _RunningCalls()
    attention = attention_of(model)
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm)]

    def check(names: Sequence[str], part: Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if calls.is_trial:
            return
        if any(part is one for one in calls.running):  # no part runs inside itself: an interrupt ended the earlier call
            calls.running.clear()
        calls.running.append(part)
        if len(calls.running) > 1:
            return
        if (now := attention_of(model)) != attention:
            raise MixingError(f"attention is {now} now, and was {attention} when the model was tried: guard it again")
        if any(norm.training for norm in norms):
            raise MixingError("batch norm takes its statistics from all members while it is trained: call its eval()")
        try_inputs(part, {**dict(zip(names, args, strict=False)), **keywords})

    def try_inputs(part: Module, inputs: dict[str, Any]) -> None:
        named = {name: value for name, value in inputs.items() if name != "return_dict"}  # outputs are read by name
        calls.is_trial = True
        try:
            check_call(part, named)
        finally:
            calls.is_trial = False

    def leave(*_: Any) -> None:
        if not calls.is_trial:
            del calls.running[-1:]

    handles = []
    for module in model.modules():
        takes = inspect.signature(module.forward).parameters
        names, takes_any = [*takes], any(one.kind is one.VAR_KEYWORD for one in takes.values())
        takes_positions = "position_ids" in names or (module is model and takes_any)
        if takes_positions and {"input_ids", "inputs_embeds"} & {*names}:
            handles.append(module.register_forward_pre_hook(partial(check, names), with_kwargs=True))
            handles.append(module.register_forward_hook(leave, always_call=True))
    return handles, try_inputs
