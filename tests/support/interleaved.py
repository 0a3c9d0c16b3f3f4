"""Two runs, a step at a time, in every order: which of them takes the next step is chosen from outside.

The code under test runs as it is, in a thread for each run; what it calls to read or change the world waits in
`Stepper.step` for its turn.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import Lock, Thread, local
from uuid import uuid4

#: A choice: nobody takes a step any more.
STOP = -1


class Killed(BaseException):
    """Ends a thread that was stopped, after the world was looked at."""


class _Run:
    """One thread; it has a turn, or the chooser has."""

    def __init__(self, stepper: "Stepper", number: int, body: Callable[[], None]):
        self.may_go, self.has_stopped = Lock(), Lock()
        self.may_go.acquire()
        self.has_stopped.acquire()
        self.is_over = self.is_killed = False
        self.error: BaseException | None = None
        self.number = number
        self.num_names = 0
        self.seen: int = 0  # hash of the results of its steps
        self._thread = Thread(target=self._work, args=(stepper, body), daemon=True)
        self._thread.start()

    def _work(self, stepper: "Stepper", body: Callable[[], None]) -> None:
        stepper.here.run = self
        self.may_go.acquire()
        try:
            if not self.is_killed:
                body()
        except BaseException as error:
            self.error = error
        self.is_over = True
        self.has_stopped.release()

    def go(self) -> None:
        """Up to the next step."""
        self.seen = hash((self.seen, "a step"))
        self.may_go.release()
        self.has_stopped.acquire()

    def kill(self) -> None:
        self.is_killed = True
        if not self.is_over:
            self.go()
        self._thread.join()


class Stepper:
    """Where threads wait for their turn."""

    def __init__(self) -> None:
        self.here = local()

    def step(self) -> None:
        """Wait; a thread that is none of the runs goes on."""
        run = getattr(self.here, "run", None)
        if run is None:
            return
        if not run.is_killed:
            run.has_stopped.release()
            run.may_go.acquire()
        if run.is_killed:
            raise Killed

    def name(self) -> str:
        """One that nobody else has, the same in each order that this run sees as the same."""
        run = getattr(self.here, "run", None)
        if run is None:
            return uuid4().hex
        run.num_names += 1
        return f"{run.number}{run.num_names:03}"

    def saw(self, result: Hashable) -> None:
        """Note the result of a step: two runs that saw the same are at the same place."""
        run = getattr(self.here, "run", None)
        if run is not None:
            run.seen = hash((run.seen, result))


class World(ABC):
    """What two runs share, made anew for each order of their steps."""

    stepper: Stepper

    @abstractmethod
    def bodies(self) -> list[Callable[[], None]]:
        """The runs."""

    @abstractmethod
    def state(self) -> Hashable:
        """All that a run could see."""

    @abstractmethod
    def judge(self, errors: list[BaseException | None], is_over: list[bool]) -> None:
        """Look at the world after the runs have stopped, and assert what is promised.

        Args:
            errors: how each run ended; None: well, or not at all.
            is_over: whether it ended.
        """


def every_order(make: Callable[[], World], most_switches: int) -> int:
    """Take the steps of two runs in every order, and stop one for ever at any step; how many ends were judged.

    States that were seen before are not gone on from: what follows is the same. Nor is a run stopped twice in worlds
    that look the same.

    Args:
        most_switches: how often the turn may go from one run that is not over to the other.
    """
    prefixes: list[tuple[int, ...]] = [()]
    seen: set[Hashable] = set()
    stopped: set[Hashable] = set()
    num_judged = 0
    while prefixes:
        prefix = prefixes.pop()
        world = make()
        with _started(world) as runs:
            chosen: list[int] = []
            last, num_switches = 0, 0
            while True:
                alive = [number for number, run in enumerate(runs) if not run.is_over]
                if len(chosen) < len(prefix):
                    num_switches += prefix[len(chosen)] != last and len(chosen) > 0
                    last = prefix[len(chosen)]
                else:
                    state = world.state()
                    key = (state, num_switches, last, tuple((run.seen, run.is_over) for run in runs))
                    if key in seen:
                        break
                    seen.add(key)
                    end = (state, tuple((run.is_over, type(run.error)) for run in runs))
                    if len(alive) == 1 and end not in stopped:
                        stopped.add(end)
                        prefixes.append((*chosen, STOP))
                    last = last if last in alive else alive[0] if alive else STOP
                    if num_switches < most_switches:
                        prefixes.extend((*chosen, other) for other in alive if other != last)
                if last == STOP:
                    world.judge([run.error for run in runs], [run.is_over for run in runs])
                    num_judged += 1
                    break
                chosen.append(last)
                runs[last].go()
    return num_judged


@contextmanager
def _started(world: World) -> Iterator[list[_Run]]:
    runs = [_Run(world.stepper, number, body) for number, body in enumerate(world.bodies())]
    try:
        yield runs
    finally:
        for run in runs:
            run.kill()
