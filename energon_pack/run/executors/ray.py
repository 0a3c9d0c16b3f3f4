"""Run a function over many jobs, in order, as tasks of a Ray cluster.

    job ──pickled──► task of Ray ──► any worker of any node ──► its result, pickled ──► taken here, in the job's turn

A job whose worker or node was lost is done again, on one node after the other. A slow job is begun once more if there
is room, because its worker may be frozen. Single jobs, and jobs that run beside all others, are done by processes of
this machine.
"""

import pickle
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
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
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from energon_pack.errors import PackError, one_line
from energon_pack.run.executors import Folder
from energon_pack.run.executors.admission import terms_of
from energon_pack.run.executors.local import LocalExecutor, at_once
from energon_pack.run.executors.ray_cluster import cluster_of
from energon_pack.run.executors.ray_worker import Ticket
from energon_pack.run.executors.settings import ExecutorConfig
from energon_pack.run.executors.workers import ONE_THREAD

Job = TypeVar("Job")
Result = TypeVar("Result")

_LOST = (WorkerCrashedError, NodeDiedError, LocalRayletDiedError, OutOfMemoryError, ObjectLostError)
_JOBS_PER_SLOT = 2  # one at work, one waiting
_LEAST_NODES = 2  # a job is tried on at least so many: the fault may be the node's
_LOOK_SECONDS = 10.0  # how often the cluster's size and signs of life are asked for


@dataclass(eq=False)
class _Task:
    """A job that was handed to Ray."""

    job: bytes
    num_lost: int = 0  # workers and nodes that were lost while they ran it
    nodes: list[str] = field(default_factory=list)  # where it was begun again
    copies: list[Any] = field(default_factory=list)  # running copies of it
    begun: float = 0.0  # when the first copy began
    outcome: bytes | str | BaseException = ""  # the result as `run_job` returns it, or the error


#: Copies of tasks that ended, and their results: Ray reports them in a thread of its own.
_Ended = SimpleQueue[tuple[_Task, Any, "Future[bytes | str]"]]


