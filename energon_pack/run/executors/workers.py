"""Make the processes of a pool, end them with their parent, and tell whether they are at work."""

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

from energon_pack.run.packages import collect_garbage_rarely
from energon_pack.run.untrusted_input import enable_memory_bounds

#: Workers use one thread each: processes give the parallelism, and waiting threads would use cores, too.
ONE_THREAD_ENV = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
#: Variables that Ray reads at import and at start: it prints no events of its cluster, and reports nothing home.
QUIET_RAY_ENV = {"RAY_DEDUP_LOGS_SKIP_REGEX": ".", "RAY_USAGE_STATS_ENABLED": "0"}
#: signals that end a run; workers leave them to their parent
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1  # prctl(2)
_IDLE_SHARE = 0.01  # share of the time: workers that wait for the GIL for ever wake up, and use less than that


@contextmanager
def changed_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables for processes that are started and modules that are imported meanwhile."""
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
    """A worker ignores SIGTERM, which is its parent's to handle; so a pool has to kill it.

    From Python 3.12 on, if a worker of a pool was killed, the pool joins the others with its lock held. A job submitted
    then would wait for ever.
    """

    def terminate(self) -> None:
        self.kill()


class _ScriptlessWorker(_Worker):
    """A worker that does not run the caller's script again: it may have no `if __name__ == "__main__"`."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            return _Worker._Popen(process_obj)
        finally:
            sys.modules["__main__"] = script


class WorkerContext(SpawnContext):
    """Makes processes and remembers them.

    Processes are spawned, not forked: the parent may have threads (torch, pyarrow) that a fork would break.

    Args:
        runs_script: jobs may be functions of the started script; no worker can read one that came from stdin.
    """

    def __init__(self, runs_script: bool = True) -> None:
        super().__init__()
        script = getattr(sys.modules["__main__"], "__file__", None)
        self.runs_script = runs_script and (script is None or os.path.exists(script))
        self._worker = _Worker if self.runs_script else _ScriptlessWorker
        self._made: list[_Worker] = []

    def Process(self, *args: Any, **kwargs: Any) -> _Worker:  # type: ignore[override]
        self._made.append(self._worker(*args, **kwargs))
        return self._made[-1]

    @property
    def started(self) -> list[_Worker]:
        return [process for process in self._made if process.pid is not None]


class IdleTime:
    """Measures for how long no work was done."""

    def __init__(self, work: Callable[[], tuple[float, int]]):
        self._work = work
        self._idle = 0.0  # seconds that were waited; the clock would include the suspension of a job
        self._done = work()

    def seconds_without_work(self, seconds_waited: float) -> float:
        """Return the seconds since the last call that saw a used processor, or a read or written byte."""
        self._idle += seconds_waited
        done = self._work()
        if done[1] != self._done[1] or done[0] - self._done[0] > _IDLE_SHARE * self._idle:
            self._idle, self._done = 0.0, done
        return self._idle


def cpu_seconds_and_transferred_bytes(context: WorkerContext) -> tuple[float, int]:
    """Return the processor seconds and bytes of a context's processes, for `IdleTime`."""
    seconds, num_bytes = 0.0, 0
    for started in context.started:
        with suppress(psutil.Error):
            process = psutil.Process(started.pid)
            seconds += sum(process.cpu_times()[:2])
            if hasattr(process, "io_counters"):  # macOS has none
                io = process.io_counters()
                num_bytes += io.read_chars + io.write_chars + io.read_bytes  # includes reads of mapped files
    return seconds, num_bytes


def prepare_worker(parent_pipe: Connection, parent_id: int | None) -> None:
    """Prepare a worker: it leaves interrupts to its parent, and lives until the parent closes its pipe, or dies."""
    for interrupt in INTERRUPTS:
        signal.signal(interrupt, signal.SIG_IGN)
    collect_garbage_rarely()
    enable_memory_bounds()
    atexit.register(_exit_at_once)

    def follow() -> None:
        parent_pipe.poll(None)
        os._exit(1)

    Thread(target=follow, daemon=True).start()
    # A thread can't end a process whose GIL is held for ever; the kernel can.
    if parent_id is not None and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_id:
            os._exit(1)


def _exit_at_once() -> None:
    """Exit without unloading modules: torch's alone take half a second, and may hang."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(0)
