"""The processes of a pool: how they are made, how they live and end, and whether they are at work."""

import atexit
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from threading import Thread
from types import ModuleType
from typing import Any

import psutil

from energon_pack.run.heavy_imports import collect_rarely

#: One thread a worker; the processes are the parallelism, and threads that wait for each other use the cores, too.
ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
#: What Ray reads when it is imported, and when it starts: it prints no event of its cluster, and reports nothing.
RAY_IS_QUIET = {"RAY_DEDUP_LOGS_SKIP_REGEX": ".", "RAY_USAGE_STATS_ENABLED": "0"}
#: what ends a run; workers leave it to their parent
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1  # prctl(2)
_IDLE = 0.01  # of the time: workers that wait for the GIL for ever wake up, and use less


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have processes that are started meanwhile, and modules that are imported, find these variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class _Worker(SpawnProcess):
    """Leaves SIGTERM to its parent, as every worker does; so it is killed where a pool wants it ended.

    From Python 3.12 on, a pool one of whose workers was killed joins the others with its lock held: a job handed to it
    then would wait for ever.
    """

    def terminate(self) -> None:
        self.kill()


class _Guest(_Worker):
    """A worker that does not run the caller's script once more: it may have no `if __name__ == "__main__"`."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            return _Worker._Popen(process_obj)
        finally:
            sys.modules["__main__"] = script


class Context(SpawnContext):
    """Remembers the processes it makes.

    Processes are spawned, not forked: the parent may hold threads (torch, pyarrow) that a fork would break.

    Args:
        runs_script: jobs may be functions of the script that was started.
    """

    def __init__(self, runs_script: bool = True) -> None:
        super().__init__()
        self._worker = _Worker if runs_script else _Guest
        self._made: list[_Worker] = []

    def Process(self, *args: Any, **kwargs: Any) -> _Worker:  # type: ignore[override]
        self._made.append(self._worker(*args, **kwargs))
        return self._made[-1]

    @property
    def started(self) -> list[_Worker]:
        return [process for process in self._made if process.pid is not None]


class Busy:
    """Tells for how long nothing at all was done.

    Args:
        work: seconds of the processor that were used so far, and bytes read and written.
    """

    def __init__(self, work: Callable[[], tuple[float, int]]):
        self._work = work
        self._idle = 0.0  # seconds that were waited: by the clock, all of a job that is suspended would be
        self._done = work()

    def seconds_without_work(self, waited: float) -> float:
        """Since the last look at which any of the processor was used, or a byte was read or written.

        Args:
            waited: seconds since the look before.
        """
        self._idle += waited
        done = self._work()
        if done[1] != self._done[1] or done[0] - self._done[0] > _IDLE * self._idle:
            self._idle, self._done = 0.0, done
        return self._idle


def work_of(context: Context) -> tuple[float, int]:
    """What the processes of a context have done, for `Busy`."""
    seconds, num_bytes = 0.0, 0
    for started in context.started:
        with suppress(psutil.Error):
            process = psutil.Process(started.pid)
            seconds += sum(process.cpu_times()[:2])
            if hasattr(process, "io_counters"):  # not on macOS
                io = process.io_counters()
                num_bytes += io.read_chars + io.write_chars + io.read_bytes  # these of mapped files
    return seconds, num_bytes


def start_worker(life: Connection, parent: int | None) -> None:
    """A worker leaves interrupts to its parent, and lives until the parent closes its end of the pipe, or dies."""
    for interrupt in INTERRUPTS:
        signal.signal(interrupt, signal.SIG_IGN)
    collect_rarely()
    atexit.register(_leave)

    def follow() -> None:
        life.poll(None)
        os._exit(1)

    Thread(target=follow, daemon=True).start()
    # A thread can't end a process whose GIL is held for ever; the kernel can.
    if parent is not None and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _leave() -> None:
    """End without taking modules apart, torch's above all: that takes half a second, and may hang."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(0)
