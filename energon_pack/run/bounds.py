"""Bound what a small input expands to: a chat template, a page of a table, a list of lists in YAML.

The kernel refuses memory above the bound before it is touched, so nobody has to know all the ways to ask for it:
Python, numpy and pyarrow raise MemoryError then.
"""

import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, current_thread, main_thread
from typing import NoReturn

from energon_pack.errors import sized

_lock = Lock()
#: the bounds that threads of this process are in, and the limits outside of them
_bounds: list[int] = []
_outside = [(resource.RLIM_INFINITY, resource.RLIM_INFINITY)]


#: whether bounds of memory hold here
_hold: list[bool] = []


def hold_here() -> None:
    """Let `bounded` limit the memory of this process from now on: for a process whose threads all work for this
    package.

    In a trainer's process other threads may need memory at any time, so nothing is limited there.
    """
    _hold[:] = [True]


class Unbounded(Exception):
    """Something took more memory, or more time, than its input can need."""


@contextmanager
def bounded(num_bytes: int, seconds: float | None = None) -> Iterator[None]:
    """Limit the block to `num_bytes` of memory above what the process uses now, and to `seconds` of CPU time of its
    thread.

    Blocks may be nested. Memory is limited only on Linux after `hold_here`, time only in the main thread.

    Raises:
        Unbounded: the block exceeded a limit.
    """
    with _seconds(seconds), _memory(num_bytes):
        yield


@contextmanager
def _memory(num_bytes: int) -> Iterator[None]:
    if not (_hold and sys.platform.startswith("linux")):
        yield
        return
    bound = _data_bytes() + num_bytes
    _change(_bounds.append, bound)
    try:
        yield
    except MemoryError:
        raise Unbounded(f"it takes more than {sized(num_bytes)} of memory") from None
    finally:
        _change(_bounds.remove, bound)


def _change(change: Callable[[int], None], bound: int) -> None:
    with _lock:
        if not _bounds:
            _outside[0] = resource.getrlimit(resource.RLIMIT_DATA)
        change(bound)
        soft, hard = _outside[0]
        limits = [limit for limit in (*_bounds, soft, hard) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits, default=soft), hard))


def _data_bytes() -> int:
    """Return what `RLIMIT_DATA` counts of this process: proc(5), statm."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[5]) * resource.getpagesize()


@contextmanager
def _seconds(seconds: float | None) -> Iterator[None]:
    if seconds is None or current_thread() is not main_thread():
        yield
        return

    def end(*_: object) -> NoReturn:
        raise Unbounded(f"it takes more than {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 1.0)  # again each second: a `__del__` may swallow the error
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before or signal.SIG_DFL)
