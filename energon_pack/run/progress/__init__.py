"""What a run says while it works: on a terminal one display over all its stages, in a log a line now and then.

Progress ──► pace: the rate and the time left ──► lines: what is said ──► the part of a terminal that is drawn anew
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Protocol

import psutil
from rich.console import Console
from rich.live import Live
from rich.text import Text

from energon_pack.run.progress.lines import Done, Work, finished_lines, log_line, running_lines, signs_for, to_come
from energon_pack.run.progress.pace import Mark, Pace

_SECONDS_BEFORE_LINES = 30.0
_MOST_SECONDS_BETWEEN_LINES = 600.0
_DRAWN_A_SECOND = 8
_INDENT = "  "  # below the sign of a stage


class Advance(Protocol):
    """What a stage calls with the number of units just done."""

    def __call__(self, count: int, cost: float | None = None, is_new: bool = True) -> None:
        """One more result.

        Args:
            cost: of these units, where a stage was given its own; None: as many as there are.
            is_new: they were not there before: what was takes no time, and tells nothing of the rest.
        """


class Progress:
    """Shows stages on stderr, and keeps what each did, its seconds and its peak memory.

    Args:
        stages: of a run, in their order: a terminal shows those to come, and keeps a line of each that is done.
        job: which one of a sweep's jobs it is, where lines of several come at once.
    """

    def __init__(self, stages: Sequence[str] = (), job: str = "", quiet: bool = False):
        self._stages, self._job = stages, job
        self._console = Console(stderr=True, quiet=quiet, highlight=False, markup=False, emoji=False)
        #: whether stages are shown on a terminal as they go
        self.is_live = not quiet and _can_draw()
        self._signs = signs_for(self._console.encoding)
        self._stage: str | None = None
        self._start = 0.0
        self._work: Work | None = None
        self._next_line = 0.0
        #: what each stage did
        self.done: dict[str, Done] = {}
        #: wall seconds by stage
        self.seconds: dict[str, float] = {}
        #: peak resident memory by stage, this process and its workers together, bytes
        self.peak_rss_bytes: dict[str, int] = {}

    def add(
        self, samples: int = 0, num_bytes: int = 0, cached: int = 0, skipped: Mapping[str, int] | None = None
    ) -> None:
        """Count what the stage did: samples, bytes read or written, samples the cache knew, those that are lost."""
        if self._stage is not None:
            done = self.done.setdefault(self._stage, Done())
            done.samples += samples
            done.bytes += num_bytes
            done.cached += cached
            done.skipped.update(skipped or {})

    @property
    def throughput(self) -> dict[str, dict[str, int]]:
        """What each stage did, in numbers."""
        names = ("samples", "cached", "bytes")
        return {stage: {name: getattr(done, name) for name in names} for stage, done in self.done.items()}

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Time a stage, watch its memory, and show that it is at work."""
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
            self.seconds[stage] = round(self.seconds.get(stage, 0.0) + time.perf_counter() - start, 3)
            if self.is_live and self._stages:
                self._keep(stage, is_done)
            ended.set()
            watcher.join()

    @contextmanager
    def stage(
        self,
        name: str,
        total: int,
        unit: str,
        cost: float | None = None,
        begun: Callable[[], float] | None = None,
    ) -> Iterator[Advance]:
        """Yields a function to call with the number of units just done.

        Args:
            cost: of all units, in what takes the time; None: each takes as long.
            begun: says the cost of what is done and was not told yet; called while a terminal is drawn.
        """
        if total == 0:
            yield _nothing
            return
        start = time.monotonic()
        work = Work(name, total, unit, Pace(total if cost is None else cost, start))
        work.begun = begun or work.begun
        self._next_line = start + _SECONDS_BEFORE_LINES

        def advance(count: int, cost: float | None = None, is_new: bool = True) -> None:
            self._advance(work, count, count if cost is None else cost, is_new, start)

        with self._shown(name):
            self._work = work
            try:
                yield advance
            finally:
                self._work = None

    def _advance(self, work: Work, count: int, cost: float, is_new: bool, start: float) -> None:
        now, done = time.monotonic(), self._done
        work.done += count
        if is_new:
            work.cost += cost
            work.pace.note(Mark(now, work.cost, done.samples, done.bytes))
        else:
            work.pace.leave_out(cost)
        if not self.is_live and now >= self._next_line:
            self._next_line = now + min(now - start, _MOST_SECONDS_BETWEEN_LINES)
            job = f"{self._job}: " if self._job else ""
            self._console.print(job + log_line(work, done, now), soft_wrap=True)

    @property
    def line(self) -> str:
        """How far it is, in a line."""
        work, stage = self._work, self._stage
        return stage or "" if work is None else log_line(work, self._done, time.monotonic())

    @property
    def _done(self) -> Done:
        return self.done.get(self._stage or "", Done())

    @contextmanager
    def _shown(self, stage: str) -> Iterator[None]:
        """The part of the terminal that is drawn anew while a stage is at work; one around it goes on."""
        if self._stage is not None:
            yield
            return
        self._stage, self._start = stage, time.monotonic()
        live = Live(
            get_renderable=self._drawn,
            console=self._console,
            refresh_per_second=_DRAWN_A_SECOND,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # else what goes into a file would go to the terminal
            vertical_overflow="crop",
        )
        try:
            if self.is_live:
                live.start(refresh=True)
            yield
        finally:
            live.stop()
            self._stage = None

    def _drawn(self) -> Text:
        """The stage at work, and those to come."""
        now, stage, work = time.monotonic(), self._stage or "", self._work
        width, signs = self._console.width - 1 - len(_INDENT), self._signs  # some terminals break a line that is full
        spinner = signs.spinner[int(now * _DRAWN_A_SECOND) % len(signs.spinner)]
        lines = running_lines(stage, now - self._start, work, self._done, now, width, signs)
        text = Text(no_wrap=True, overflow="crop")
        text.append(f"{spinner} ", "cyan")
        text.append(f"\n{_INDENT}".join(lines))
        if stage in self._stages and (rest := self._stages[self._stages.index(stage) + 1 :]):
            text.append(f"\n{_INDENT}{to_come(rest, signs)}", "bright_black")
        return text

    def _keep(self, stage: str, is_done: bool) -> None:
        """The line of a stage that stays."""
        width, done = self._console.width - 1 - len(_INDENT), self.done.get(stage, Done())
        text = Text()
        text.append(*((f"{self._signs.done} ", "green") if is_done else (f"{self._signs.failed} ", "red")))
        text.append(f"\n{_INDENT}".join(finished_lines(stage, self.seconds[stage], done, width)))
        self._console.print(text, no_wrap=True, overflow="crop")

    def _watch(self, stage: str, ended: Event) -> None:
        this = psutil.Process(os.getpid())
        while True:
            finished = ended.wait(0.1)
            used = 0
            for process in [this, *this.children(recursive=True)]:
                try:
                    used += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.peak_rss_bytes[stage] = max(self.peak_rss_bytes.get(stage, 0), used)
            if finished:
                return


def _nothing(count: int, cost: float | None = None, is_new: bool = True) -> None:
    """Where there is nothing to do."""


def _can_draw() -> bool:
    """Whether stderr is a terminal that one looks at; jobs of a sweep in processes would write over each other."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    return is_terminal and not os.environ.get("CI") and multiprocessing.parent_process() is None
