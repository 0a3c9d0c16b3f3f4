"""Run single jobs of a run in a process on the machine that drives many; if it is killed, a new one replaces it."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypeVar

from energon_pack.run.executors.local import LocalExecutor, WorkerKilled

Job = TypeVar("Job")
Result = TypeVar("Result")

_PROCESSES = 2  # the process for these jobs, and this one
_TRIES = 3


class Beside:
    """Runs single jobs here while other machines do the rest. A killed process is replaced; it does not end the run."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._local = LocalExecutor(_PROCESSES)
        self._begun: dict[Future[Any], tuple[LocalExecutor, Callable[[Any], Any], Any]] = {}

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """See `Executor.map`."""
        return self._local.map(function, jobs)

    def start(self, function: Callable[[Job], Result], job: Job) -> "Future[Result]":
        """See `Executor.start`."""
        try:
            future = self._local.start(function, job)
        except WorkerKilled:
            self._replace(self._local)
            future = self._local.start(function, job)
        self._begun[future] = self._local, function, job
        return future

    def result(self, future: "Future[Result]") -> Result:
        """See `Executor.result`.

        Raises:
            WorkerKilled: every process that tried the job was killed.
        """
        for _ in range(_TRIES - 1):
            try:
                return self._result(future)
            except WorkerKilled:
                local, function, job = self._begun.pop(future)
                self._replace(local)
                future = self.start(function, job)
        return self._result(future)

    def _result(self, future: "Future[Result]") -> Result:
        local = self._begun[future][0]
        result = local.result(future)
        del self._begun[future]
        return result

    def _replace(self, killed: LocalExecutor) -> None:
        """Start a new process for jobs, unless another job has done so: a kill fails all waiting jobs at once."""
        if self._local is killed:
            self._local = self._stack.enter_context(LocalExecutor(_PROCESSES))

    def __enter__(self) -> "Beside":
        self._stack.enter_context(self._local)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, value, trace)
