"""Show what a run does while it works: on a terminal rich's bars for all its stages, in a log a line now and then."""

import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event, Thread
from typing import Protocol

import psutil
from rich import progress as bars
from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from energon_pack.errors import amount
from energon_pack.run.console import EscapingConsole

_MIN_SECONDS_BEFORE_LINES = 30.0
_MAX_SECONDS_BETWEEN_LINES = 600.0
_REDRAWS_PER_SECOND = 8
_NAME_WIDTH = 9  # characters of the longest name of a stage
_MIN_SECONDS_FOR_RATES = 0.1  # seconds: a rate over less time says nothing
_PACE_WINDOW_SECONDS = 3600.0  # the last hour's rate gives the time left
_MIN_SECONDS_SHOWN_AS_DAYS = 2 * 86_400.0  # seconds: a longer time left is given in days


class AdvanceFunction(Protocol):
    """The function by which a stage reports units of its work as done."""

    def __call__(self, count: int, cost: float | None = None, is_new: bool = True) -> None:
        """Report `count` more units as done.

        Args:
            cost: the cost of these units, in a stage whose units differ in cost; None: 1 for each.
            is_new: this run did them. Units from an earlier run took no time, so they do not count for the pace.
        """


@dataclass
class StageCounts:
    """What a stage has done: samples, bytes, samples from the cache, and skipped samples."""

    samples: int = 0
    bytes: int = 0  # read or written
    cached: int = 0  # samples that the cache knew in full
    skipped: Counter[str] = field(default_factory=Counter)  # samples by reason


def _no_begun_cost() -> float:
    return 0.0


@dataclass
class StageWork:
    """A stage's work in units, and how much of it is done."""

    name: str
    total: int
    unit: str
    #: The pace, by cost. rich leaves out the time before the first result, which was starting up.
    task: bars.Task
    #: returns the cost of units that are begun and not reported yet
    begun: Callable[[], float] = _no_begun_cost
    done: int = 0
    cost: float = 0.0

    def counts(self) -> str:
        """Return a text such as `3 of 10 packs`, in whole units; those that are begun count in part, by their cost."""
        begun, total = self.begun(), self.task.total
        seen = int(min(1.0, (self.cost + begun) / total) * self.total) if begun and total else 0
        return f"{max(self.done, seen):,} of {self.total:,} {self.unit}"


