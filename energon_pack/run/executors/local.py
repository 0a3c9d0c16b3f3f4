"""Run a function over many jobs, in order, on local processes.

Jobs are taken from their iterator only as workers become free, so neither jobs nor results pile up: memory does
not grow with their number. Every wait ends: workers that do nothing at all are an error, and the end of the run
kills workers that have not ended by themselves.
"""

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as NoResultYet
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, islice
from multiprocessing.connection import Connection
from threading import Thread, current_thread, main_thread
from types import TracebackType
from typing import Any, TypeVar, cast

from energon_pack.errors import PackError
from energon_pack.run.executors import JobFolder
from energon_pack.run.executors.workers import (
    INTERRUPTS,
    ONE_THREAD_ENV,
    IdleTime,
    WorkerContext,
    changed_environment,
    cpu_seconds_and_transferred_bytes,
    prepare_worker,
)

Job = TypeVar("Job")
Result = TypeVar("Result")

_JOBS_PER_WORKER = 2  # one at work, one waiting
_KILLED_MESSAGE = "a worker process was killed, most likely for memory: try a smaller executor.num_workers"
_ENDED_MESSAGE = "a worker process ended by itself, and printed why"
_SCRIPT_ADVICE = ': each worker runs the started script, too, so a script packs below `if __name__ == "__main__":`'
_WORKER_START_SECONDS = 0.3  # seconds that starting a worker takes, roughly
_CHECK_SECONDS = 10.0  # how often workers without a result are checked
_END_SECONDS = 5.0  # given to workers to end by themselves, and then to the system to end them


class WorkerDied(PackError):
    """The process that did a job was killed, or ended."""


