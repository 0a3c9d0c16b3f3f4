"""The executor of a run on many machines: deals jobs to their inboxes, and takes what comes of them, in order."""

import itertools
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from energon_pack.errors import PackError
from energon_pack.run.executors import Folder
from energon_pack.run.executors.admission import terms_of
from energon_pack.run.executors.beside import Beside
from energon_pack.run.executors.local import at_once
from energon_pack.run.executors.shared.folder import names_in, read, refresh, remove, write
from energon_pack.run.executors.shared.machines import JOBS_PER_WORKER, Machine, Machines
from energon_pack.run.executors.shared.terms import Term, latest_term
from energon_pack.run.executors.shared.wire import WireError, decode, encode

Job = TypeVar("Job")
Result = TypeVar("Result")

_RESULTS_PER_JOB = 2  # so many more may wait for one before them
_SHORTEST_WAIT, _LONGEST_WAIT = 0.01, 0.3  # seconds between two looks at results
_LOOK_SECONDS = 1.0  # between two looks at nodes
_REFRESH_SECONDS = 0.5  # without a result
_TWICE_SECONDS = 30.0  # after which a job is given to a second node, where nodes have nothing else to do
_MOST_LOST = 10  # nodes that one job may cost
_MOST_BYTES = 4 << 30  # of jobs that were handed out: more than one process deals in half a minute
_NOTHING: Any = object()


class Deposed(PackError):
    """Another process drives this run now."""


@dataclass
class _Task:
    """A job that was handed out."""

    number: int
    data: bytes
    nodes: list[str] = field(default_factory=list)  # that have it, or had it and were lost
    sent: float = 0.0
    num_lost: int = 0  # results

    @property
    def name(self) -> str:
        return f"{self.number:09d}"


