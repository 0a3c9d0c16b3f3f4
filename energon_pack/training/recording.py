"""Run a part of a model and record outputs, loss and embeddings; check each call of a model."""

import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, ModuleList
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from energon_pack.training.batch import tensors_in
from energon_pack.training.forward_inputs import MixingError, attention_of
from energon_pack.training.model_wrappers import class_of

_log = logging.getLogger(__name__)
#: values of a sketch: a whole vocabulary would take gigabytes
_SKETCH_SIZE = 256
#: tokens that are sketched together, since each takes a float32 for each id of the vocabulary meanwhile
_SKETCHED_TOKENS = 64
_NO_FULL_GRAPH = (
    "guard reads the inputs of each call, which is in no graph: torch.compile(model) without fullgraph=True"
)
_NO_EXPORT = (
    "torch.export, and stages that torch.distributed.pipelining.pipeline cuts by it, leave out the guard, which reads"
    " the inputs of each call: export a model that is not guarded (Guard.remove())"
)
#: some classes give words that can't come next a logit as low as that
_IMPOSSIBLE_LOGIT = 1e4


@dataclass
class RunValues:
    """Outputs, loss and embeddings of one run of a model."""

    #: [B, S, values]: a sketch of each token's outputs, and one of the values that enter the head
    sketches: list[Tensor] = field(default_factory=list)
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
    follow_sketch: bool = False,
) -> RunValues:
    """Run a part of a model by `call` and record its outputs.

    Args:
        follow: record embeddings that require gradients, too.
        follow_sketch: a loss is computed from the sketches.
    """
    seen, shape = RunValues(), tokens_of(inputs).shape[:2]
    head = getattr(part, "get_output_embeddings", lambda: None)()
    last: dict[str, Tensor] = {}

    def note(module: Module, args: Any, output: Any) -> Any:
        seen.dtypes.update(one.dtype for one in tensors_in(output) if one.is_floating_point())
        if module is head and (entered := token_values_of(args, shape)) is not None:
            last["entered"] = entered
        if (values := token_values_of(output, shape)) is None:
            return None
        last["outputs"] = values  # of the last part that has some: a fused loss leaves logits out
        if not follow or seen.embeddings is not None or not isinstance(output, Tensor):
            return None
        seen.embeddings = output if output.requires_grad else output.detach().requires_grad_()
        return seen.embeddings.clone()  # some models write images into it

    with hooked(part, lambda _, one: [one.register_forward_hook(note)]):
        output = call(**inputs)
    loss = output.get("loss") if isinstance(output, Mapping) else None
    seen.loss = loss if isinstance(loss, Tensor) else None
    if "outputs" not in last or (follow and seen.embeddings is None):
        raise ValueError("its output has no values of each token")
    with torch.set_grad_enabled(follow_sketch and torch.is_grad_enabled()):
        seen.sketches = [sketch_of(last[name]) for name in ("outputs", "entered") if name in last]
    return seen


def sketch_of(values: Tensor) -> Tensor:
    """Sum outputs [B, S, V] into a few values, each with a random sign, so that every output counts.

    Logits of impossible words count as 0. More than `_SKETCH_SIZE` outputs become as many values of their size.
    """
    return torch.cat([_sketch(part.float()) for part in values.split(_SKETCHED_TOKENS, dim=1)], dim=1)


def _sketch(values: Tensor) -> Tensor:
    values, width = values.masked_fill(values.abs() >= _IMPOSSIBLE_LOGIT, 0.0), values.shape[-1]
    if width <= _SKETCH_SIZE:
        return values
    signed = torch.nn.functional.pad(values * _signs(width).to(values.device), (0, -width % _SKETCH_SIZE))
    summed: Tensor = signed.unflatten(-1, (-1, _SKETCH_SIZE)).sum(-2)
    return summed.mul((_SKETCH_SIZE / width) ** 0.5)


@cache
def _signs(width: int) -> Tensor:
    """Return `width` random signs, the same in every run."""
    return torch.randint(2, (width,), generator=torch.Generator().manual_seed(0)) * 2.0 - 1.0


def tokens_of(inputs: Mapping[str, Any]) -> Tensor:
    """Return the token ids [B, S]; without any, the embeddings [B, S, width]."""
    tokens: Tensor = inputs["inputs_embeds"] if inputs.get("input_ids") is None else inputs["input_ids"]
    return tokens


