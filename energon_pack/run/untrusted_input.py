"""Read JSON and YAML that others wrote, and bound what a small input expands to.

`bounded` has the kernel refuse memory above a bound before it is touched, so nobody has to know all the ways to ask for
it: Python, numpy and pyarrow raise MemoryError then.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from threading import Lock, current_thread, main_thread
from typing import Any, NoReturn, TypeVar, get_args, get_type_hints

import yaml

from energon_pack.errors import format_bytes

_bounds_lock = Lock()
#: the bounds that threads of this process are in, and the limits outside of them
_memory_bounds: list[int] = []
_outer_limits = [(resource.RLIM_INFINITY, resource.RLIM_INFINITY)]
#: whether bounds of memory hold here
_is_enabled: list[bool] = []


def enable_memory_bounds() -> None:
    """Let `bounded` limit the memory of this process from now on: for a process whose threads all work for this
    package.

    In a trainer's process other threads may need memory at any time, so nothing is limited there.
    """
    _is_enabled[:] = [True]


class BoundExceeded(Exception):
    """Something took more memory, or more time, than its input can need."""


@contextmanager
def bounded_memory_and_time(max_bytes: int, max_seconds: float | None = None) -> Iterator[None]:
    """Limit the block to `max_bytes` of memory above what the process uses now, and to `max_seconds` of CPU time of its
    thread.

    Blocks may be nested. Memory is limited only on Linux after `enable_memory_bounds`, time only in the main thread.

    Raises:
        BoundExceeded: the block exceeded a limit.
    """
    with _bounded_seconds(max_seconds), _bounded_memory(max_bytes):
        yield


@contextmanager
def _bounded_memory(num_bytes: int) -> Iterator[None]:
    if not (_is_enabled and sys.platform.startswith("linux")):
        yield
        return
    bound = _data_bytes() + num_bytes
    _update_limit(_memory_bounds.append, bound)
    try:
        yield
    except MemoryError:
        raise BoundExceeded(f"it takes more than {format_bytes(num_bytes)} of memory") from None
    finally:
        _update_limit(_memory_bounds.remove, bound)


def _update_limit(change: Callable[[int], None], bound: int) -> None:
    with _bounds_lock:
        if not _memory_bounds:
            _outer_limits[0] = resource.getrlimit(resource.RLIMIT_DATA)
        change(bound)
        soft, hard = _outer_limits[0]
        limits = [limit for limit in (*_memory_bounds, soft, hard) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits, default=soft), hard))


def _data_bytes() -> int:
    """Return what `RLIMIT_DATA` counts of this process: proc(5), statm."""
    file = os.open("/proc/self/statm", os.O_RDONLY)  # a third of the time of `open`: each rendering and video asks
    try:
        return int(os.read(file, 256).split()[5]) * resource.getpagesize()
    finally:
        os.close(file)


@contextmanager
def _bounded_seconds(seconds: float | None) -> Iterator[None]:
    if seconds is None or current_thread() is not main_thread():
        yield
        return

    def end(*_: object) -> NoReturn:
        raise BoundExceeded(f"it takes more than {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 1.0)  # again each second: a `__del__` may swallow the error
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before or signal.SIG_DFL)


Node = TypeVar("Node")

_MAX_YAML_VALUES = 10_000_000  # of a YAML file, where each alias counts as what it stands for


class UnparsableDataError(ValueError):
    """A text is no JSON or YAML, or is nested or repeated without bound."""


def parse_json(data: str | bytes) -> Any:
    """Parse JSON; raises ValueError if it is none, or nested too deeply."""
    try:
        return json.loads(data)
    except RecursionError:
        raise UnparsableDataError("nested too deeply") from None


def parse_yaml(data: str | bytes, loader_type: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Parse the first document of a YAML file; return None if there is none.

    Raises:
        NotPlain: it is no YAML, or aliases of lists of aliases would stand for more than `_MAX_YAML_VALUES` values.
    """
    try:
        loader = loader_type(data)
        node = loader.get_single_node()
        if node is None:
            return None
        _count_values(node, {})
        return loader.construct_document(node)
    except RecursionError:
        raise UnparsableDataError("nested too deeply, or within itself") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        raise UnparsableDataError(" ".join(str(error).split())) from None


def _count_values(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many values a node stands for, with its aliases; raises NotPlain above `_MAX_YAML_VALUES`."""
    if id(node) not in known:
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        each = (one for item in inner for one in (item if isinstance(item, tuple) else (item,)))
        known[id(node)] = 1 + sum(_count_values(one, known) for one in each)
        if known[id(node)] > _MAX_YAML_VALUES:
            raise UnparsableDataError(f"its aliases stand for more than {_MAX_YAML_VALUES:,} values")
    return known[id(node)]


def plain(node: Any) -> dict[str, Any]:
    """Return a dataclass as nested dicts of its fields, with the values of its enums: fit for JSON."""

    def value(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: value(entry) for key, entry in item.items()}
        return item.value if isinstance(item, Enum) else item

    result: dict[str, Any] = value(asdict(node))
    return result


def dataclass_from_dict(dataclass_type: type[Node], values: Mapping[str, Any]) -> Node:
    """Build a dataclass from what `plain` returned; values without a field are left out.

    Raises:
        ValueError: a value is not one of its enum's.
    """
    types = get_type_hints(dataclass_type)
    known = {field.name: values[field.name] for field in fields(dataclass_type) if field.name in values}  # type: ignore[arg-type]
    return dataclass_type(**{name: _field_value(types[name], value) for name, value in known.items()})


def _field_value(kind: Any, value: Any) -> Any:
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        return dataclass_from_dict(kind, value)
    # `Enum | None` is no type itself
    enums = [one for one in (kind, *get_args(kind)) if isinstance(one, type) and issubclass(one, Enum)]
    return enums[0](value) if enums and value is not None else value