class SharedExecutor:
    """Runs jobs on all machines that work in a term.

    Args:
        term: this process drives in it.
        lost_after: seconds without a sign of life after which a machine is lost.
        look: called now and then while it waits.
    """

    def __init__(self, term: Term, lost_after: float, look: Callable[[], None]):
        self._term, self._run, self._lost_after, self._look_around = term, term.run, lost_after, look
        self._local = Beside()
        self._numbers = itertools.count()
        self._tasks: dict[int, _Task] = {}  # handed out, nothing came of them yet
        self._came: set[int] = set()  # results that are there
        self._machines = Machines(term.run, lost_after)
        self._orphans: set[int] = set()  # tasks of machines that were lost
        self._looked = self._heard = time.monotonic()
        self._stack = ExitStack()
        self._is_shared = False

    def share(self, folders: Sequence[Folder]) -> None:
        """As `Executor.share`: machines that do not see them, or have other packages, are given no jobs."""
        terms = self._stack.enter_context(terms_of(folders))
        write(self._run.terms, json.dumps(asdict(terms)).encode())
        self._is_shared = True

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job], are_short: bool = False) -> Iterator[Result]:
        """As `Executor.map`; jobs that are short run here until they have taken as long as handing them out."""
        if not self._is_shared:
            self.share(())
        jobs = iter(jobs)
        if are_short:
            yield from at_once(function, jobs)
        waiting: deque[_Task] = deque()
        num_bytes, is_end = 0, False
        try:
            while True:
                while not is_end and self._has_room(waiting, num_bytes):
                    job = next(jobs, _NOTHING)
                    if job is _NOTHING:
                        is_end = True
                    else:
                        waiting.append(self._hand_out(encode((function, job))))
                        num_bytes += len(waiting[-1].data)
                if is_end and not waiting:
                    return
                if waiting and waiting[0].number in self._came:
                    result = self._take(waiting[0])
                    if result is not _NOTHING:
                        num_bytes -= len(waiting.popleft().data)
                        yield result
                        continue
                self._hand_out_twice(waiting)
                if waiting:
                    self._find_gone(waiting[0])
                self._wait(waiting[0] if waiting else None)
        finally:
            for task in waiting:
                self._drop(task)

    def start(self, function: Callable[[Job], Result], job: Job) -> "Future[Result]":
        """As `Executor.start`: on the driver's machine."""
        return self._local.start(function, job)

    def result(self, future: "Future[Result]") -> Result:
        """As `Executor.result`."""
        result = self._local.result(future)
        self._look()
        return result

    @property
    def term(self) -> int:
        """Which driver of this run this one is: those that come later have higher numbers."""
        return self._term.number

    @property
    def note(self) -> Path:
        """Where a driver says what it is about to publish."""
        return self._term.note

    @property
    def nodes(self) -> dict[str, dict[str, int]]:
        """How many processes each machine has, and how many jobs it was given."""
        return {one.name: {"num_workers": one.num_workers, "jobs": len(one.tasks)} for one in self._machines}

    def __enter__(self) -> "SharedExecutor":
        self._stack.enter_context(self._local)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, value, trace)

    # ------------------------------------------------------------------------------------------------ handing out

    def _has_room(self, waiting: Sized, num_bytes: int) -> bool:
        most = _RESULTS_PER_JOB * JOBS_PER_WORKER * self._machines.num_workers
        has_memory = not waiting or num_bytes < _MOST_BYTES
        return has_memory and len(waiting) < most and any(machine.room > 0 for machine in self._machines)

    def _hand_out(self, data: bytes) -> _Task:
        task = _Task(next(self._numbers), data)
        self._tasks[task.number] = task
        self._send(task, self._machines.freest)
        return task

    def _send(self, task: _Task, machine: Machine) -> None:
        task.sent = time.monotonic()
        if write(self._run.inbox(machine.name) / task.name, task.data):
            task.nodes.append(machine.name)
            machine.tasks.add(task.number)
        else:
            self._orphans.add(task.number)

    def _hand_out_twice(self, waiting: Iterable[_Task]) -> None:
        """Give the oldest jobs to machines that have nothing to do, too: one that is slow, or away, holds up nobody."""
        now = time.monotonic()
        old = [task for task in waiting if task.number in self._tasks and now - task.sent > _TWICE_SECONDS]
        idle = [machine for machine in self._machines if not machine.tasks] if old else []
        for task in old:
            others = [machine for machine in idle if machine.name not in task.nodes]
            if others:
                idle.remove(others[0])
                self._send(task, others[0])

    def _find_gone(self, task: _Task) -> None:
        """Have a job done once more that all wait for, and that lies nowhere any more: a server may lose a file."""
        inboxes = [self._run.inbox(name) / task.name for name in task.nodes if self._machines.get(name)]
        if not inboxes or task.number not in self._tasks or time.monotonic() - task.sent < _TWICE_SECONDS:
            return
        if not any(map(os.path.exists, inboxes)):
            refresh(self._run.results)
            self._arrived()  # it may just be done
            if task.number in self._tasks:
                self._lose(task, f"{inboxes[0]}: it is gone")

    # --------------------------------------------------------------------------------------------------- taking in

    def _wait(self, task: _Task | None) -> None:
        """Wait until something has come, or a while."""
        pause, start = _SHORTEST_WAIT, time.monotonic()
        while True:
            came = self._arrived()
            self._look()
            if came or time.monotonic() - start > _LOOK_SECONDS or (task is None and self._machines):
                return
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_WAIT)

    def _arrived(self) -> bool:
        """See which results are there."""
        names = names_in(self._run.results)
        came = False
        for name in names:
            number = int(name)
            task = self._tasks.pop(number, None)
            if task is not None:
                self._came.add(number)
                self._forget(task)
                came = True
            elif number not in self._came:  # of a job that was done twice, or that nobody waits for
                remove(self._run.results / name)
        now = time.monotonic()
        if came:
            self._heard = now
        elif now - self._heard > _REFRESH_SECONDS:
            refresh(self._run.results)
            self._heard = now
        return came

    def _take(self, task: _Task) -> Any:
        """A result; `_NOTHING`, where it is not there after all: the job is then done once more."""
        path = self._run.results / task.name
        data = read(path)
        self._came.discard(task.number)
        remove(path)
        try:
            what, result = decode(data or b"")
        except WireError as error:
            what, result = "unread", error
        if what == "error":
            raise result
        if what == "unread":
            self._lose(task, f"{path}: {result}")
            return _NOTHING
        return result

    def _lose(self, task: _Task, why: str) -> None:
        """A file of it is gone, or damaged: it is done once more."""
        task.num_lost += 1
        if task.num_lost > _MOST_LOST:
            raise PackError(f"{why}: something changes or removes files in {self._term.folder}")
        self._forget(task)
        task.nodes.clear()
        self._tasks[task.number] = task
        self._orphans.add(task.number)

    def _drop(self, task: _Task) -> None:
        self._tasks.pop(task.number, None)
        for name in task.nodes:
            remove(self._run.inbox(name) / task.name)
        self._forget(task)

    def _forget(self, task: _Task) -> None:
        for name in task.nodes:
            if machine := self._machines.get(name):
                machine.tasks.discard(task.number)

    # ------------------------------------------------------------------------------------------------------- nodes

    def _look(self) -> None:
        """Now and then, see who works, and whether this process still drives."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS and self._machines:
            return
        self._looked = now
        self._look_around()
        self.refuse_deposed()
        came, lost = self._machines.look()
        for machine in came:  # of one that was away, and is back
            machine.tasks |= {task.number for task in self._tasks.values() if machine.name in task.nodes}
        for machine in lost:
            self._orphans |= machine.tasks
        self._hand_on()

    def refuse_deposed(self) -> None:
        """Raises Deposed where another process has taken this one for lost."""
        latest = latest_term(self._term.folder)
        if latest is not None and latest.number != self._term.number:
            away = f"this one was away for more than executor.lost_after={self._lost_after:g} s"
            raise Deposed(f"another process drives this run now: {away}")

    def _hand_on(self) -> None:
        """Give the jobs of machines that were lost to others."""
        for number in sorted(self._orphans) if self._machines else ():
            self._orphans.discard(number)
            task = self._tasks.get(number)
            if task is None or any(map(self._machines.get, task.nodes)):
                continue
            if len(task.nodes) >= _MOST_LOST:
                raise PackError(
                    f"{len(task.nodes)} machines were lost while they did the same job ({', '.join(task.nodes)}), most"
                    " likely for memory: try a smaller executor.num_workers"
                )
            self._send(task, self._machines.freest)
