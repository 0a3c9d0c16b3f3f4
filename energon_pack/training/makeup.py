"""What a model is made of: the kinds of its parts, and the code that they run now."""

import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch.nn import Module

from energon_pack.training.wrapped import class_of

#: switched on and off while a model is trained
_SWITCHES = frozenset(("training", "gradient_checkpointing"))
_SIMPLE = (bool, int, float, str, bytes, type(None))


def kinds_of(model: Module) -> frozenset[str]:
    """Kinds of parts: their class, and what is named, switched or left out in one layer and not in another.

    Parts of other packages (adapters, quantized weights) are none of the model's own.
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
    """Parts whose `forward` is another than that of their class; decorators of it are none."""
    return [
        name or type(model).__name__
        for name, part in model.named_modules()
        if "forward" in vars(part) and _bare(vars(part)["forward"]) is not _bare(type(part).forward)
    ]


def code_of(model: Module) -> str:
    """A digest of the functions that a model's modules have now, or use of its own packages.

    Some trainers replace them: in a class, in a module, in a table of functions.
    """
    digest = hashlib.sha256()
    for module in sources_of(model):
        for name, function in _functions(module):
            digest.update(f"{module.__name__} {name}".encode())
            for part in _parts(function, set()):
                digest.update(part.encode())
    return digest.hexdigest()


def sources_of(model: Module) -> list[ModuleType]:
    """The Python modules that its models are written in, and those of the same packages that they take something of."""
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
    """The Python modules that its models are written in."""
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
    """What a table of functions holds."""
    return {str(key): item for table in tables_of(value) for key, item in dict.items(table)}


def tables_of(value: Mapping[Any, Any]) -> list[dict[Any, Any]]:
    """The dicts that a table is, or is made over; nothing is imported for it."""
    tables = [value] if isinstance(value, dict) else [*vars(type(value)).values(), *vars(value).values()]
    return [table for table in tables if isinstance(table, dict)]


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
    """All that a function does differently if it is another: instructions, names, constants, what it encloses."""
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
