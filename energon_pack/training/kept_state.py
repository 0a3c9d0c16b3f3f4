"""Put back all that a model holds after runs of it, or refuse by name: a trial must not change a training.

A model holds tensors, generators and containers in its parts' attributes, in attributes of its parameters, in objects
in them, and in the closures of its hooks. Objects of torch are left alone: FSDP puts back its own.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import is_
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from energon_pack.training.forward_inputs import MixingError

#: elements of a tensor that is copied; a larger one holds weights (GPTQ, AWQ), and is refused if a run writes into it
_MAX_COPIED_ELEMENTS = 2**20
_MAX_DEPTH, _MAX_ITEMS = 5, 1000
_HOOK_SUFFIX = "_hooks"
#: dicts of a part that others than a forward change: FSDP swaps parameters
_LEFT_ALONE = ("_modules", "_parameters")
_CONTAINERS = (list, dict, set, deque)
_FUNCTIONS = (FunctionType, MethodType, partial)
#: homes of code and objects that are left alone
_FOREIGN = ("torch.", "energon_pack.")
#: puts something back; returns the names of tensors that it can't
_Restore = Callable[[], str]


@contextmanager
def restore_state_after_block(model: Module, is_sharded: bool) -> Iterator[Callable[[], list[str]]]:
    """Put back what a model holds when the block ends; yield a function that does so before.

    MixingError: a run wrote into a tensor too large to copy.
    """
    restores = [restore for name, value in _held(model) if (restore := _restore_of(name, value, is_sharded))]

    @torch.no_grad()
    def put_back() -> list[str]:
        return [name for restore in restores if (name := restore())]

    try:
        yield put_back
    finally:
        moved = put_back()
    if moved:
        raise MixingError(
            f"a forward of {type(model).__name__} writes into {', '.join(moved[:3])}: too large to be put back after a"
            " trial, so the training would not be the same with the guard and without"
        )


def _held(model: Module) -> Iterator[tuple[str, Any]]:
    """Yield what a model holds that runs may change, each once, with its name."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any, int]] = [(name, part, 0) for name, part in model.named_modules()]
    while waiting:
        name, value, depth = waiting.pop()
        if id(value) in seen or depth > _MAX_DEPTH:
            continue
        seen.add(id(value))
        inner = [*_inner_values(name, value, is_part=depth == 0)]
        waiting += [(of, one, depth + 1) for of, one in inner if not isinstance(one, Module)]
        if inner or isinstance(value, (*_CONTAINERS, Tensor, torch.Generator, random.Random, np.random.Generator)):
            yield name, value
        if isinstance(value, Tensor):
            yield name, vars(value)


def _inner_values(name: str, value: Any, is_part: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", one) for key, one in [*value.items()][:_MAX_ITEMS])
    elif isinstance(value, (list, tuple, set, deque)):
        yield from ((f"{name}[{number}]", one) for number, one in enumerate([*value][:_MAX_ITEMS]))
    elif isinstance(value, CellType):
        yield name, _cell_content(value)
    elif isinstance(value, _FUNCTIONS):
        yield from ((f"{name} ({key})", one) for key, one in _closure(value))
    elif isinstance(value, Tensor):
        yield from ((f"{name}.{key}", one) for key, one in vars(value).items() if _is_restorable(value))
        if value.requires_grad:
            yield from ((f"a hook of {name}", hook) for hook in (value._backward_hooks or {}).values())
    elif is_part or _is_restorable(value):
        for key, one in vars(value).items():
            yield (f"{name}.{key}" if name else key), one
            if is_part and key in ("_parameters", "_buffers"):  # by the names under which they are known
                yield from ((f"{name}.{of}" if name else of, each) for of, each in one.items())
            elif is_part and key.endswith(_HOOK_SUFFIX) and isinstance(one, dict):
                yield from ((f"a hook of {name}", hook) for hook in one.values())


def _is_restorable(value: Any) -> bool:
    """Say whether an object's attributes may be put back: not those of classes, configs and torch's own objects."""
    is_foreign = isinstance(value, type) or hasattr(value, "model_type") or type(value).__module__.startswith(_FOREIGN)
    return hasattr(value, "__dict__") and (type(value) is torch.nn.Parameter or not is_foreign)


def _closure(function: Any) -> Iterator[tuple[str, Any]]:
    function = getattr(function, "func", function)  # of a partial
    if (getattr(function, "__module__", None) or "").startswith(_FOREIGN):
        return
    if (owner := getattr(function, "__self__", None)) is not None:
        yield "its object", owner
    function = getattr(function, "__func__", function)
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    yield from zip(names, getattr(function, "__closure__", None) or (), strict=False)


def _cell_content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def _restore_of(name: str, value: Any, is_sharded: bool) -> _Restore | None:
    if isinstance(value, Tensor):
        is_shard = is_sharded and (isinstance(value, torch.nn.Parameter) or value.requires_grad)
        return None if is_shard else _restore_tensor(name, value)
    if isinstance(value, torch.Generator):
        return _restore_by(partial(value.set_state, value.get_state()))
    if isinstance(value, random.Random):
        return _restore_by(partial(value.setstate, value.getstate()))
    if isinstance(value, np.random.Generator):
        return _restore_attribute(value.bit_generator, "state")
    if isinstance(value, CellType):
        return _restore_attribute(value, "cell_contents") if _cell_content(value) is not None else None
    if isinstance(value, _CONTAINERS):
        is_left = name.endswith(_LEFT_ALONE) or (is_sharded and _HOOK_SUFFIX in name)
        return None if is_left else _restore_container(value)
    has_shards = is_sharded and isinstance(value, Module)
    return _restore_container(vars(value), has_shards) if hasattr(value, "__dict__") else None


def _restore_by(function: Callable[[], object]) -> _Restore:
    def restore() -> str:
        function()
        return ""

    return restore


def _restore_attribute(owner: Any, name: str) -> _Restore:
    return _restore_by(partial(setattr, owner, name, getattr(owner, name)))


def _restore_container(value: Any, has_shards: bool = False) -> _Restore:
    first = value.copy()

    def restore() -> str:
        before = first
        if has_shards:  # FSDP1 keeps views of its flat parameters there
            before = {key: one for key, one in first.items() if not isinstance(one, Tensor)}
            before |= {key: one for key, one in value.items() if isinstance(one, Tensor)}
        values, earlier = ([*one.values()] if isinstance(one, dict) else [*one] for one in (value, before))
        if len(values) == len(earlier) and all(map(is_, values, earlier)):
            return ""
        value.clear()
        value.extend(before) if isinstance(value, (list, deque)) else value.update(before)
        return ""

    return restore


def _restore_tensor(name: str, value: Tensor) -> _Restore | None:
    """Return a function that puts a tensor back: its memory by itself, what is written into it by a copy."""
    if is_lazy(value):
        raise MixingError(f"{name} has no values before a first forward: run the model once before its training")
    is_plain = value.layout == torch.strided and not (value.is_meta or value.is_inference())
    if not is_plain or is_traceable_wrapper_subclass(value) or not value.untyped_storage().size():
        return None
    first, version = value.detach(), value._version
    is_copied = value.numel() <= _MAX_COPIED_ELEMENTS and not value.requires_grad
    copy = first.clone() if is_copied else None

    def restore() -> str:
        if not first.untyped_storage().size():  # FSDP frees it
            return ""
        if value.data_ptr() != first.data_ptr() or value.shape != first.shape:
            value.data = first
        if copy is not None and not torch.equal(value, copy):
            value.copy_(copy)
        return f"{name} ({value.numel():,} values)" if copy is None and value._version != version else ""

    return restore
