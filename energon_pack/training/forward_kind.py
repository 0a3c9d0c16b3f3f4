"""Tell which forwards are alike, so that a trial with one of them is a trial for all.

A function of a Python module that is replaced while a model is trained makes no other kind: a later trial finds it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import is_
from typing import Any

import torch
from torch.nn import Module

from energon_pack.training.forward_inputs import mask_kind_of
from energon_pack.training.recording import tokens_of

#: batches of a kind until its second trial; each later wait is this many times longer
_WAIT_BATCHES = 16
_HOOK_ATTRIBUTES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
#: hooks on all modules
_GLOBAL_HOOKS = [getattr(torch.nn.modules.module, f"_global{name}") for name in _HOOK_ATTRIBUTES]


@dataclass(frozen=True)
class ForwardKind:
    """The properties by which forwards are alike: model code, inputs, mode and sizes."""

    #: what the model is made of: see `model_code_of`
    model_code: list[Any]
    part: type
    #: names of its inputs and values of its switches, its mask, whether it has several rows, the type of autocast
    input_form: tuple[frozenset[str], str, bool, torch.dtype | None]
    #: whether a mask of its own lets members see each other
    has_open_mask: bool
    in_training: bool
    has_gradients: bool
    #: tokens of a row, and of the longest member
    row_len: int
    max_member_len: int

    def covers(self, other: "ForwardKind") -> bool:
        """Say whether a trial with this kind counts for the other: it is at least as large, and `runs_as` the other."""
        return self.row_len >= other.row_len and self.max_member_len >= other.max_member_len and self.runs_as(other)

    def runs_as(self, other: "ForwardKind") -> bool:
        """Say whether both run the same code, whatever their sizes; this one may train where the other does not."""
        return (
            (self.part, self.input_form, self.has_open_mask) == (other.part, other.input_form, other.has_open_mask)
            and self.in_training >= other.in_training
            and self.has_gradients >= other.has_gradients
            and len(self.model_code) == len(other.model_code)
            and all(map(is_, self.model_code, other.model_code))
        )


def forward_kind_of(model: Module, part: Module, inputs: Mapping[str, Any], longest: int, is_open: bool) -> ForwardKind:
    """Return the kind of a forward before it runs; `longest`: its `max_member_len`, `is_open`: its `has_open_mask`."""
    tokens = tokens_of(inputs)
    (rows, width), device = tokens.shape[:2], tokens.device.type
    cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    switches = {name: value for name, value in inputs.items() if isinstance(value, bool | str)}
    names = {name for name, value in inputs.items() if value is not None}
    form = (frozenset(f"{name}={switches.get(name, '')}" for name in names), mask_kind_of(inputs), rows > 1, cast)
    mode = part.training, torch.is_grad_enabled()
    return ForwardKind(model_code_of(model), type(part), form, is_open, *mode, width, longest)


def model_code_of(model: Module) -> list[Any]:
    """List the classes, forwards, hooks and checkpoint flags of a model's parts; compare two lists by identity."""
    kinds: list[Any] = []
    more: list[Any] = []
    waiting = [model]
    while waiting:  # the same parts as `modules()`, in half the time
        part = waiting.pop()
        waiting += [one for one in part._modules.values() if one is not None]
        kinds += (type(part), type(part).forward)
        if "forward" in part.__dict__:
            more += (part, _code_of(part.__dict__["forward"]))
        if part.__dict__.get("gradient_checkpointing"):
            more.append(part)
        for name in _HOOK_ATTRIBUTES:
            if hooks := part.__dict__.get(name):
                more += map(_code_of, hooks.values())
    return [*kinds, *more, *(_code_of(hook) for hooks in _GLOBAL_HOOKS for hook in hooks.values())]


def _code_of(function: Any) -> Any:
    """Return the code of a hook or method, to be compared by identity: a new object often has the same code."""
    if isinstance(function, partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", type(function))


@dataclass
class TriedKind:
    """A kind of forward with which a model was tried, and when it is tried again."""

    kind: ForwardKind
    #: whether the batch had members that could see each other
    is_packed: bool
    #: batches between its trials, since a flag may be set, and how many are left until the next one
    batches_between: int = _WAIT_BATCHES
    batches_left: int = _WAIT_BATCHES

    def record_trial(self, kind: ForwardKind, has_others: bool) -> None:
        """Record another trial: keep the larger sizes, and wait longer for the next if this one was due."""
        longest = max(self.kind.max_member_len, kind.max_member_len)
        self.kind = replace(self.kind, row_len=max(self.kind.row_len, kind.row_len), max_member_len=longest)
        self.is_packed |= has_others
        self.batches_between *= _WAIT_BATCHES if self.batches_left < 0 else 1
        self.batches_left = self.batches_between
