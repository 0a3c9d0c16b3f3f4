"""Run a function over many jobs, in order, on local processes.

Jobs are taken from their iterator only as workers become free, so neither jobs nor results pile up: memory does
not grow with their number.
"""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from threading import Thread
from types import TracebackType
from typing import TypeVar

from energon_pack.errors import PackError

Job = TypeVar("Job")
Result = TypeVar("Result")

_JOBS_PER_WORKER = 2  # one at work, one waiting


class LocalExecutor:
    """`num_workers` processes, started at the first job; with one worker, jobs run in this process.

    Processes are spawned, not forked: the parent may hold threads (torch, pyarrow) that a fork would break.
    """

    def __init__(self, num_workers: int | None = None):
        self.num_workers = num_workers or _num_cores()
        self._pool: ProcessPoolExecutor | None = None

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """Results in the order of the jobs. `function` and jobs are pickled.

        Raises:
            PackError: a worker was killed.
        """
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread a worker; the processes are the parallelism
        if self.num_workers == 1:
            yield from map(function, jobs)
            return
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.num_workers, mp_context=context, initializer=_start_worker)
        waiting: deque[Future[Result]] = deque()
        try:
            for job in jobs:
                waiting.append(self._pool.submit(function, job))
                if len(waiting) >= _JOBS_PER_WORKER * self.num_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise PackError(
                "a worker process was killed, most likely for memory: try a smaller executor.num_workers"
            ) from None
        finally:
            for future in waiting:
                future.cancel()

    def __enter__(self) -> "LocalExecutor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)


def _start_worker() -> None:
    """A worker leaves interrupts to its parent, and does not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    Thread(target=follow, daemon=True).start()


def _num_cores() -> int:
    """Cores this process may use: fewer than the machine has in most containers and cluster jobs."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
