"""Run a function over many jobs, in order, as tasks of a Ray cluster.

    job ──pickled──► task of Ray ──► any worker of any node ──► its result, pickled ──► taken here, in the job's turn

A job whose worker or node was lost is done again, as soon as that is known. Single jobs, and those that run beside all
others, are done by processes of this machine.
"""

import logging
import pickle
import signal
import subprocess
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

import ray
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get

from energon_pack.errors import PackError, one_line
from energon_pack.run.executors import Folder
from energon_pack.run.executors.admission import terms_of
from energon_pack.run.executors.beside import Beside
from energon_pack.run.executors.local import at_once
from energon_pack.run.executors.ray_worker import Ticket
from energon_pack.run.executors.settings import ExecutorConfig
from energon_pack.run.executors.workers import INTERRUPTS, ONE_THREAD, RAY_IS_QUIET, environment

Job = TypeVar("Job")
Result = TypeVar("Result")

_LOST = (WorkerCrashedError, NodeDiedError, LocalRayletDiedError, OutOfMemoryError, ObjectLostError)
_JOBS_PER_SLOT = 2  # one at work, one waiting
_ENDED = (
    "energon-pack: error: this process was ended by Ray, where the head of its cluster or the node of this machine was"
    " lost, or by the system; the same command goes on from what is there"
)
_LOOK_SECONDS = 10.0  # how often the size of the cluster is asked for, and signs of life


@dataclass(eq=False)
class _Task:
    """A job on its way."""

    job: bytes
    num_lost: int = 0  # workers and nodes
    ref: Any = None  # while it is at work
    outcome: bytes | str | BaseException = ""  # as `run_job`, or why there is none


#: Tasks that came to an end, and what became of them: Ray tells it in a thread of its own.
_Ended = SimpleQueue[tuple[_Task, "Future[bytes | str]"]]


class RayExecutor:
    """Tasks of a Ray cluster, as many at once as it has room for; Ray is left as it was found.

    Args:
        patience: seconds without a read or any work to speak of after which a worker counts as stuck.
    """

    def __init__(self, settings: ExecutorConfig, patience: float = 600.0):
        self._settings, self._patience = settings, patience
        self._here = Beside()
        self._stack = ExitStack()
        self._at_work: set[_Task] = set()
        self._run = f"energon_pack-{uuid.uuid4().hex}"
        self._ticket = b""
        self._remote: Any = None
        self._room, self._next_look = 0, 0.0

    def share(self, folders: Sequence[Folder]) -> None:
        """As `Executor.share`: each worker looks for them before its first job."""
        terms = self._stack.enter_context(terms_of(folders))
        self._ticket = pickle.dumps(Ticket(terms, self._run, self._patience, self._settings.give_up_after / 4))

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job], are_short: bool = False) -> Iterator[Result]:
        """As `Executor.map`; jobs that are short run here until they have taken as long as starting a process."""
        jobs = iter(jobs)
        if are_short:
            yield from at_once(function, jobs)
        first_two = list(islice(jobs, 2))
        if len(first_two) < 2:
            yield from self._here.map(function, first_two)
            return
        ended: _Ended = SimpleQueue()
        waiting: deque[_Task] = deque()
        try:
            for job in chain(first_two, jobs):
                waiting.append(_Task(pickle.dumps((function, job), pickle.HIGHEST_PROTOCOL)))
                self._begin(waiting[-1], ended)
                while len(waiting) >= self._most():
                    yield self._first(waiting, ended)
            while waiting:
                yield self._first(waiting, ended)
        finally:
            self._drop(waiting)

    def start(self, function: Callable[[Job], Result], job: Job) -> "Future[Result]":
        """As `Executor.start`: in the one process beside all others, of this machine."""
        return self._here.start(function, job)

    def result(self, future: "Future[Result]") -> Result:
        """As `Executor.result`."""
        return self._here.result(future)

    def _begin(self, task: _Task, ended: _Ended) -> None:
        task.ref = self._remote.remote(self._ticket, task.job)
        self._at_work.add(task)
        task.ref.future().add_done_callback(lambda future: ended.put((task, future)))

    def _first(self, waiting: deque[_Task], ended: _Ended) -> Any:
        """The result of the first job that waits; those that are lost meanwhile are begun again."""
        seconds, quiet = min(_LOOK_SECONDS, self._settings.give_up_after / 4), 0.0
        sign: bytes | None = None
        while waiting[0] in self._at_work or not ended.empty():
            try:
                task, future = ended.get(timeout=seconds)
            except Empty:
                quiet += seconds
                if (seen := self._sign_of_life()) != sign:
                    quiet, sign = 0.0, seen
                if quiet >= self._settings.give_up_after:
                    raise PackError(self._why_idle()) from None
                continue
            quiet = 0.0
            self._at_work.discard(task)
            task.ref = None  # Ray forgets the result
            error = future.exception()
            if isinstance(error, _LOST):
                self._begin_again(task, error, ended)
            else:
                task.outcome = error or future.result()
        return _result(waiting.popleft())

    def _begin_again(self, task: _Task, error: RayError, ended: _Ended) -> None:
        task.num_lost += 1
        if task.num_lost > self._settings.retries:
            raise PackError(
                f"the worker of one job was lost {task.num_lost} times, the last time by {one_line(error)}; most likely"
                " it was killed for memory: try a larger executor.memory or executor.num_cpus. If it was stuck for"
                f" {self._patience:,.0f} s, its node's log shows where; executor.retries={self._settings.retries}"
                " allows so many"
            )
        self._begin(task, ended)

    def _most(self) -> int:
        """Jobs that may be on their way: clusters grow and shrink."""
        now, most = time.monotonic(), self._settings.num_workers
        if now >= self._next_look:
            total, self._next_look = ray.cluster_resources(), now + _LOOK_SECONDS
            slots = total.get("CPU", 0.0) / self._settings.num_cpus
            if self._settings.memory is not None:
                slots = min(slots, total.get("memory", 0.0) / self._settings.memory)
            self._room = max(1, int(slots)) * _JOBS_PER_SLOT
        return self._room if most is None or self._settings.address is None else min(most, self._room)

    def _sign_of_life(self) -> bytes | None:
        """Another one each time that a worker with a long job says that it is at work."""
        sign: bytes | None = _internal_kv_get(self._run.encode())
        return sign

    def _why_idle(self) -> str:
        free, total = ray.available_resources(), ray.cluster_resources()
        memory = "" if self._settings.memory is None else f" and executor.memory={self._settings.memory:g}"
        return (
            f"for {self._settings.give_up_after:,.0f} s no node of the Ray cluster has worked on this run:"
            f" {free.get('CPU', 0.0):g} of its {total.get('CPU', 0.0):g} CPUs are free, and a task takes"
            f" executor.num_cpus={self._settings.num_cpus:g}{memory}; executor.give_up_after waits for longer, and the"
            " same command goes on from what is there"
        )

    def _drop(self, tasks: Iterable[_Task]) -> None:
        """Have Ray end what was not taken: nobody waits for it."""
        for task in tasks:
            if task in self._at_work:
                self._at_work.discard(task)
                ray.cancel(task.ref, force=True)

    def __enter__(self) -> "RayExecutor":
        with ExitStack() as stack:
            stack.enter_context(self._here)
            stack.enter_context(_ray(self._settings))
            stack.callback(_internal_kv_del, self._run.encode())
            stack.callback(lambda: self._drop(list(self._at_work)))
            self._remote = ray.remote(
                num_cpus=self._settings.num_cpus,
                memory=self._settings.memory or 0,
                max_retries=0,  # Ray's own have no bound where a worker runs out of memory
                runtime_env={"env_vars": ONE_THREAD},
            )(_by_value())
            self._stack = stack.pop_all()
        self.share([])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, value, trace)


