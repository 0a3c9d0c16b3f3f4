"""Run a function over many jobs, in order, as tasks of a Ray cluster, or of a Ray on this machine for this run only.

A job goes to a worker, and its result comes back:

    job ──pickled──► task of Ray ──► any worker of any node ──► its result, pickled ──► taken here, in the job's turn

Ray does a job again whose worker or node was lost. Single jobs, and jobs that run beside all others, are done by
processes of this machine.
"""

import logging
import pickle
import secrets
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import cache
from itertools import chain, islice
from types import TracebackType
from typing import Any, TypeVar

import ray
from ray._private import ray_constants
from ray._raylet import Config  # type: ignore[attr-defined]
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

from energon_pack.errors import PackError, one_line
from energon_pack.run.executors import JobFolder
from energon_pack.run.executors.admission import enter_and_check_machine, terms_with_mark_files
from energon_pack.run.executors.local import LocalExecutor, run_first_jobs_here
from energon_pack.run.executors.settings import ExecutorConfig
from energon_pack.run.executors.workers import INTERRUPTS, ONE_THREAD_ENV, QUIET_RAY_ENV, changed_environment
from energon_pack.run.untrusted_input import enable_memory_bounds

_ENDED_MESSAGE = (
    "energon-pack: error: this process was ended by Ray, where the head of its cluster or the node of this machine was"
    " lost, or by the system; the same command goes on from what is there"
)
#: A holder of the token may run code in a Ray that this process starts. There is only one, because Ray keeps the first.
_TOKEN = secrets.token_hex(32)


@contextmanager
def connected_to_ray(settings: ExecutorConfig) -> Iterator[None]:
    """Connect to the Ray of the settings; if this process has a Ray already, use that one and leave it running."""
    if ray.is_initialized():
        yield
        return
    private: dict[str, Any] = {"address": "local", "num_cpus": settings.num_workers, "include_dashboard": False}
    where = private if settings.address is None else {"address": settings.address}
    handlers = {number: signal.getsignal(number) for number in INTERRUPTS}
    with _private_ray_settings() if settings.address is None else nullcontext():
        try:
            with changed_environment(QUIET_RAY_ENV):
                ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise PackError(f"executor.address={settings.address}: no Ray there: {one_line(error)}") from None
        finally:
            if threading.current_thread() is threading.main_thread():
                for number, handler in handlers.items():  # Ray's own handlers exit where a run would end well
                    signal.signal(number, handler)
        try:
            with print_if_killed(_ENDED_MESSAGE):
                yield
        finally:
            ray.shutdown()


@contextmanager
def _private_ray_settings() -> Iterator[None]:
    """Make a Ray started here listen on the loopback only, and accept commands only with its token.

    Ray has no setting for the first: it does so only where it can't have more than one machine.
    """
    can_have_more, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        with changed_environment({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN}):
            Config.initialize("")  # else this process uses the token that Ray read when it was imported
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = can_have_more
        Config.initialize("")


@contextmanager
def print_if_killed(text: str) -> Iterator[None]:
    """Print a line even if Ray's C++ code ends this process meanwhile, which leaves Python no chance to print it."""
    with subprocess.Popen(["sh", "-c", 'read -r _ || echo "$0" >&2', text], stdin=subprocess.PIPE) as listener:
        try:
            yield
        finally:
            with suppress(BrokenPipeError):  # an interrupt may go to all processes of a terminal
                listener.communicate(b"\n")


Job = TypeVar("Job")
Result = TypeVar("Result")

_LOST_JOB_ERRORS = (WorkerCrashedError, NodeDiedError, LocalRayletDiedError, OutOfMemoryError, ObjectLostError)
_JOBS_PER_SLOT = 2  # one at work, one waiting
_CHECK_SECONDS = 10.0  # how often the cluster's size and ended jobs are asked for
#: options of a task that `executor.task` does not set
_TASK_OPTIONS = {
    "num_cpus": 1,
    "memory": 0,  # bytes: none are reserved
    "max_retries": 3,
    "scheduling_strategy": "SPREAD",  # a node that is short of memory would get its jobs again
    "runtime_env": {"env_vars": ONE_THREAD_ENV},
}


