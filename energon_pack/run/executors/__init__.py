"""The protocol of an executor, which does a run's jobs, and the equal parts in which work is divided."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from energon_pack.errors import PackError
from energon_pack.run.seeded_random import Ints


class WorkPart(NamedTuple):
    """One of `num_parts` equal parts of some work: `3/16` is the fourth of sixteen."""

    number: int
    num_parts: int

    @classmethod
    def parse(cls, text: str) -> "WorkPart":
        """Parse `NUMBER/PARTS`; raises PackError for any other text."""
        number, _, num_parts = text.partition("/")
        if number.isdecimal() and num_parts.isdecimal() and int(number) < int(num_parts):
            return cls(int(number), int(num_parts))
        raise PackError(f"part={text}: must be NUMBER/PARTS, as 0/16, 1/16 … 15/16")

    def __str__(self) -> str:
        return f"{self.number}/{self.num_parts}"


class EqualSizeParts:
    """Divides items that lie in a row, such as shards with their bytes, into parts of equal size.

    ┌── a ──┬──── b ────┬ c ┐
    └─ 0/2 ─────┴── 1/2 ────┘
    """

    def __init__(self, sizes: Sequence[int]):
        self._ends = np.cumsum(np.array(sizes, np.int64))
        self._sizes = np.array(sizes, np.int64)

    def overlapping_items(self, part: WorkPart) -> list[int]:
        """Return the indexes of the items that a part overlaps; an item of size 0 belongs to one part, too."""
        first, last = self._part_of(self._ends - self._sizes, part), self._part_of(self._ends - 1, part)
        return np.flatnonzero((first <= part.number) & (np.maximum(first, last) >= part.number)).tolist()

    def items_by_middle(self, part: WorkPart) -> list[int]:
        """Return the indexes of the items whose middle lies in a part: each item is in exactly one part."""
        return np.flatnonzero(self._part_of(self._ends - self._sizes // 2 - 1, part) == part.number).tolist()

    def rows_of_item_in(self, part: WorkPart, item_number: int, num_rows: int) -> Ints:
        """Return which of an item's rows, all of one size, lie in a part: each row is in exactly one part."""
        size = int(self._sizes[item_number])
        places = self._ends[item_number] - size + (2 * np.arange(num_rows) + 1) * size // (2 * max(1, num_rows))
        return np.flatnonzero(self._part_of(places, part) == part.number)

    def _part_of(self, places: Ints, part: WorkPart) -> Ints:
        total = max(1, int(self._ends[-1])) if len(self._ends) else 1
        return np.clip(places, 0, total - 1) * part.num_parts // total


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
