"""Check each call of a guarded model, and of its parts where they are called by themselves."""

import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn import Module, ModuleList
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from energon_pack.training.forward_inputs import MixingError, attention_implementation_of
from energon_pack.training.model_wrappers import class_of

_log = logging.getLogger(__name__)
_NO_FULL_GRAPH = (
    "guard reads the inputs of each call, which is in no graph: torch.compile(model) without fullgraph=True"
)
_NO_EXPORT = (
    "torch.export, and stages that torch.distributed.pipelining.pipeline cuts by it, leave out the guard, which reads"
    " the inputs of each call: export a model that is not guarded (Guard.remove())"
)
#: checks the inputs, by name, of the part that was called
InputCheck = Callable[[Module, dict[str, Any]], None]


class _RunningCalls(threading.local):
    """The running calls of guarded parts in one thread."""

    def __init__(self) -> None:
        #: parts whose forward is running, the outermost first
        self.running: list[Module] = []
        #: whether the model runs a test; whether the call that waits for it is compiled
        self.is_trial = self.is_compiled = False

    def __deepcopy__(self, _: Any) -> "_RunningCalls":
        return self  # a copy of a model has its hooks, not copies of them

    @property
    def is_idle(self) -> bool:
        """Whether a part that runs now runs in no call: checkpoints run parts again in a backward."""
        in_backward = torch._C._current_graph_task_id() != -1
        return not (self.running or self.is_trial or in_backward)


#: by guarded model
_CALLS_BY_MODEL: weakref.WeakKeyDictionary[Module, _RunningCalls] = weakref.WeakKeyDictionary()


@contextmanager
def run_without_guard_checks(model: Module) -> Iterator[None]:
    """Let a guarded model run unchecked in this thread while the block runs; any other model runs as ever."""
    calls = _CALLS_BY_MODEL.get(model) or _RunningCalls()
    calls.is_trial = True
    try:
        yield
    finally:
        calls.is_trial = False


def is_call_compiled(model: Module) -> bool:
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


def _leave(calls: _RunningCalls, part: Module, *_: Any) -> None:
    if calls.running and calls.running[-1] is part:
        _end_call(calls)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # else a trial would have a graph of its own
def _end_call(calls: _RunningCalls) -> None:
    if not calls.is_trial:
        calls.running.pop()


def hook_check_before_calls(model: Module, check_call: InputCheck) -> tuple[list[RemovableHandle], InputCheck]:
    """Hook `check_call` before outermost calls of a model and its parts; return the handles, and a check of inputs."""
    calls, said, inner = _RunningCalls(), set[str](), weakref.WeakSet([*model.modules()][1:])
    _CALLS_BY_MODEL[model], attention = calls, attention_implementation_of(model)

    def say_outside(part: Module, lacks: str) -> None:
        if (name := class_of(part).__name__) not in said:
            said.add(name)
            _log.warning("%s runs outside of a call of %s, so %s not tried", name, class_of(model).__name__, lacks)

    def look_outside(part: Module, *_: Any) -> None:
        if not torch.compiler.is_compiling() and calls.is_idle:
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
        if (now := attention_implementation_of(model)) != attention:
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
            handles.append(module.register_forward_hook(partial(_leave, calls), always_call=True))
    layers = getattr(getattr(model, "get_decoder", lambda: None)(), "layers", None)
    if isinstance(layers, ModuleList) and len(layers):
        handles.append(layers[0].register_forward_pre_hook(look_outside))
    return handles, try_inputs