class Progress:
    """Shows the stages of a run on stderr, and records counts, seconds and peak memory of each.

    Args:
        stages: names of the run's stages, in order: a terminal shows those to come, and a line for each finished one.
        job: name of this job of a sweep, which begins each line, because several jobs print at once.
    """

    def __init__(self, stages: Sequence[str] = (), job: str = "", quiet: bool = False):
        self._stages, self._job = stages, job
        self._console: Console = EscapingConsole(stderr=True, quiet=quiet, highlight=False, markup=False, emoji=False)
        #: whether a terminal shows stages as they go
        self.is_live = not quiet and _can_draw()
        self._bars = bars.Progress(
            bars.SpinnerColumn("line"),
            f"{{task.description:<{_NAME_WIDTH}}}",
            bars.BarColumn(),
            bars.TaskProgressColumn(),
            bars.TimeElapsedColumn(),
            bars.TimeRemainingColumn(),
            console=self._console,
            auto_refresh=False,
            speed_estimate_period=_PACE_WINDOW_SECONDS,
            get_time=time.monotonic,
        )
        self._stage: str | None = None
        self._start = 0.0
        self._work: StageWork | None = None
        self._next_line = 0.0
        #: counts by stage
        self.counts: dict[str, StageCounts] = {}
        #: wall seconds by stage
        self.seconds: dict[str, float] = {}
        #: peak resident memory by stage, of this process and its workers together, in bytes
        self.peak_rss_bytes: dict[str, int] = {}

    def add(
        self, samples: int = 0, num_bytes: int = 0, cached: int = 0, skipped: Mapping[str, int] | None = None
    ) -> None:
        """Add to the counts of the running stage; `skipped` are numbers of lost samples by reason."""
        if self._stage is not None:
            done = self.counts.setdefault(self._stage, StageCounts())
            done.samples += samples
            done.bytes += num_bytes
            done.cached += cached
            done.skipped.update(skipped or {})

    @property
    def totals_by_stage(self) -> dict[str, dict[str, int]]:
        """Return for each stage its numbers of `samples`, `cached` samples and `bytes`."""
        names = ("samples", "cached", "bytes")
        return {stage: {name: getattr(done, name) for name in names} for stage, done in self.counts.items()}

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Time a stage, record its peak memory, and show that it is running."""
        ended = Event()
        watcher = Thread(target=self._watch, args=(stage, ended), daemon=True)
        watcher.start()
        start = time.perf_counter()
        is_done = False
        try:
            with self._shown(stage):
                yield
            is_done = True
        finally:
            ended.set()
            self.seconds[stage] = round(self.seconds.get(stage, 0.0) + time.perf_counter() - start, 3)
            if self.is_live and self._stages:
                sign = ("✓ ", "green") if is_done else ("✗ ", "red")
                line = finished_stage_text(stage, self.seconds[stage], self.counts.get(stage, StageCounts()))
                self._console.print(Text.assemble(sign, line))
            watcher.join()

    @contextmanager
    def stage(
        self,
        name: str,
        total: int,
        unit: str,
        cost: float | None = None,
        begun_cost: Callable[[], float] | None = None,
    ) -> Iterator[AdvanceFunction]:
        """Show a bar for work of `total` units; yield the function that reports units as done.

        Args:
            cost: cost of all units, in a stage whose units differ in cost; None: 1 for each.
            begun_cost: returns the cost of units that are begun, and not reported yet.
        """
        if total == 0:
            yield _ignore_units
            return
        start = time.monotonic()
        self._next_line = start + _MIN_SECONDS_BEFORE_LINES
        with self._shown(name), self._task(total if cost is None else cost) as task:
            work = self._work = StageWork(name, total, unit, task, begun_cost or _no_begun_cost)

            def advance(count: int, cost: float | None = None, is_new: bool = True) -> None:
                self._advance(work, count, count if cost is None else cost, is_new, start)

            try:
                yield advance
            finally:
                self._work = None

    def _advance(self, work: StageWork, count: int, cost: float, is_new: bool, start: float) -> None:
        now = time.monotonic()
        work.done += count
        if is_new:
            work.cost += cost
            self._bars.update(work.task.id, completed=work.cost)
        elif work.task.total is not None:
            work.task.total -= cost
        if not self.is_live and now >= self._next_line:
            self._next_line = now + min(now - start, _MAX_SECONDS_BETWEEN_LINES)
            job = f"{self._job}: " if self._job else ""
            self._console.print(job + self._log_line(work, now), soft_wrap=True)

    @property
    def running_stage_text(self) -> str:
        """Return a line of text about the running stage; "" if none is running."""
        return self._stage or "" if self._work is None else self._log_line(self._work, time.monotonic())

    def _log_line(self, work: StageWork, now: float) -> str:
        seconds = work.task.time_remaining
        words = [*self._counts(work, now), *([] if seconds is None else [_time_left_text(seconds)])]
        return f"{work.name}: {', '.join(words)}"

    def _counts(self, work: StageWork, now: float) -> list[str]:
        done = self.counts.get(self._stage or "", StageCounts())
        return [work.counts(), *_rates(done, now - self._start), *_cached(done), *_skipped(done)]

    @contextmanager
    def _task(self, total: float | None) -> Iterator[bars.Task]:
        """Add a bar for the running stage; without a total it only moves."""
        number = self._bars.add_task(self._stage or "", total=total)
        try:
            yield next(task for task in self._bars.tasks if task.id == number)
        finally:
            self._bars.remove_task(number)

    @contextmanager
    def _shown(self, stage: str) -> Iterator[None]:
        """Redraw a part of the terminal while a stage runs; a stage around it goes on."""
        if self._stage is not None:
            yield
            return
        self._stage, self._start = stage, time.monotonic()
        live = Live(
            get_renderable=self._drawn,
            console=self._console,
            refresh_per_second=_REDRAWS_PER_SECOND,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # else text meant for a file would go to the terminal
            vertical_overflow="crop",
        )
        try:
            with self._task(None):
                if self.is_live:
                    live.start(refresh=True)
                yield
        finally:
            live.stop()
            self._stage = None

    def _drawn(self) -> Group:
        """Draw the running stage, and the coming ones."""
        stage, work = self._stage or "", self._work
        texts = []
        if work is not None:
            self._bars.update(work.task.id, completed=work.cost + work.begun())
            prefix = "" if work.name == stage else f"{work.name}: "
            texts.append(Text(prefix + "  ".join(self._counts(work, time.monotonic()))))
        if stage in self._stages and (rest := self._stages[self._stages.index(stage) + 1 :]):
            texts.append(Text(" · ".join(rest), "bright_black"))
        return Group(self._bars.make_tasks_table(self._bars.tasks[-1:]), *(Padding(text, (0, 2)) for text in texts))

    def _watch(self, stage: str, ended: Event) -> None:
        this = psutil.Process(os.getpid())
        while True:
            finished = ended.wait(0.5)  # looking for workers takes some milliseconds
            used = 0
            for process in [this, *this.children(recursive=True)]:
                try:
                    used += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.peak_rss_bytes[stage] = max(self.peak_rss_bytes.get(stage, 0), used)
            if finished:
                return


def finished_stage_text(name: str, seconds: float, counts: StageCounts) -> str:
    """Return a line of text about a finished stage."""
    samples = [amount(counts.samples, "sample")] if counts.samples else []
    took = f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=int(seconds)))
    words = [
        f"{name:<{_NAME_WIDTH}}",
        f"{took:>8}",
        *samples,
        *_rates(counts, seconds),
        *_cached(counts),
        *_skipped(counts),
    ]
    return "  ".join(words).rstrip()


def _rates(done: StageCounts, seconds: float) -> Iterator[str]:
    if seconds < _MIN_SECONDS_FOR_RATES:
        return
    if done.samples:
        yield f"{_two_digits(done.samples / seconds)} samples/s"
    if done.bytes:
        yield f"{_two_digits(done.bytes / 1e6 / seconds)} MB/s"


def _two_digits(value: float) -> str:
    """Write a number with at least two digits."""
    return f"{value:,.0f}" if value >= 10 else f"{value:,.1f}" if value >= 1 else f"{value:.2g}"


def _cached(done: StageCounts) -> Iterator[str]:
    if done.cached:
        yield f"{done.cached:,} {'' if done.samples else 'samples '}from the cache"


def _skipped(done: StageCounts) -> Iterator[str]:
    if done.skipped:
        [(reason, number)] = done.skipped.most_common(1)
        yield f"{done.skipped.total():,} skipped ({f'{number:,} ' if len(done.skipped) > 1 else ''}{reason})"


def _time_left_text(seconds: float) -> str:
    if seconds > _MIN_SECONDS_SHOWN_AS_DAYS:
        return f"about {seconds / 86_400:,.0f} days left"
    return f"about {timedelta(seconds=round(seconds))} left"


def _ignore_units(count: int, cost: float | None = None, is_new: bool = True) -> None:
    """Do nothing: for stages without work."""


def _can_draw() -> bool:
    """Say whether bars can be drawn: stderr is a terminal, and no other processes of a sweep write to it."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    return is_terminal and not os.environ.get("CI") and multiprocessing.parent_process() is None
