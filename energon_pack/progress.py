"""What a run says while it works: a bar with the time left on a terminal, a line now and then in a log file."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

_SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Shows stages on stderr, and keeps seconds and peak memory of each."""

    def __init__(self, quiet: bool = False):
        self._console = Console(stderr=True, quiet=quiet)
        #: wall seconds by stage
        self.seconds: dict[str, float] = {}
        #: peak resident memory by stage, this process and its workers together, bytes
        self.peak_rss_bytes: dict[str, int] = {}

    @contextmanager
    def measured(self, stage: str) -> Iterator[None]:
        """Time a stage and watch its memory."""
        done = Event()
        watcher = Thread(target=self._watch, args=(stage, done), daemon=True)
        watcher.start()
        start = time.perf_counter()
        try:
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
            return
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description:<8}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(f"{unit},"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            with Bars(*columns, console=self._console, transient=True) as bars:
                task = bars.add_task(name, total=total)
                yield lambda count: bars.advance(task, count)
            return
        yield self._lines(name, total, unit)

    def _lines(self, name: str, total: int, unit: str) -> Callable[[int], None]:
        start = last = time.monotonic()
        done = 0

        def advance(count: int) -> None:
            nonlocal done, last
            done += count
            now = time.monotonic()
            if now - last > _SECONDS_BETWEEN_LINES:
                last = now
                left = (now - start) / max(1, done) * (total - done)
                self._console.print(f"{name}: {done:,} of {total:,} {unit}, about {left:,.0f} s left")

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