def token_values_of(output: Any, shape: torch.Size) -> Tensor | None:
    """Return a part's first output [B, S, values]; None: it has none."""
    parts = output.values() if isinstance(output, Mapping) else (output,)
    for one in tensors_in([*parts]):
        if one.shape[:2] == shape and one.dim() == 3 and one.is_floating_point():
            return one
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
        #: whether the model runs a test; whether the call that waits for it is compiled
        self.is_trial = self.is_compiled = False

    @property
    def is_outside(self) -> bool:
        """Whether a part that runs now runs in no call: checkpoints run parts again in a backward."""
        in_backward = torch._C._current_graph_task_id() != -1
        return not (self.running or self.is_trial or in_backward)


#: by guarded model
_CALLS_BY_MODEL: weakref.WeakKeyDictionary[Module, _RunningCalls] = weakref.WeakKeyDictionary()


@contextmanager
def unchecked(model: Module) -> Iterator[None]:
    """Let a guarded model run unchecked in this thread while the block runs; any other model runs as ever."""
    calls = _CALLS_BY_MODEL.get(model) or _RunningCalls()
    calls.is_trial = True
    try:
        yield
    finally:
        calls.is_trial = False


def is_compiled(model: Module) -> bool:
    """Say whether the call of a guarded model that waits for a test is compiled."""
    return _CALLS_BY_MODEL[model].is_compiled


def _enter(calls: _RunningCalls, check: Callable[..., None], *call: Any) -> None:
    if torch.compiler.is_compiling():
        if torch.compiler.is_exporting():
            raise MixingError(_NO_EXPORT)
        if calls.running:  # each break would make graphs
            return
        torch._dynamo.graph_break(msg=_NO_FULL_GRAPH)
    check(torch.compiler.is_compiling(), *call)


def hook_calls(model: Module, check_call: InputCheck) -> tuple[list[RemovableHandle], InputCheck]:
    """Hook `check_call` before outermost calls of a model and its parts; return the handles, and a check of inputs."""
    calls, said, inner = _RunningCalls(), set[str](), weakref.WeakSet([*model.modules()][1:])
    _CALLS_BY_MODEL[model], attention = calls, attention_of(model)

    def say_outside(part: Module, lacks: str) -> None:
        if (name := class_of(part).__name__) not in said:
            said.add(name)
            _log.warning("%s runs outside of a call of %s, so %s not tried", name, class_of(model).__name__, lacks)

    def look_outside(part: Module, *_: Any) -> None:
        if not torch.compiler.is_compiling() and calls.is_outside:
            say_outside(part, "members are")

    norms = [part for part in model.modules() if isinstance(part, _BatchNorm)]

    @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]
    def check(compiled: bool, names: Sequence[str], part: Module, args: Any, keywords: dict[str, Any]) -> None:
        if calls.is_trial:
            return
        if any(part is one for one in calls.running):  # no part runs inside itself: an interrupt ended the earlier call
            calls.running.clear()
        calls.running.append(part)
        if len(calls.running) > 1:
            return
        calls.is_compiled = compiled
        if part is not model and part in inner:  # none of a copy, whose hooks are these
            say_outside(part, "the head and the loss of members are")
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

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # else a trial would have a graph of its own
    def end() -> None:
        if not calls.is_trial:
            calls.running.pop()

    def leave(part: Module, *_: Any) -> None:
        if calls.running and calls.running[-1] is part:
            end()

    handles = []
    for module in model.modules():
        takes = inspect.signature(module.forward).parameters
        names, takes_any = [*takes], any(one.kind is one.VAR_KEYWORD for one in takes.values())
        takes_positions = "position_ids" in names or (module is model and takes_any)
        if takes_positions and {"input_ids", "inputs_embeds"} & {*names}:
            # before all others: a trial would undo what they set
            handles.append(
                module.register_forward_pre_hook(partial(_enter, calls, check, names), with_kwargs=True, prepend=True)
            )
            handles.append(module.register_forward_hook(leave, always_call=True))
    layers = getattr(getattr(model, "get_decoder", lambda: None)(), "layers", None)
    if isinstance(layers, ModuleList) and len(layers):
        handles.append(layers[0].register_forward_pre_hook(look_outside))
    return handles, try_inputs
