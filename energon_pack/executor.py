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
from multiprocessing.connection import Connection
from threading import Thread
from types import TracebackType
from typing import TypeVar

from energon_pack.errors import PackError

Job = TypeVar("Job")
Result = TypeVar("Result")

_TOKENIZERS = "TOKENIZERS_PARALLELISM"
_JOBS_PER_WORKER = 2  # one at work, one waiting


class LocalExecutor:
    """`num_workers` processes, started at the first job; with one worker, jobs run in this process.

    Processes are spawned, not forked: the parent may hold threads (torch, pyarrow) that a fork would break.
    """

    def __init__(self, num_workers: int | None = None):
        self.num_workers = num_workers or _num_cores()
        self._pool: ProcessPoolExecutor | None = None
        self._beside: ProcessPoolExecutor | None = None
        self._context = multiprocessing.get_context("spawn")
        self._life, self._hand = self._context.Pipe(duplex=False)  # workers live while the hand is on the pipe
        self._setting_before: str | None = None

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """Results in the order of the jobs. `function` and jobs are pickled.

        Raises:
            PackError: a worker was killed.
        """
        if self.num_workers == 1:
            yield from map(function, jobs)
            return
        if self._pool is None:
            self._pool = self._start_pool(self.num_workers)
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

    def start(self, function: Callable[[Job], Result], job: Job) -> "Future[Result]":
        """Begin one job in a process of its own, beside all others."""
        self._beside = self._start_pool(1)
        return self._beside.submit(function, job)

    def __enter__(self) -> "LocalExecutor":
        self._setting_before = os.environ.get(_TOKENIZERS)
        os.environ[_TOKENIZERS] = "false"  # one thread a worker; the processes are the parallelism
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.environ.pop(_TOKENIZERS)
        if self._setting_before is not None:
            os.environ[_TOKENIZERS] = self._setting_before
        if kind is not None:
            self._hand.close()  # what is at work after an error is not waited for
        for pool in (self._pool, self._beside):
            if pool is not None:
                pool.shutdown(cancel_futures=True)  # waits: a pool left behind may fail at the interpreter's exit
        self._hand.close()
        self._life.close()

    def _start_pool(self, num_workers: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            num_workers, mp_context=self._context, initializer=_start_worker, initargs=(self._life,)
        )


def _start_worker(life: Connection) -> None:
    """A worker leaves interrupts to its parent, and lives until the parent closes its end of the pipe, or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def follow() -> None:
        life.poll(None)
        os._exit(1)

    Thread(target=follow, daemon=True).start()


def _num_cores() -> int:
    """Cores this process may use: fewer than the machine has in most containers and cluster jobs."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
