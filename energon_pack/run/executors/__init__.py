"""The protocol of an executor, which does a run's jobs. Stages know only this; `pack` and `verify` choose the class."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


class JobFolder(NamedTuple):
    """A folder in which jobs find their files."""

    knob: str  # the setting that names it
    path: Path
    is_written: bool  # by the run; a source never is


class Executor(Protocol):
    """Runs functions over jobs, in processes of this machine or on other machines.

    What a stage promises:
        A function is a module's, or a `functools.partial` of one. It can be pickled, and so can its jobs and results.
        A job names its files by paths that are valid wherever it runs. It may run a second time, after a worker was
        lost: the same job makes the same result, and writes its files whole or not at all.

    What an executor promises:
        Results come in the order of the jobs, whichever job ends first. Jobs are taken from their iterator as workers
        become free, so neither jobs nor results pile up, however many there are.
        An error that a function raises is raised here, with its type, when its result is taken; jobs that have not
        begun are then dropped. A lost or stuck worker is a `PackError` that names the knob to turn. Every wait ends.
    """

    def share(self, folders: Sequence[JobFolder]) -> None:
        """Receive, before the first job, the folders that every worker has to see."""

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job], are_short: bool = False) -> Iterator[Result]:
        """Yield results in the order of the jobs.

        Args:
            are_short: all jobs together may take less time than starting a worker; they may run in this process.
        """

    def start(self, function: Callable[[Job], Result], job: Job) -> "Future[Result]":
        """Start one job beside all others, behind those started before; `result` waits for it.

        One worker does all of these jobs, so that slow imports happen once.
        """

    def result(self, future: "Future[Result]") -> Result:
        """Wait for a started job; return its result."""