class LocalExecutor:
    """Up to `num_workers` processes, started as jobs need them, and one for single jobs; with one worker, no processes.

    Args:
        num_workers: None: the number of cores that this process may use.
        patience: seconds without a result, a read or noticeable work after which workers count as stuck.
        runs_script: jobs may be functions of the started script; if False, it needs no `if __name__ == …`.
    """

    def __init__(self, num_workers: int | None = None, patience: float = 600.0, runs_script: bool = True):
        self.num_workers = num_workers or count_cores()
        self._patience = patience
        self._pool: ProcessPoolExecutor | None = None
        self._beside: ProcessPoolExecutor | None = None
        self._context = WorkerContext(runs_script)
        self._life, self._hand = self._context.Pipe(duplex=False)  # workers live as long as the hand is open
        self._ends: list[Connection] = []  # the workers' ends of the pipes between pools and workers
        self._last: Future[Any] | None = None  # the last of the single jobs
        self._busy: IdleTime | None = None
        self._one_thread = changed_environment(ONE_THREAD_ENV)

    def share(self, folders: Sequence[JobFolder]) -> None:
        """Do nothing: one machine sees its own folders."""

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job], are_short: bool = False) -> Iterator[Result]:
        """See `Executor.map`. Short jobs run here until they have taken as long as starting a process."""
        jobs = iter(jobs)
        if self.num_workers == 1:
            yield from map(function, jobs)
            return
        if are_short:
            yield from run_first_jobs_here(function, jobs)
        first_two = list(islice(jobs, 2))
        if len(first_two) < 2:
            yield from (self._run_in_single_process(function, job) for job in first_two)
            return
        jobs = chain(first_two, jobs)
        if self._pool is None:
            self._pool = self._start_pool(self.num_workers)
        # Jobs that wait when an error comes are not cancelled: if a pool of Python 3.11 breaks and has a cancelled
        # future, it stops half way. The end of the run drops these jobs.
        waiting: deque[Future[Result]] = deque()
        for job in jobs:
            waiting.append(self._submit(self._pool, function, job))
            if len(waiting) >= _JOBS_PER_WORKER * self.num_workers:
                yield self.result(waiting.popleft())
        while waiting:
            yield self.result(waiting.popleft())

    def start(self, function: Callable[[Job], Result], job: Job) -> "Future[Result]":
        """See `Executor.start`: the one process for single jobs does it."""
        if self.num_workers > 1:
            if self._beside is None:
                self._beside = self._start_pool(1)
            self._last = future = self._submit(self._beside, function, job)
            return future
        future = Future()
        try:
            future.set_result(function(job))
        except Exception as error:  # `result` raises it
            future.set_exception(error)
        return future

    def _run_in_single_process(self, function: Callable[[Job], Result], job: Job) -> Result:
        """Run one job in the process for single jobs, unless that is busy: then here."""
        if self._last is not None and not self._last.done():
            return function(job)
        return self.result(self.start(function, job))

    def result(self, future: "Future[Result]") -> Result:
        """See `Executor.result`; raises PackError if a worker was killed, or all are stuck."""
        self._busy = None
        seconds = min(_CHECK_SECONDS, self._patience / 2)
        while True:
            with self._naming_dead_workers():
                try:
                    return future.result(seconds)
                except NoResultYet:
                    if future.done():  # the result came just now, or the error is the job's own
                        return future.result()
                    self._check_workers(seconds)

    def _submit(self, pool: ProcessPoolExecutor, function: Callable[[Job], Result], job: Job) -> "Future[Result]":
        """Submit a job to a pool, which may start a process for it."""
        with self._naming_dead_workers(), _holding_interrupts():
            return pool.submit(function, job)

    @contextmanager
    def _naming_dead_workers(self) -> Iterator[None]:
        """Explain why a pool broke, and which knob to turn."""
        try:
            yield
        except BrokenProcessPool:
            raise self._death() from None

    def _death(self) -> WorkerDied:
        """Return the error for workers of which one died."""
        end = time.monotonic() + _END_SECONDS
        while time.monotonic() < end:  # a worker whose pipe broke has no exit code yet
            codes = [process.exitcode for process in self._context.started]
            if 1 in codes:  # that of an error of Python
                return WorkerDied(_ENDED_MESSAGE + _SCRIPT_ADVICE * self._context.runs_script)
            if None not in codes:
                break
            time.sleep(0.01)
        return WorkerDied(_KILLED_MESSAGE)

    def _check_workers(self, seconds: float) -> None:
        """Check whether the workers are at work.

        Args:
            seconds: waited since the last check, without any result.

        Raises:
            WorkerDied: a worker was killed, or ended.
        """
        if any(process.exitcode is not None for process in self._context.started):
            raise self._death()  # a killed worker may have sent half a result, and the rest never comes
        if self._busy is None:  # checking costs more than most waits
            self._busy = IdleTime(partial(cpu_seconds_and_transferred_bytes, self._context))
        elif self._busy.seconds_without_work(seconds) > self._patience:
            pids = ", ".join(str(process.pid) for process in self._context.started)
            raise PackError(
                f"for {self._patience:,.0f} s the worker processes {pids} have read nothing and done nothing: a"
                " file system that does not answer, or a deadlock; the same command goes on from what is there"
            ) from None

    def __enter__(self) -> "LocalExecutor":
        self._one_thread.__enter__()
        if multiprocessing.get_start_method(allow_none=True) not in (None, *multiprocessing.get_all_start_methods()):
            multiprocessing.set_start_method("spawn", force=True)  # else workers look for joblib's process, and end
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._one_thread.__exit__(None, None, None)
        ending = Thread(target=self._shut_down, daemon=True)  # waits for workers that are at work
        ending.start()
        if kind is None:
            ending.join(_END_SECONDS)
        if kind is not None or ending.is_alive():  # after an error, running jobs are not waited for
            for process in self._context.started:
                process.kill()
            for end in self._ends:  # a pool may wait for the rest of a half-sent message
                ending.join(_END_SECONDS / len(self._ends))
                if ending.is_alive():  # else it closes them itself
                    _close_pipe(end)
            ending.join(_END_SECONDS)
        self._hand.close()
        self._life.close()

    def _shut_down(self) -> None:
        for pool in (self._pool, self._beside):
            if pool is not None:
                pool.shutdown(cancel_futures=True)

    def _start_pool(self, num_workers: int) -> ProcessPoolExecutor:
        pool: Any = ProcessPoolExecutor(
            num_workers,
            mp_context=self._context,
            initializer=prepare_worker,
            # When the thread that started a worker ends, the kernel takes that for the end of the worker's parent.
            initargs=(self._life, os.getpid() if current_thread() is main_thread() else None),
        )
        self._ends += [pool._result_queue._writer, pool._call_queue._reader]
        return cast(ProcessPoolExecutor, pool)


def run_first_jobs_here(function: Callable[[Job], Result], jobs: Iterator[Job]) -> Iterator[Result]:
    """Run short jobs here, until they have taken as long as starting a worker would; the rest stay in `jobs`."""
    start = time.perf_counter()
    for job in jobs:
        yield function(job)
        if time.perf_counter() - start > _WORKER_START_SECONDS:
            return


def _close_pipe(end: Connection) -> None:
    """Close a pipe for the process at its other end; its number stays taken, because its pool closes it once more."""
    null = os.open(os.devnull, os.O_RDWR)
    with suppress(OSError):  # the pool closed it first
        os.dup2(null, end.fileno())
    os.close(null)


@contextmanager
def _holding_interrupts() -> Iterator[None]:
    """Hold interrupts back in this context, as a process that one cuts short in its start would complain."""
    if current_thread() is not main_thread():
        yield
        return
    came: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: came.append(number)) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for interrupt in came:
            signal.raise_signal(interrupt)


def count_cores() -> int:
    """Count the cores that this process may use: in most containers and cluster jobs fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
