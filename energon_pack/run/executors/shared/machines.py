"""The machines that work in a term, as its driver sees them."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from energon_pack import __version__
from energon_pack.errors import PackError
from energon_pack.run.console import say
from energon_pack.run.executors.shared.beats import Watched, is_dead
from energon_pack.run.executors.shared.folder import RunFolder, names_in, read_object, refresh, remove

JOBS_PER_WORKER = 2  # one at work, one waiting


@dataclass
class Machine:
    """One that is given jobs."""

    name: str
    num_workers: int
    watched: Watched
    tasks: set[int] = field(default_factory=set)

    @property
    def room(self) -> int:
        return JOBS_PER_WORKER * self.num_workers - len(self.tasks)


class Machines:
    """Those that are fit and give signs of life, by name.

    Args:
        lost_after: seconds without a sign of life after which one is lost.
    """

    def __init__(self, run: RunFolder, lost_after: float):
        self._run, self._lost_after = run, lost_after
        self._there: dict[str, Machine] = {}
        self._unfit: dict[str, str] = {}  # and why
        self._seen = time.monotonic()  # any

    def look(self) -> tuple[list[Machine], list[Machine]]:
        """Those that came since the last look, and those that were lost.

        Raises:
            PackError: all that are there are unfit.
        """
        refresh(self._run.nodes)
        there = {name.removesuffix(".json") for name in names_in(self._run.nodes)}
        came = [machine for name in there - self._there.keys() - self._unfit.keys() if (machine := self._met(name))]
        self._there |= {machine.name: machine for machine in came}
        lost = [machine for machine in self if machine.name not in there or machine.watched.is_lost()]
        for machine in lost:
            del self._there[machine.name]
            remove(machine.watched.path)  # it would be seen again
        now = time.monotonic()
        if self._there or not there & self._unfit.keys():
            self._seen = now
        if now - self._seen > self._lost_after:
            raise PackError(f"no machine is fit for this run: {next(iter(self._unfit.values()))}")
        return came, lost

    def _met(self, name: str) -> Machine | None:
        path = self._run.nodes / f"{name}.json"
        about = read_object(path)
        if about is None or about.get("version") != __version__ or is_dead(about):
            return None
        if about.get("unfit"):
            self._unfit[name] = str(about["unfit"])
            say(f"not used: {about['unfit']}")
            return None
        return Machine(name, int(about["num_workers"]), Watched(path, self._lost_after))

    def get(self, name: str) -> Machine | None:
        return self._there.get(name)

    @property
    def freest(self) -> Machine:
        return max(self, key=lambda machine: machine.room / machine.num_workers)

    @property
    def num_workers(self) -> int:
        return sum(machine.num_workers for machine in self)

    def __iter__(self) -> Iterator[Machine]:
        return iter([*self._there.values()])  # at once: another thread asks, too

    def __bool__(self) -> bool:
        return bool(self._there)
