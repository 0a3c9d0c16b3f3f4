"""Jobs and results as bytes in a file: values, and the names of what this package itself defines.

A folder that many machines write to is no place for pickles, which bring code along. Reading a file runs none; a job
calls a function of this package, as its file says.

    bytes  =  magic · checksum of all that follows · length of the JSON · JSON · buffers
    JSON   =  a tree: numbers, texts and null as they are, all else a list that begins with its kind
"""

import importlib
import io
import json
import os
import struct
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from energon_pack import __version__

_MAGIC = b"energon_pack job\n"
_SIZE = struct.Struct("<I")
_PACKAGE = "energon_pack"
_BUILT_IN: dict[str, type[Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_KINDS: dict[type[Any], str] = {kind: name for name, kind in _BUILT_IN.items()}


class WireError(ValueError):
    """Bytes that no job or result of this version is."""


def encode(value: Any) -> bytes:
    """A job or a result as bytes.

    Raises:
        TypeError: it holds something that is no value, and not of this package.
    """
    writer = _Writer()
    tree = json.dumps([__version__, writer.tree(value), [len(data) for data in writer.buffers]]).encode()
    body = b"".join([_SIZE.pack(len(tree)), tree, *writer.buffers])
    return _MAGIC + _SIZE.pack(crc32(body)) + body


def decode(data: bytes) -> Any:
    """What `encode` was given, or its equal.

    Raises:
        WireError: it is not whole, of another version, or names what this package does not define.
    """
    start = len(_MAGIC) + _SIZE.size
    if data[: len(_MAGIC)] != _MAGIC or len(data) < start + _SIZE.size:
        raise WireError("this is no job and no result")
    body = memoryview(data)[start:]
    if (crc32(body),) != _SIZE.unpack_from(data, len(_MAGIC)):
        raise WireError("it is not whole")
    end = _SIZE.size + _SIZE.unpack_from(body)[0]
    version, tree, sizes = json.loads(bytes(body[_SIZE.size : end]))
    if version != __version__:
        raise WireError(f"energon_pack {version} made it, and this is {__version__}: all machines need the same")
    try:
        return _Reader(body[end:], sizes).value(tree)
    except (LookupError, TypeError, ImportError) as error:
        raise WireError(f"it says what makes no sense: {type(error).__name__}: {error}") from error


class _Writer:
    def __init__(self) -> None:
        self.buffers: list[bytes] = []
        self._numbers: dict[int, int] = {}  # by id, of what is in the tree
        self._kept: list[Any] = []  # else an id might be another's soon

    def tree(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if id(value) in self._numbers:
            return ["same", self._numbers[id(value)]]
        made = self._made(value)
        self._numbers[id(value)] = len(self._kept)
        self._kept.append(value)
        return made

    def _made(self, value: Any) -> list[Any]:
        cls = type(value)
        if cls in _KINDS:
            return [_KINDS[cls], *map(self.tree, value)]
        if cls is dict:
            return ["dict", *([self.tree(key), self.tree(item)] for key, item in value.items())]
        if isinstance(value, bytes):
            return ["bytes", self._buffer(value)]
        if isinstance(value, np.ndarray | np.generic):
            file = io.BytesIO()
            np.save(file, value, allow_pickle=False)
            return ["scalar" if isinstance(value, np.generic) else "array", self._buffer(file.getvalue())]
        if isinstance(value, pa.Table):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, value.schema) as stream:
                stream.write_table(value)
            return ["table", self._buffer(sink.getvalue().to_pybytes())]
        if isinstance(value, Path):
            return ["path", str(value)]
        if isinstance(value, partial):
            return ["partial", *map(self.tree, (value.func, value.args, value.keywords))]
        if isinstance(value, FunctionType | type):
            return ["named", _name_of(value)]
        if isinstance(value, BaseException):
            return self._error(value)
        return self._object(value)

    def _object(self, value: Any) -> list[Any]:
        name = _name_of(type(value))
        if isinstance(value, Enum):
            return ["member", name, value.name]
        if isinstance(value, tuple):  # a NamedTuple
            return ["row", name, *map(self.tree, value)]
        names = [field.name for field in fields(value)] if is_dataclass(value) else list(vars(value))
        return ["object", name, *([field, self.tree(getattr(value, field))] for field in names)]

    def _error(self, error: BaseException) -> list[Any]:
        """An error of Python's or this package's, with its arguments; another's as a text."""
        arguments: Any = error.__reduce__()[1]
        arguments = tuple(os.fspath(item) if isinstance(item, os.PathLike) else item for item in arguments)
        is_known = type(error).__module__ == "builtins" or _is_ours(type(error).__module__)
        if not is_known or not all(isinstance(item, str | bytes | int | float | None) for item in arguments):
            return ["error", "builtins:RuntimeError", self.tree((f"{type(error).__name__}: {error}",)), self.tree({})]
        told = {name: item for name, item in vars(error).items() if isinstance(item, str | int | float | None)}
        return ["error", _name_of(type(error)), self.tree(arguments), self.tree(told)]

    def _buffer(self, data: bytes) -> int:
        self.buffers.append(data)
        return len(self.buffers) - 1


class _Reader:
    def __init__(self, body: memoryview, sizes: list[int]):
        ends = np.cumsum([0, *sizes]).tolist()
        self._buffers = [body[start:end] for start, end in pairwise(ends)]
        self._made: list[Any] = []

    def value(self, tree: Any) -> Any:
        if not isinstance(tree, list):
            return tree
        if not tree:
            raise WireError("a list without a kind is nothing that is known")
        kind, *rest = tree
        if kind == "same":
            return self._made[rest[0]]
        made = self._make(kind, rest)
        self._made.append(made)
        return made

    def _make(self, kind: str, rest: list[Any]) -> Any:
        if kind in _BUILT_IN:
            return _BUILT_IN[kind](map(self.value, rest))
        if kind == "dict":
            return {self.value(key): self.value(item) for key, item in rest}
        if kind == "bytes":
            return bytes(self._buffers[rest[0]])
        if kind in ("array", "scalar"):
            array = np.load(io.BytesIO(self._buffers[rest[0]]), allow_pickle=False)
            return array[()] if kind == "scalar" else array
        if kind == "table":
            return pa.ipc.open_stream(pa.py_buffer(self._buffers[rest[0]])).read_all()
        if kind == "path":
            return Path(rest[0])
        if kind == "partial":
            function, arguments, keywords = map(self.value, rest)
            return partial(function, *arguments, **keywords)
        named = _found(rest[0])
        if kind == "named":
            return named
        if kind == "error":
            error = _checked(named, BaseException)(*self.value(rest[1]))
            vars(error).update(self.value(rest[2]))
            return error
        if kind == "member":
            return _checked(named, Enum)[rest[1]]
        if kind == "row":
            return _checked(named, tuple)(*map(self.value, rest[1:]))
        if kind != "object" or not isinstance(named, type):
            raise WireError(f"{kind} of {rest[0]} is nothing that is known")
        made: Any = object.__new__(named)
        for name, item in rest[1:]:
            object.__setattr__(made, name, self.value(item))  # frozen ones, too
        return made


def _is_ours(module: str) -> bool:
    return f"{module}.".startswith(f"{_PACKAGE}.")


def _name_of(value: Any) -> str:
    name = f"{value.__module__}:{value.__qualname__}"
    try:
        if _found(name) is value:
            return name
    except WireError:
        pass
    raise TypeError(f"{value} can't be named in a file: another machine would not find it")


def _found(name: str) -> Any:
    """What this package defines under a name, or an error of Python's."""
    module, _, path = name.partition(":")
    if not _is_ours(module) and module != "builtins":
        raise WireError(f"{name} is nothing of energon_pack")
    value: Any = importlib.import_module(module)
    for step in path.split("."):
        value = getattr(value, step, None)
    is_error = isinstance(value, type) and issubclass(value, BaseException)
    if (getattr(value, "__module__", None), getattr(value, "__qualname__", None)) != (module, path) or (
        module == "builtins" and not is_error
    ):
        raise WireError(f"{name} is nothing that energon_pack defines")
    return value


def _checked(value: Any, kind: type) -> Any:
    if not (isinstance(value, type) and issubclass(value, kind)):
        raise WireError(f"{value} is no {kind.__name__}")
    return value
