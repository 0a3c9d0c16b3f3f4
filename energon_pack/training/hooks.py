"""Hook every part of a guarded model that takes positions."""

import inspect
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from energon_pack.training.inputs import MixingError, attention_of

#: checks the inputs, by name, of the part that was called
Check = Callable[[Module, dict[str, Any]], None]


class _Calls(threading.local):
    """The calls of guarded parts in one thread."""

    def __init__(self) -> None:
        #: parts whose forward is running, the outermost first
        self.running: list[Module] = []
        #: whether the model runs a test
        self.is_trial = False


def hook(model: Module, check_call: Check) -> tuple[list[RemovableHandle], Check]:
    """Check each call of the model or its parts; of nested calls only the outermost, and none that the check makes.

    Returns:
        The hooks; and the check, for inputs without a call.

    Raises:
        MixingError: by the hooks: attention is another than now, or batch norm is trained.
    """
    calls = _Calls()
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
