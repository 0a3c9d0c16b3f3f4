"""Bound what a small input expands to: a chat template, a page of a table, a list of lists in YAML.

The kernel refuses memory above the bound before it is touched, so nobody has to know all the ways to ask for it:
Python, numpy and pyarrow raise MemoryError then.
"""

import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, current_thread, main_thread
from typing import NoReturn

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
def bounded(num_bytes: int, seconds: float | None = None) -> Iterator[None]:
    """Limit the block to `num_bytes` of memory above what the process uses now, and to `seconds` of CPU time of its
    thread.

    Blocks may be nested. Memory is limited only on Linux after `enable_memory_bounds`, time only in the main thread.

    Raises:
        BoundExceeded: the block exceeded a limit.
    """
    with _bounded_seconds(seconds), _bounded_memory(num_bytes):
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
