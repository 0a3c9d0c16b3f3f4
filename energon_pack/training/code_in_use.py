"""The code that a model runs now, to be compared with what it ran when it was tried: in about a millisecond.

Functions are compared by which they are, not by what they hold: one that is written over in place (`__code__`) is the
same. So is one that differs in what it encloses alone, where it is a hook or the `forward` of one instance.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import is_, itemgetter
from typing import Any

import torch
from torch.nn import Module

from energon_pack.training.makeup import sources_of, tables_of

Code = list[Any]


class CodeInUse:
    """Of one model."""

    def __init__(self, model: Module):
        self._model = model
        self._kinds: frozenset[type] = frozenset()
        self._names: list[tuple[Mapping[Any, Any], Callable[[Any], Any]]] = []

    def now(self, with_hooks: bool = True) -> Code:
        """Classes of all parts, what was replaced in them, their hooks, and the functions and methods they name."""
        kinds: list[Any] = []
        code: Code = kinds
        more: Code = []
        for part in _parts(self._model):
            kinds.append(type(part))
            if "forward" in part.__dict__:
                more += (part, _code_of(part.__dict__["forward"]))
            if with_hooks and (part._forward_pre_hooks or part._forward_hooks):
                more += map(_code_of, (*part._forward_pre_hooks.values(), *part._forward_hooks.values()))
        if (unlike := frozenset(kinds)) != self._kinds:
            self._kinds, self._names = unlike, [*_names(self._model, unlike)]
        code += more
        for names, these in self._names:
            try:
                code += these(names)
            except KeyError as error:
                code.append(error.args[0])
        return code


def is_same(some: Code, other: Code) -> bool:
    """Whether both are of the same objects, in the same order."""
    return len(some) == len(other) and all(map(is_, some, other))


def _parts(model: Module) -> Iterator[Module]:
    """As `modules()`, in half the time."""
    waiting = [model]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += [one for one in part._modules.values() if one is not None]


def _names(model: Module, kinds: frozenset[type]) -> Iterator[tuple[Mapping[Any, Any], Callable[[Any], Any]]]:
    """Where functions are looked up by name, and a way to get them all."""
    spaces: dict[int, Mapping[Any, Any]] = {}
    for base in {base for kind in kinds for base in kind.__mro__ if base is not object}:
        spaces[id(base)] = vars(base)
    for module in [*sources_of(model), torch.nn.functional]:
        spaces[id(module)] = vars(module)
        for value in vars(module).values():
            tables = tables_of(value) if isinstance(value, Mapping) else []
            spaces |= {id(table): table for table in tables if type(table) is dict}  # others import what they are asked
    for space in spaces.values():
        keys = [key for key, value in space.items() if callable(value)]
        if keys:
            yield space, itemgetter(*keys, keys[0])  # of two names at least: a tuple


def _code_of(function: Any) -> Any:
    """Hooks and replaced methods are often made anew, of the same code."""
    if isinstance(function, partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", type(function))
