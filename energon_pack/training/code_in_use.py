"""Find out in about a millisecond whether a model still runs the code with which it was tried.

Functions are compared by identity, not by content: a function whose `__code__` is overwritten counts as the same. A
hook, or the `forward` of one instance, is compared by its code: values in its closure do not count.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import is_, itemgetter
from typing import Any

import torch
from torch.nn import Module

from energon_pack.training.makeup import sources_of, tables_of

Code = list[Any]
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
#: hooks on all modules
_OF_ALL = [getattr(torch.nn.modules.module, f"_global{name}") for name in _HOOKS]


class CodeInUse:
    """The code of one model."""

    def __init__(self, model: Module):
        self._model = model
        self._kinds: frozenset[type] = frozenset()
        self._names: list[tuple[Mapping[Any, Any], Callable[[Any], Any]]] = []

    def now(self) -> Code:
        """List the classes of all parts, their replaced methods and hooks, and the functions that they name."""
        kinds: list[Any] = []
        code: Code = kinds
        more: Code = []
        for part in _parts(self._model):
            kinds.append(type(part))
            if "forward" in part.__dict__:
                more += (part, _code_of(part.__dict__["forward"]))
            if part.__dict__.get("gradient_checkpointing"):
                more.append(part)
            for name in _HOOKS:
                if hooks := part.__dict__.get(name):
                    more += map(_code_of, hooks.values())
        if (unlike := frozenset(kinds)) != self._kinds:
            self._kinds, self._names = unlike, [*_names(self._model, unlike)]
        code += more
        code += [_code_of(hook) for hooks in _OF_ALL for hook in hooks.values()]
        for names, these in self._names:
            try:
                code += these(names)
            except KeyError as error:
                code.append(error.args[0])
        return code


def is_same(some: Code, other: Code) -> bool:
    """Say whether both list the same objects in the same order."""
    return len(some) == len(other) and all(map(is_, some, other))


def _parts(model: Module) -> Iterator[Module]:
    """Yield the same parts as `modules()` in half the time."""
    waiting = [model]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += [one for one in part._modules.values() if one is not None]


def _names(model: Module, kinds: frozenset[type]) -> Iterator[tuple[Mapping[Any, Any], Callable[[Any], Any]]]:
    """Yield the names in each module or class in which the model looks up functions, with a getter of them."""
    spaces: dict[int, Mapping[Any, Any]] = {}
    for base in {base for kind in kinds for base in kind.__mro__ if base is not object}:
        spaces[id(base)] = vars(base)
    for module in [*sources_of(model), torch.nn.functional]:
        spaces[id(module)] = vars(module)
        for value in vars(module).values():
            tables = tables_of(value) if isinstance(value, Mapping) else []
            spaces |= {id(table): table for table in tables if type(table) is dict}  # a lazy table imports on lookup
    for space in spaces.values():
        keys = [key for key, value in space.items() if callable(value)]
        if keys:
            yield space, itemgetter(*keys, keys[0])  # two names at least, so that it returns a tuple


def _code_of(function: Any) -> Any:
    """Return what a hook or a replaced method is compared by: a new object often has the same code."""
    if isinstance(function, partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", type(function))