class RayExecutor:
    """Runs jobs as tasks of a Ray cluster, as many at once as it has room for; leaves Ray as it was."""

    def __init__(self, settings: ExecutorConfig):
        self._settings = settings
        self._task: dict[str, Any] = {**_TASK_OPTIONS, **settings.task}
        self._here = LocalExecutor(2)  # the process for single jobs, and this one
        self._stack = ExitStack()
        self._at_work: set[Any] = set()  # tasks
        self._terms = b""
        self._remote: Any = None
        self._room, self._next_look = 0, 0.0

    def share(self, folders: Sequence[JobFolder]) -> None:
        """See `Executor.share`: each worker checks them before its first job."""
        self._terms = pickle.dumps(self._stack.enter_context(terms_with_mark_files(folders)))

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job], are_short: bool = False) -> Iterator[Result]:
        """See `Executor.map`. Short jobs run here until they have taken as long as starting a process."""
        jobs = iter(jobs)
        if are_short:
            yield from run_first_jobs_here(function, jobs)
        first_two = list(islice(jobs, 2))
        if len(first_two) < 2:
            yield from self._here.map(function, first_two)
            return
        waiting: deque[Any] = deque()
        try:
            for job in chain(first_two, jobs):
                with _saying_node_is_lost():
                    job_bytes = pickle.dumps((function, job), pickle.HIGHEST_PROTOCOL)
                    waiting.append(self._remote.remote(self._terms, job_bytes))
                self._at_work.add(waiting[-1])
                while len(waiting) >= self._max_jobs():
                    yield self._wait_for_first(waiting)
            while waiting:
                yield self._wait_for_first(waiting)
        finally:
            self._cancel(waiting)

    def start(self, function: Callable[[Job], Result], job: Job) -> "Future[Result]":
        """See `Executor.start`: a process of this machine, the one for single jobs, does it."""
        return self._here.start(function, job)

    def result(self, future: "Future[Result]") -> Result:
        """See `Executor.result`."""
        return self._here.result(future)

    def _wait_for_first(self, waiting: deque[Any]) -> Any:
        """Return the result of the first waiting job; raise PackError where no job ends for long."""
        most = self._settings.give_up_after
        num_ended, last = 0, time.monotonic()
        with _saying_node_is_lost():
            while not ray.wait([waiting[0]], timeout=min(_CHECK_SECONDS, most))[0]:
                ended, _ = ray.wait([*waiting], num_returns=len(waiting), timeout=0)
                if len(ended) > num_ended:
                    num_ended, last = len(ended), time.monotonic()
                elif time.monotonic() - last >= most:
                    raise PackError(self._why_idle())
        self._at_work.discard(waiting[0])
        return self._result(waiting.popleft())

    def _result(self, task: Any) -> Any:
        """Return the result of an ended job, or raise its own error, with its type."""
        try:
            outcome = ray.get(task)
        except RayTaskError as error:
            raise error.cause from error
        except _LOST_JOB_ERRORS as error:
            raise PackError(
                f"the worker of one job was lost more than executor.task.max_retries={self._task['max_retries']} times,"
                f" the last time by {one_line(error)}; most likely it was killed for memory: try a larger"
                " executor.task.memory or executor.task.num_cpus"
            ) from error
        except RayError as error:
            raise PackError(f"Ray could not do a job: {one_line(error)}") from error
        if isinstance(outcome, str):
            raise PackError(f"the Ray node {outcome}")
        return pickle.loads(outcome)

    def _max_jobs(self) -> int:
        """Return how many jobs may be handed to Ray at once: clusters grow and shrink."""
        now, most = time.monotonic(), self._settings.num_workers
        if now >= self._next_look:
            total, self._next_look = ray.cluster_resources(), now + _CHECK_SECONDS
            kinds = {"CPU": self._task["num_cpus"], "memory": self._task["memory"]}
            slots = min(total.get(kind, 0.0) / each for kind, each in kinds.items() if each)
            self._room = max(1, int(slots)) * _JOBS_PER_SLOT
        return self._room if most is None or self._settings.address is None else min(most, self._room)

    def _why_idle(self) -> str:
        free, total = ray.available_resources(), ray.cluster_resources()
        memory = f" and executor.task.memory={self._task['memory']:g}" if self._task["memory"] else ""
        return (
            f"for {self._settings.give_up_after:,.0f} s no job of this run has ended:"
            f" {free.get('CPU', 0.0):g} of the {total.get('CPU', 0.0):g} CPUs of the Ray cluster are free, and a task"
            f" takes executor.task.num_cpus={self._task['num_cpus']:g}{memory}. Where none is free, other work takes"
            " them, or the workers of this run are stuck, or killed for memory again and again (executor.task.memory);"
            " executor.give_up_after waits for longer, and the same command goes on from what is there"
        )

    def _cancel(self, tasks: Iterable[Any]) -> None:
        """Have Ray end tasks that nobody waits for."""
        for task in self._at_work.intersection(tasks):
            self._at_work.discard(task)
            with suppress(OSError):  # the node of this machine is lost
                ray.cancel(task, force=True)

    def __enter__(self) -> "RayExecutor":
        with ExitStack() as stack:
            stack.enter_context(self._here)
            stack.enter_context(connected_to_ray(self._settings))
            stack.callback(lambda: self._cancel(self._at_work))
            try:
                self._remote = ray.remote(**self._task)(_job_function_by_value())
            except (TypeError, ValueError) as error:
                raise PackError(f"executor.task={self._settings.task}: {one_line(error)}") from None
            self._stack = stack.pop_all()
        self.share([])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, value, trace)


@contextmanager
def _saying_node_is_lost() -> Iterator[None]:
    """Say so where Ray's node of this machine does not answer any more."""
    try:
        yield
    except OSError as error:
        raise PackError(
            f"the head of the Ray cluster, or the node of this machine, was lost: {one_line(error)}; the same command"
            " goes on from what is there"
        ) from None


def _job_function_by_value() -> Callable[[bytes, bytes], bytes | str]:
    """Return the function for workers, to be sent whole, not by name: they may lack this package, or have another."""

    def energon_pack_job(terms: bytes, job: bytes) -> bytes | str:
        import platform

        try:
            from energon_pack.run.executors.ray import run_pickled_job
        except ImportError as error:
            return f"{platform.node()} has no energon-pack of this version ({error}): install it on all nodes"
        return run_pickled_job(terms, job)

    return energon_pack_job


def run_pickled_job(pickled_terms: bytes, pickled_job: bytes) -> bytes | str:
    """Run a pickled function with its argument; return the pickled result, or why this machine is unfit, as text."""
    if why := _why_unfit(pickled_terms):
        return why
    function, argument = pickle.loads(pickled_job)
    return pickle.dumps(function(argument), pickle.HIGHEST_PROTOCOL)


@cache
def _why_unfit(terms: bytes) -> str | None:
    """Check once in a process whether its machine is fit."""
    enable_memory_bounds()
    return enter_and_check_machine(pickle.loads(terms))
