"""Who does the jobs of a run. A stage knows this protocol alone; `pack` and `verify` choose who fulfils it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


class Folder(NamedTuple):
    """A folder in which jobs find their files."""

    knob: str  # that names it
    path: Path
    is_written: bool  # by the run; a source never is


class Executor(Protocol):
    """Runs functions over jobs, here or elsewhere: in processes of this machine, on other machines.

    What a stage promises:
        A function is one of a module, or a `functools.partial` of one; it, its jobs and its results can be pickled.
        A job names its files by paths that are good wherever it runs. It may run a second time, after a worker was
        lost: the same job makes the same result, and writes its files whole or not at all.

    What an executor promises:
        Results come in the order of the jobs, whoever is done first. Jobs are taken from their iterator as workers
        become free, so neither jobs nor results pile up, however many there are.
        An error that a function raises is raised here, with its type, when its result is taken; jobs that were not
        begun are then dropped. A worker that is lost or stuck is a `PackError` that names the knob to turn: no wait
        has no end.
    """

    def share(self, folders: Sequence[Folder]) -> None:
        """Hear, before the first job, which folders everyone who does jobs has to see."""

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job], are_short: bool = False) -> Iterator[Result]:
        """Results in the order of the jobs.

        Args:
            are_short: starting a worker may take longer than all of them; they may run in this process.
        """

    def start(self, function: Callable[[Job], Result], job: Job) -> "Future[Result]":
        """Begin one job beside all others, after those begun before; `result` waits for it.

        The same worker does all of these: what takes long to import is imported once.
        """

    def result(self, future: "Future[Result]") -> Result:
        """Wait for a job that was started."""
