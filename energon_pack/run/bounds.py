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
    """Let bounds of memory hold in this process from now on: all its threads work for this package.

    A trainer's process has others, which may need memory at any time.
    """
    _hold[:] = [True]


class Unbounded(Exception):
    """Something takes more memory, or more time, than its input can need."""


@contextmanager
def bounded(num_bytes: int, seconds: float | None = None) -> Iterator[None]:
    """Let the process use at most this many bytes more than now, and the thread this much time of the CPU.

    Bounds may lie in each other. There is no bound of memory elsewhere than on Linux and after `hold_here`, and none of
    time in other threads than the main one.

    Raises:
        Unbounded: it asked for more.
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
