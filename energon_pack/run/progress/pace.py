"""How fast a stage goes, and the time it has left."""

from typing import NamedTuple

_BURST = 0.1  # of the time to the first result: that of the others that workers began with it


class Mark(NamedTuple):
    """How far a stage was at a time."""

    time: float  # seconds
    cost: float  # of what is done, in whatever unit takes the time
    samples: int = 0
    num_bytes: int = 0


class Pace:
    """The rate since the first results: what came before them was starting up.

    Workers that begin together end together: all that comes right after the first result counts as the first. What was
    there already takes no time, and tells nothing of the rest: `leave_out` it.

    Args:
        total: cost of all that is to do.
        start: the time.
    """

    def __init__(self, total: float, start: float):
        self._total, self._start = total, start
        self._first: Mark | None = None
        self._last: Mark | None = None

    def note(self, mark: Mark) -> None:
        """A result came."""
        if self._first is None or mark.time - self._first.time <= _BURST * (self._first.time - self._start):
            self._first = mark if self._first is None else mark._replace(time=self._first.time)
        self._last = mark

    def leave_out(self, cost: float) -> None:
        """Some of the total was there already."""
        self._total -= cost

    @property
    def share(self) -> float:
        """Of the cost, what is done."""
        return min(1.0, self._last.cost / self._total) if self._last is not None and self._total else 0.0

    def part(self, cost: float) -> float:
        """The share of the total that a cost is."""
        return cost / self._total if self._total else 0.0

    @property
    def rates(self) -> tuple[float, float] | None:
        """Samples and bytes a second; None: not known yet."""
        first, last = self._first, self._last
        if first is None or last is None or last.time <= first.time or last.cost <= first.cost:
            return None
        seconds = last.time - first.time
        return (last.samples - first.samples) / seconds, (last.num_bytes - first.num_bytes) / seconds

    def seconds_left(self, now: float) -> float | None:
        """Time for the rest; None: not known yet."""
        if self._first is None or self._last is None:
            return None
        left = seconds_left(self._first[:2], self._last[:2], self._total)
        return None if left is None else max(0.0, left - (now - self._last.time))


def seconds_left(first: tuple[float, float], last: tuple[float, float], total: float) -> float | None:
    """Time for the rest at the rate between two results; None: not known yet.

    Args:
        first, last: a time in seconds, and how much was done then.
    """
    seconds, done = last[0] - first[0], last[1] - first[1]
    return seconds / done * (total - last[1]) if seconds > 0 and done > 0 else None
