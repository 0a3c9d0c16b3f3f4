"""Describe a model: the kinds of its parts, and the code that they run now."""

import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch.nn import Module

from energon_pack.training.wrapped import class_of

#: attributes that are switched on and off while a model is trained
_SWITCHES = frozenset(("training", "gradient_checkpointing"))
_SIMPLE = (bool, int, float, str, bytes, type(None))


def kinds_of(model: Module) -> frozenset[str]:
    """Return the kinds of a model's parts: each class, and each class with one of its bool, str or None attributes.

    Parts from other packages (adapters, quantized weights) are left out.
    """
    homes = set(_homes(model))
    found = set()
    for part in model.modules():
        kind = class_of(part)
        if kind.__module__ in homes:
            is_whole = hasattr(part, "_from_config")  # trainers keep notes on these
            values = {} if is_whole else {k: v for k, v in vars(part).items() if not k.startswith("_")}
            found.add(kind.__name__)
            found |= {
                f"{kind.__name__} with {name}={value}"
                for name, value in values.items()
                if isinstance(value, (bool, str, type(None))) and name not in _SWITCHES
            }
    return frozenset(found)


def replaced_in(model: Module) -> list[str]:
    """Return the names of parts whose `forward` was replaced; a decorated forward of the class does not count."""
    return [
        name or type(model).__name__
        for name, part in model.named_modules()
        if "forward" in vars(part) and _bare(vars(part)["forward"]) is not _bare(type(part).forward)
    ]


def code_of(model: Module) -> str:
    """Hash the functions in the model's Python modules, and those that they use from the same packages.

    Some trainers replace them: in a class, in a module, in a table of functions.
    """
    digest = hashlib.sha256()
    for module in _sources(model):
        for name, function in _functions(module):
            digest.update(f"{module.__name__} {name}".encode())
            for part in _parts(function, set()):
                digest.update(part.encode())
    return digest.hexdigest()


def _sources(model: Module) -> list[ModuleType]:
    """Return the Python modules that define the model, and modules of the same packages from which they import."""
    homes = {*_homes(model)}
    packages = {name.partition(".")[0] for name in homes}
    used = {
        value.__module__
        for home in homes
        for value in vars(sys.modules[home]).values()
        if inspect.isfunction(value) or inspect.isclass(value)
    }
    names = sorted(homes | {name for name in used if name and name.partition(".")[0] in packages})
    return [sys.modules[name] for name in names if name in sys.modules]


def _homes(model: Module) -> Iterator[str]:
    """Yield the names of the Python modules that define the model and the models inside it."""
    yield class_of(model).__module__
    for kind in {class_of(part) for part in model.modules()}:
        yield from (base.__module__ for base in kind.__mro__ if hasattr(base, "_from_config"))


def _bare(function: Any) -> Any:
    bare = inspect.unwrap(function)
    return getattr(bare, "__func__", bare)


def _functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in sorted(vars(module).items()):
        members: Mapping[str, Any] = {"": value}
        if inspect.isclass(value):
            members = vars(value) if value.__module__ == module.__name__ else {}
        elif isinstance(value, Mapping):
            members = _table(value)
        for key, item in sorted(members.items()):
            yield from ((f"{name}.{key}", function) for function in _within(item))


def _table(value: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the functions of a table by name."""
    # a lookup in a lazy table may cause imports
    tables = [value] if isinstance(value, dict) else [*vars(type(value)).values(), *vars(value).values()]
    return {str(key): item for table in tables if isinstance(table, dict) for key, item in dict.items(table)}


def _within(value: Any) -> Iterator[FunctionType]:
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, (classmethod, staticmethod, MethodType)):
        value = value.__func__
    if isinstance(value, partial):
        value = value.func
    if isinstance(value, FunctionType):
        yield value


def _parts(value: Any, seen: set[int]) -> Iterator[str]:
    """Yield everything that tells a function from another: instructions, names, constants, closure, defaults."""
    if isinstance(value, FunctionType):
        if id(value) in seen:
            return
        seen.add(id(value))
        yield from _parts(value.__code__, seen)
        for cell in value.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            yield from _parts(content, seen)
        yield from _parts(value.__defaults__, seen)
    elif isinstance(value, CodeType):
        yield f"{value.co_code.hex()} {value.co_names} {value.co_freevars}"
        yield from _parts(value.co_consts, seen)
    elif isinstance(value, frozenset):
        yield str(sorted(map(repr, value)))
    elif isinstance(value, tuple):
        for item in value:
            yield from _parts(item, seen)
    elif isinstance(value, _SIMPLE):
        yield repr(value)
    else:
        yield from (part for function in _within(value) for part in _parts(function, seen))
