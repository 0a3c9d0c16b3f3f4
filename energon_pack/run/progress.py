"""What a run says while it works: on a terminal what it does and the time left, in a log a line now and then."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Thread

import psutil
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

_SECONDS_BEFORE_LINES = 30.0
_MOST_SECONDS_BETWEEN_LINES = 600.0
_SECONDS_OF_RATE = 600.0


class Progress:
    """Shows stages on stderr, and keeps seconds and peak memory of each."""

    def __init__(self, quiet: bool = False):
        self._console = Console(stderr=True, quiet=quiet)
        # Jobs of a sweep that a launcher runs at once, each in its process, would write over each other's lines.
        self._is_live = self._console.is_terminal and multiprocessing.parent_process() is None
        self._bars: Bars | None = None
        #: wall seconds by stage
        self.seconds: dict[str, float] = {}
        #: peak resident memory by stage, this process and its workers together, bytes
        self.peak_rss_bytes: dict[str, int] = {}

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Time a stage, watch its memory, and show that it is at work."""
        done = Event()
        watcher = Thread(target=self._watch, args=(stage, done), daemon=True)
        watcher.start()
        start = time.perf_counter()
        try:
            with self._shown(stage):
                yield
        finally:
            self.seconds[stage] = round(self.seconds.get(stage, 0.0) + time.perf_counter() - start, 3)
            done.set()
            watcher.join()

    @contextmanager
    def stage(self, name: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        """Yields a function to call with the number of units just done."""
        if total == 0:
            yield lambda count: None
        elif self._is_live:
            with self._shown(name, total, unit) as advance:
                yield advance
        else:
            yield self._lines(name, total, unit)

    @contextmanager
    def _shown(self, name: str, total: int | None = None, unit: str = "") -> Iterator[Callable[[int], None]]:
        """One line on a terminal, in place of that of the stage around."""
        if not self._is_live:
            yield lambda count: None
            return
        with self._live() as bars:
            around = bars.task_ids[-1:]
            for task in around:
                bars.update(task, visible=False)
            task = bars.add_task(name, total=total, unit=unit)
            try:
                yield lambda count: bars.advance(task, count)
            finally:
                bars.remove_task(task)
                for task in around:
                    bars.update(task, visible=True)

    @contextmanager
    def _live(self) -> Iterator[Bars]:
        """The part of the terminal that is drawn anew: that of the stage around, or a new one."""
        if self._bars is not None:
            yield self._bars
            return
        columns = (SpinnerColumn(), TextColumn("{task.description:<9}"), _Bar(), _State())
        try:
            with Bars(
                *columns, console=self._console, transient=True, speed_estimate_period=_SECONDS_OF_RATE
            ) as self._bars:
                yield self._bars
        finally:
            self._bars = None

    def _lines(self, name: str, total: int, unit: str) -> Callable[[int], None]:
        start = time.monotonic()
        done, first, next_line = 0, (0.0, 0), start + _SECONDS_BEFORE_LINES

        def advance(count: int) -> None:
            nonlocal done, first, next_line
            done += count
            now = time.monotonic()
            first = first if first[1] else (now, done)
            if now >= next_line:
                next_line = now + min(now - start, _MOST_SECONDS_BETWEEN_LINES)
                left = seconds_left(first, (now, done), total)
                about = "" if left is None else f", about {timedelta(seconds=round(left))} left"
                self._console.print(f"{name}: {done:,} of {total:,} {unit}{about}", highlight=False)

        return advance

    def _watch(self, stage: str, done: Event) -> None:
        this = psutil.Process(os.getpid())
        while True:
            finished = done.wait(0.1)
            used = 0
            for process in [this, *this.children(recursive=True)]:
                try:
                    used += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.peak_rss_bytes[stage] = max(self.peak_rss_bytes.get(stage, 0), used)
            if finished:
                return


def seconds_left(first: tuple[float, int], last: tuple[float, int], total: int) -> float | None:
    """Time for the rest at the rate since the first result; what came before it was starting up. None: not known yet.

    Args:
        first, last: a time in seconds, and how many were done then.
    """
    seconds, number = last[0] - first[0], last[1] - first[1]
    return seconds / number * (total - last[1]) if seconds > 0 and number > 0 else None


class _Bar(BarColumn):
    """Of stages that count what they do."""

    def render(self, task: Task) -> Text:  # type: ignore[override]
        return Text() if task.total is None else super().render(task)  # type: ignore[return-value]


class _State(ProgressColumn):
    """Seconds of a stage; how much is done, and the time left at the rate since the first result."""

    def render(self, task: Task) -> Text:
        text = str(timedelta(seconds=int(task.elapsed or 0)))
        if task.total is not None:
            text = f"{task.completed:,.0f} of {task.total:,.0f} {task.fields['unit']}, {text}"
            if task.time_remaining is not None and not task.finished:
                text += f", about {timedelta(seconds=round(task.time_remaining))} left"
        return Text(text)
