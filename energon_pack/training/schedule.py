"""Decide which forwards of a guarded model are tried: new code and modes at once, new sizes by and by, some for ever.

Forwards are counted by situation, so that ranks that run the same code try at the same forwards. A forward that is not
asked about reads nothing from its device.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from energon_pack.training.batch_members import MemberPlaces
from energon_pack.training.forward_inputs import ids_or_embeddings
from energon_pack.training.media_shares import media_inputs_in

#: members of a trial: the first one in a situation, the second one, one of new sizes, and each later one
MOST, _SOME, _OF_NEW_SIZES, _FEW = 16, 8, 4, 2
#: first forwards of a situation that may try new sizes
_EARLY_SLOTS = (4, 8, 16)
#: (last, every): up to the forward `last`, one in `every` may try new sizes; by the last two 10,000 steps take 1 % more
_SLOTS = ((100, 25), (1000, 100), (math.inf, 200))
#: forwards between two trials of any sizes, for as long as a model trains; where `every` is larger, so many
_EVERY = 100
#: a kernel's block: shorter members may take another way
_BLOCK_LEN = 16
_HOOK_ATTRIBUTES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
#: hooks on all modules
_GLOBAL_HOOKS = [getattr(torch.nn.modules.module, f"_global{name}") for name in _HOOK_ATTRIBUTES]
#: attributes of adapters that choose what runs
_SWITCHES = ("_active_adapter", "_disable_adapters", "merged_adapters")
_PLAIN_TYPES = (bool, str, bytes, type(None))


class TrialScope(NamedTuple):
    """What a trial tries."""

    #: 0: no trial
    num_members: int
    compares_gradients: bool = True
    replaces_words: bool = True


@dataclass
class TrialSituation:
    """One way to run a model, and the trials that it had."""

    #: objects whose identities are in its key, so that no other object gets them
    kept: Sequence[Any] = ()
    num_forwards: int = 0
    num_trials: int = 0
    sizes: set[tuple[str, Any]] = field(default_factory=set)
    shapes: set[Sequence[int]] = field(default_factory=set)

    @property
    def may_try(self) -> bool:
        """Whether a trial of this forward is possible: the first two are not over, or its number is one of a slot."""
        return self.num_trials < 2 or self.num_forwards in _EARLY_SLOTS or self.num_forwards % self._slot_interval == 0

    @property
    def _slot_interval(self) -> int:
        return next(every for last, every in _SLOTS if self.num_forwards <= last)

    def trial_scope(self, has_new_sizes: bool) -> TrialScope:
        """Return what is to be tried in this forward, which `may_try`.

        Of later trials each fourth is whole, and each second replaces words: a backward costs two forwards, words one.
        """
        number, every = self.num_forwards, max(_EVERY, self._slot_interval)
        if self.num_trials < 2:
            return TrialScope(_SOME if self.num_trials else MOST)
        replaces_words = number in _EARLY_SLOTS or number % (2 * every) == 0
        if has_new_sizes:
            return TrialScope(_OF_NEW_SIZES, replaces_words=replaces_words)
        return TrialScope(_FEW if number % every == 0 else 0, number % (4 * every) == 0, replaces_words)

    def count(self, shape: Sequence[int], is_run: bool) -> tuple[str, bool]:
        """Count a forward that `is_run`, or is only tried; return, as a size, whether one that ran had its shape.

        A model may then use what it kept by this shape from an earlier batch.
        """
        self.num_forwards += 1
        is_known = shape in self.shapes
        self.shapes |= {shape} if is_run else set()
        return "has a shape of before", is_known

    def record(self, sizes: set[tuple[str, Any]]) -> None:
        """Record a trial that passed with a batch of these sizes."""
        self.num_trials += 1
        self.sizes |= sizes


def situation_key(model: Module, part: Module, inputs: Mapping[str, Any], mask: Hashable) -> tuple[Hashable, list[Any]]:
    """Return a key of all that may make a forward run other code, whatever its sizes, and the objects named in it.

    Args:
        mask: the kind of mask that the batch has.
    """
    device = ids_or_embeddings(inputs).device.type
    cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    switches = frozenset((name, value) for name, value in inputs.items() if isinstance(value, (bool, str)))
    names = frozenset(name for name, value in inputs.items() if value is not None and not isinstance(value, Tensor))
    of_tokens = frozenset(name for name in ("inputs_embeds", "labels", "shift_labels") if inputs.get(name) is not None)
    mode = part.training, torch.is_grad_enabled(), torch.is_inference_mode_enabled(), cast
    code = _Code()
    code.add_model(model)
    return (type(part), mode, switches, names, of_tokens, mask, _torch_flags(), tuple(code.key)), code.kept


def _torch_flags() -> Hashable:
    cuda = torch.backends.cuda
    kernels = cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()
    return torch.get_float32_matmul_precision(), kernels, torch.are_deterministic_algorithms_enabled()


class _Code:
    """The classes, forwards, hooks and switches of a model's parts, as values that can be compared."""

    def __init__(self) -> None:
        self.key: list[Hashable] = []
        self.kept: list[Any] = []

    def add_model(self, model: Module) -> None:
        waiting = [model]
        while waiting:  # the same parts as `modules()`, in half the time
            part = waiting.pop()
            waiting += [one for one in part._modules.values() if one is not None]
            own = part.__dict__
            self._add_object(type(part))
            self._add_object(type(part).forward)
            if "forward" in own:
                self._add_object(part)
                self._add_function(own["forward"])
            if own.get("gradient_checkpointing"):
                self.key.append("checkpointing")
            self.key += [str(own[name]) for name in _SWITCHES if name in own]
            self._add_hooks(own.get(name) for name in _HOOK_ATTRIBUTES)
        self._add_hooks(_GLOBAL_HOOKS)

    def _add_hooks(self, every: Iterable[Mapping[Any, Any] | None]) -> None:
        for hooks in every:
            for hook in (hooks or {}).values():
                self._add_function(hook)

    def _add_function(self, function: Any, depth: int = 0) -> None:
        """Add what a function is made of: a new object often has the same code, and the same code other closures."""
        if isinstance(function, partial):
            self._add_values([*function.args, *function.keywords.values()], depth)
            function = function.func
        if (owner := getattr(function, "__self__", None)) is not None:
            self._add_object(owner)
        function = getattr(function, "__func__", function)
        self._add_object(getattr(function, "__code__", type(function)))
        self._add_values(getattr(function, "__defaults__", None) or (), depth)
        for cell in getattr(function, "__closure__", None) or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            counts = isinstance(content, (int, float)) and not isinstance(content, bool)
            self._add_values([cell if counts else content], depth)

    def _add_values(self, values: Iterable[Any], depth: int) -> None:
        for value in values:
            if isinstance(value, _PLAIN_TYPES):
                self.key.append(value)
            elif hasattr(value, "__code__") and depth < 2:
                self._add_function(value, depth + 1)
            else:
                self._add_object(value)

    def _add_object(self, value: Any) -> None:
        self.key.append(id(value))
        self.kept.append(value)


def kernel_sizes_of(model: Module, inputs: Mapping[str, Any], members: Sequence[MemberPlaces]) -> set[tuple[str, Any]]:
    """Return the sizes by which kernels choose another way, each by itself: together they would all be new."""
    rows, width = ids_or_embeddings(inputs).shape[:2]
    lengths = [len(one.places) for one in members]
    trained = next((one for one in model.parameters() if one.requires_grad), None)
    return {
        ("rows", min(rows, 4)),
        ("width", int(2 * math.log2(max(1, width)))),
        ("members", _magnitude(len(members))),
        ("has short members", min(lengths, default=0) < _BLOCK_LEN),
        ("has members alike", len({*lengths}) < len(lengths)),
        ("longest member", _magnitude(max(lengths, default=0))),
        ("is padded", sum(len(one.own) for one in members) < rows * width),
        ("has gradients", trained is not None and trained.grad is not None),
        *((name, _magnitude(len(value))) for name, value in media_inputs_in(inputs).items()),
    }


def _magnitude(number: int) -> int:
    return int(math.log2(max(1, number)))