class RayExecutor:
    """Runs jobs as tasks of a Ray cluster, as many at once as it has room for; leaves Ray as it was.

    Args:
        patience: seconds without a read or noticeable work after which a worker counts as stuck.
        slow_after: seconds after which an idle worker does a job, too.
    """

    def __init__(self, settings: ExecutorConfig, patience: float = 600.0, slow_after: float = 30.0):
        self._settings, self._patience, self._slow_after = settings, patience, slow_after
        self._here = LocalExecutor(2)  # the process for single jobs, and this one
        self._stack = ExitStack()
        self._at_work: set[_Task] = set()
        self._run = f"energon_pack-{uuid.uuid4().hex}"
        self._ticket = b""
        self._remote: Any = None
        self._room, self._next_look = 0, 0.0
        self._turn = 0  # the next node for jobs that are begun again

    def share(self, folders: Sequence[Folder]) -> None:
        """See `Executor.share`: each worker checks them before its first job."""
        terms = self._stack.enter_context(terms_of(folders))
        self._ticket = pickle.dumps(Ticket(terms, self._run, self._patience, self._settings.give_up_after / 4))

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job], are_short: bool = False) -> Iterator[Result]:
        """See `Executor.map`. Short jobs run here until they have taken as long as starting a process."""
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
        """See `Executor.start`: a process of this machine, the one for single jobs, does it."""
        return self._here.start(function, job)

    def result(self, future: "Future[Result]") -> Result:
        """See `Executor.result`."""
        return self._here.result(future)

    def _begin(self, task: _Task, ended: _Ended, node: str | None = None) -> None:
        """Hand a copy of a task to Ray, for a given node if that still exists."""
        where = {} if node is None else {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True)}
        copy = self._remote.options(**where).remote(self._ticket, task.job)
        if not task.copies:
            task.begun = time.monotonic()
        task.copies.append(copy)
        self._at_work.add(task)
        copy.future().add_done_callback(lambda future: ended.put((task, copy, future)))

    def _first(self, waiting: deque[_Task], ended: _Ended) -> Any:
        """Return the result of the first waiting job; begin lost and slow jobs again meanwhile."""
        seconds, quiet = min(_LOOK_SECONDS, self._settings.give_up_after / 4, self._slow_after / 2), 0.0
        sign: bytes | None = None
        while waiting[0] in self._at_work or not ended.empty():
            self._begin_beside(waiting, ended)
            try:
                task, copy, future = ended.get(timeout=seconds)
            except Empty:
                quiet += seconds
                if (seen := self._sign_of_life()) != sign:
                    quiet, sign = 0.0, seen
                if quiet >= self._settings.give_up_after:
                    raise PackError(self._why_idle()) from None
                continue
            quiet = 0.0
            if copy in task.copies:  # else another copy was faster
                self._take(task, copy, future, ended)
        return _result(waiting.popleft())

    def _take(self, task: _Task, copy: Any, future: "Future[bytes | str]", ended: _Ended) -> None:
        """Record how a copy ended. The first to end gives the result; if all are lost, the job begins again."""
        task.copies.remove(copy)  # so that Ray forgets the result
        error = future.exception()
        if not isinstance(error, _LOST):
            self._drop([task])
            task.outcome = error or future.result()
            return
        task.num_lost += 1
        if not task.copies:
            self._begin_again(task, error, ended)

    def _begin_beside(self, waiting: Iterable[_Task], ended: _Ended) -> None:
        """Begin slow jobs once more, as far as workers are idle."""
        idle = self._most() // _JOBS_PER_SLOT - sum(len(task.copies) for task in self._at_work)
        late = time.monotonic() - self._slow_after
        slow = (task for task in waiting if len(task.copies) == 1 and task.begun < late)
        for task in islice(slow, max(0, idle)):
            self._begin(task, ended)

    def _begin_again(self, task: _Task, error: RayError, ended: _Ended) -> None:
        nodes = self._nodes()
        least = _LEAST_NODES if len(nodes) >= _LEAST_NODES else 0  # two nodes: one of them did not lose the job first
        if task.num_lost > max(self._settings.retries, least):
            raise PackError(
                f"the worker of one job was lost {task.num_lost} times, the last time by {one_line(error)}; most likely"
                " it was killed for memory: try a larger executor.memory or executor.num_cpus. If it was stuck for"
                f" {self._patience:,.0f} s, its node's log shows where; executor.retries={self._settings.retries}"
                " allows so many"
            )
        new = [node for node in nodes if node not in task.nodes] or nodes
        self._turn += 1
        task.nodes += [new[self._turn % len(new)]] if new else []
        self._begin(task, ended, task.nodes[-1] if new else None)

    def _nodes(self) -> list[str]:
        """Return the nodes of the cluster that have room for a task."""
        each = self._settings.num_cpus
        return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0.0) >= each]

    def _most(self) -> int:
        """Return how many jobs may be handed to Ray at once: clusters grow and shrink."""
        now, most = time.monotonic(), self._settings.num_workers
        if now >= self._next_look:
            total, self._next_look = ray.cluster_resources(), now + _LOOK_SECONDS
            slots = total.get("CPU", 0.0) / self._settings.num_cpus
            if self._settings.memory is not None:
                slots = min(slots, total.get("memory", 0.0) / self._settings.memory)
            self._room = max(1, int(slots)) * _JOBS_PER_SLOT
        return self._room if most is None or self._settings.address is None else min(most, self._room)

    def _sign_of_life(self) -> bytes | None:
        """Return a value that changes each time a worker with a long job signals that it is at work."""
        sign: bytes | None = _internal_kv_get(self._run.encode())
        return sign

    def _why_idle(self) -> str:
        free, total = ray.available_resources(), ray.cluster_resources()
        memory = "" if self._settings.memory is None else f" and executor.memory={self._settings.memory:g}"
        return (
            f"for {self._settings.give_up_after:,.0f} s no node of the Ray cluster has worked on this run:"
            f" {free.get('CPU', 0.0):g} of its {total.get('CPU', 0.0):g} CPUs are free, and a task takes"
            f" executor.num_cpus={self._settings.num_cpus:g}{memory}. Where none is free, other work takes them, or"
            " the workers of this run are frozen; executor.give_up_after waits for longer, and the same command goes on"
            " from what is there"
        )

    def _drop(self, tasks: Iterable[_Task]) -> None:
        """Have Ray end tasks that nobody waits for."""
        for task in tasks:
            self._at_work.discard(task)
            while task.copies:
                ray.cancel(task.copies.pop(), force=True)

    def __enter__(self) -> "RayExecutor":
        with ExitStack() as stack:
            stack.enter_context(self._here)
            stack.enter_context(cluster_of(self._settings))
            stack.callback(_internal_kv_del, self._run.encode())
            stack.callback(lambda: self._drop(list(self._at_work)))
            self._remote = ray.remote(
                num_cpus=self._settings.num_cpus,
                memory=self._settings.memory or 0,
                max_retries=0,  # Ray's own retries are unbounded where a worker runs out of memory
                runtime_env={"env_vars": ONE_THREAD},
            )(_by_value())
            self._stack = stack.pop_all()
        self.share([])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, value, trace)


def _by_value() -> Callable[[bytes, bytes], bytes | str]:
    """Return the function for workers, to be sent whole, not by name: they may lack this package, or have another."""

    def energon_pack_job(ticket: bytes, job: bytes) -> bytes | str:
        import platform

        try:
            from energon_pack.run.executors.ray_worker import run_job
        except ImportError as error:
            return f"{platform.node()} has no energon-pack of this version ({error}): install it on all nodes"
        return run_job(ticket, job)

    return energon_pack_job


def _result(task: _Task) -> Any:
    """Return the result of a job.

    Raises:
        Exception: the job's own, with its type.
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
