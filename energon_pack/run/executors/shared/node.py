"""What works on a machine: it takes jobs out of its inbox, does them with processes of its own, and says it lives.

python -m energon_pack.run.executors.shared.node FOLDER NUM_WORKERS     (started by `together`; ends with it)
"""

import os
import signal
import sys
import time
import uuid
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

from energon_pack import __version__
from energon_pack.errors import PackError
from energon_pack.run.console import say
from energon_pack.run.executors.admission import Terms, why_unfit
from energon_pack.run.executors.local import LocalExecutor, WorkerKilled, count_cores
from energon_pack.run.executors.shared.beats import Beat, Watched, here
from energon_pack.run.executors.shared.folder import names_in, read, read_object, refresh, remove, write
from energon_pack.run.executors.shared.terms import Term, latest_term
from energon_pack.run.executors.shared.wire import WireError, decode, encode
from energon_pack.run.executors.workers import INTERRUPTS

_SHORTEST_WAIT, _LONGEST_WAIT = 0.02, 0.5  # seconds between two looks into an inbox
_LOOK_SECONDS = 1.0  # between two looks at who drives
_TRIES, _TRIES_ALONE = 2, 3  # of a job at work when a process was killed
_END_SECONDS = 5.0


def do(task: Path, results: Path) -> bool:
    """Do the job that a file holds; what comes of it is another file.

    Returns:
        Whether it is there. Else nobody waits for it any more, or the file system has a bad moment.
    """
    data = read(task)
    if data is None:
        return False
    try:
        function, job = decode(data)
    except WireError as error:
        return write(results / task.name, encode(("unread", str(error))))
    return write(results / task.name, encode(("done", function(job))))


class Node:
    """One that works in a run, until that is over.

    Args:
        ended: set when this process is to end.
        is_beside: the process that started this one drives, and this one beats for it.
    """

    def __init__(self, term: Term, num_workers: int, ended: Event, is_beside: bool = False):
        self._term, self._run, self._num_workers, self._ended = term, term.run, num_workers, ended
        self._is_beside = is_beside
        about = here()
        self.name = f"{about['host']}-{about['pid']}-{uuid.uuid4().hex[:4]}"
        self._about = {**about, "num_workers": num_workers, "version": __version__}
        self._inbox = self._run.inbox(self.name)
        self._do = partial(do, results=self._run.results)
        self._at_work: dict[Future[bool], str] = {}
        self._num_kills: Counter[str] = Counter()  # that a job saw
        self._num_done = 0
        self._looked = 0.0
        self._driver = Watched(term.beat, 0.0)
        self._is_over = False

    def work(self) -> None:
        """Do what comes into the inbox, where this machine is fit for the run."""
        while (terms := read_object(self._run.terms)) is None:
            if self._over() or self._ended.wait(_LONGEST_WAIT):
                return
        self._about["unfit"] = why_unfit(Terms(**terms))
        self._inbox.mkdir(parents=True, exist_ok=True)
        with Beat(self._run.nodes / f"{self.name}.json", self._describe):
            while self._about["unfit"] and not self._over():
                self._ended.wait(_LOOK_SECONDS)
            while not self._over():
                try:
                    with LocalExecutor(self._num_workers) as executor:
                        self._serve(executor)
                except WorkerKilled:
                    self._after_kill()

    def _describe(self) -> dict[str, Any]:
        return {**self._about, "num_done": self._num_done, "at_work": len(self._at_work)}

    def _serve(self, executor: LocalExecutor) -> None:
        pause, waited = _SHORTEST_WAIT, 0.0
        while not self._over():
            begun = set(self._at_work.values())
            new = [name for name in names_in(self._inbox) if name not in begun]
            for name in new:
                self._at_work[executor.submit(self._do, self._inbox / name)] = name
            done = wait(self._at_work, pause, FIRST_COMPLETED).done if self._at_work else set()
            for future in done:
                self._finish(future)
            if new or done:
                pause, waited = _SHORTEST_WAIT, 0.0
                continue
            if not self._at_work:
                time.sleep(pause)
            waited += pause
            pause = min(2 * pause, _LONGEST_WAIT)
            if waited > _LOOK_SECONDS:
                refresh(self._inbox)
                if self._at_work:
                    executor.look(waited)
                waited = 0.0

    def _finish(self, future: Future[bool]) -> None:
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            raise WorkerKilled
        self._end(self._at_work.pop(future), error or future.result())

    def _end(self, name: str, came: BaseException | bool) -> None:
        """Have a job out of the inbox.

        Args:
            came: whether its result is there; else it stays, and is done again. Or its error.
        """
        if isinstance(came, BaseException):
            came = write(self._run.results / name, encode(("error", came)))
        if came:
            remove(self._inbox / name)
            self._num_done += 1
            del self._num_kills[name]

    def _after_kill(self) -> None:
        """Have what was at work when a process was killed done again; what saw a second kill, one by one."""
        names, self._at_work = sorted(self._at_work.values()), {}
        self._num_kills.update(names)
        for name in names:
            if self._num_kills[name] >= _TRIES and not self._over():
                self._do_alone(name)

    def _do_alone(self, name: str) -> None:
        """Do a job with nothing beside it: one that is killed so, too, is the cause."""
        for _ in range(_TRIES_ALONE):
            try:
                with LocalExecutor(1) as executor:
                    future = executor.submit(self._do, self._inbox / name)
                    while not wait([future], _LOOK_SECONDS).done:
                        if self._over():
                            return
                        executor.look(_LOOK_SECONDS)
                    came = future.exception() or future.result()
            except WorkerKilled:
                continue
            if not isinstance(came, BrokenProcessPool):
                self._end(name, came)
                return
        self._end(name, WorkerKilled())

    def _over(self) -> bool:
        now = time.monotonic()
        if not self._is_over and now - self._looked > _LOOK_SECONDS:
            self._looked = now
            self._driver.is_lost()
            if self._driver.is_quiet or self._is_beside:
                refresh(self._term.folder / "terms")
                self._is_over = not is_open(self._term)
        return self._is_over or self._ended.is_set()


def is_open(term: Term) -> bool:
    """Whether it is the last one, and has not ended; True where that can't be seen just now."""
    latest = latest_term(term.folder)
    return latest is None or (latest.number == term.number and latest.outcome is None)


def _serve_all(folder: Path, num_workers: int, ended: Event) -> None:
    """Work in one run after the other, until this process is to end; beat for the process that started it."""
    parent = os.getppid()
    while not ended.is_set():
        term = latest_term(folder)
        if term is None or term.about.get("version") != __version__ or term.outcome is not None:
            ended.wait(_LONGEST_WAIT)
            continue
        with ExitStack() as stack:
            is_beside = term.about.get("pid") == parent and term.about.get("machine") == here()["machine"]
            if is_beside:
                stack.enter_context(Beat(term.beat, dict))
            Node(term, num_workers, ended, is_beside).work()


def main() -> None:
    """Serve until standard input is closed: whoever started this then is no more."""
    folder, num_workers = Path(sys.argv[1]), int(sys.argv[2]) or count_cores()
    for interrupt in INTERRUPTS:  # are for who started it
        signal.signal(interrupt, signal.SIG_IGN)
    ended = Event()

    def follow() -> None:
        sys.stdin.buffer.read()
        ended.set()
        time.sleep(_END_SECONDS)
        os._exit(1)

    Thread(target=follow, daemon=True).start()
    try:
        _serve_all(folder, num_workers, ended)
    except (PackError, OSError) as error:
        say(f"the process that does jobs ends: {error}")
    os._exit(0)


if __name__ == "__main__":
    main()