@contextmanager
def _ray(settings: ExecutorConfig) -> Iterator[None]:
    """The Ray of the settings, unless this process has one already; that one is used, and left.

    Raises:
        PackError: there is none at this address.
    """
    if ray.is_initialized():
        yield
        return
    own: dict[str, Any] = {"address": "local", "num_cpus": settings.num_workers, "include_dashboard": False}
    handlers = {number: signal.getsignal(number) for number in INTERRUPTS}
    try:
        with environment(RAY_IS_QUIET):
            where = own if settings.address is None else {"address": settings.address}
            ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise PackError(f"executor.address={settings.address}: no Ray there: {one_line(error)}") from None
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():  # Ray's own exits where a run would end well
                signal.signal(number, handler)
    try:
        with _last_words(_ENDED):
            yield
    finally:
        ray.shutdown()


@contextmanager
def _last_words(text: str) -> Iterator[None]:
    """Have a line said where this process is ended meanwhile, with no chance to say it: Ray does so in its C++ code."""
    with subprocess.Popen(["sh", "-c", 'read -r _ || echo "$0" >&2', text], stdin=subprocess.PIPE) as listener:
        try:
            yield
        finally:
            with suppress(BrokenPipeError):  # an interrupt that went to all processes of a terminal
                listener.communicate(b"\n")


def _by_value() -> Callable[[bytes, bytes], bytes | str]:
    """What workers are sent. They get it whole, not by its name: they may not have this package, or another one."""

    def energon_pack_job(ticket: bytes, job: bytes) -> bytes | str:
        import platform

        try:
            from energon_pack.run.executors.ray_worker import run_job
        except ImportError as error:
            return f"{platform.node()} has no energon-pack of this version ({error}): install it on all nodes"
        return run_job(ticket, job)

    return energon_pack_job


def _result(task: _Task) -> Any:
    """What a job made.

    Raises:
        PackError: its machine is unfit, or Ray could not do it.
        Exception: that of the job, with its type.
    """
    outcome = task.outcome
    if isinstance(outcome, RayTaskError):
        raise outcome.cause from outcome
    if isinstance(outcome, RayError):
        raise PackError(f"Ray could not do a job: {one_line(outcome)}") from outcome
    if isinstance(outcome, BaseException):
        raise outcome
    if isinstance(outcome, str):
        raise PackError(f"the Ray node {outcome}")
    return pickle.loads(outcome)
