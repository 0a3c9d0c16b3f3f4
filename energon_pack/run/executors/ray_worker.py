"""What a worker process of a Ray cluster runs: a job, and a watch that ends the process where it is stuck."""

import faulthandler
import os
import pickle
import threading
import time
import uuid
from dataclasses import dataclass
from functools import cache
from typing import Any

from ray.experimental.internal_kv import _internal_kv_put

from energon_pack.run.executors.admission import Terms, why_unfit
from energon_pack.run.executors.workers import Busy


@dataclass(frozen=True)
class Ticket:
    """What travels with every job of a run."""

    terms: Terms
    run: str  # its name: under it workers say that they are at work
    patience: float  # seconds without any work after which a worker counts as stuck
    beat: float  # seconds between two signs of life


def run_job(ticket: bytes, job: bytes) -> bytes | str:
    """Do a job, a pickled function and what it takes: its pickled result, or why this machine is unfit."""
    watch = _watch_of(ticket)
    if isinstance(watch, str):
        return watch
    function, argument = pickle.loads(job)
    watch.begin()
    try:
        return pickle.dumps(function(argument), pickle.HIGHEST_PROTOCOL)
    finally:
        watch.end()


@cache
def _watch_of(ticket: bytes) -> "_Watch | str":
    """Once a process: whether its machine is fit, and who watches it."""
    told: Ticket = pickle.loads(ticket)
    return why_unfit(told.terms) or _Watch(told)


class _Watch:
    """Looks after the thread that does the jobs. A process that is ended is a lost worker: its job is done again."""

    def __init__(self, ticket: Ticket):
        self._ticket = ticket
        self._at_work = threading.Event()
        self._number = 0  # of the job
        self._lock = threading.Lock()
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._io = f"/proc/self/task/{threading.get_native_id()}/io"
        threading.Thread(target=self._look, daemon=True).start()

    def begin(self) -> None:
        """A job begins: it may keep all other threads of Python from running from now on."""
        with self._lock:
            self._number += 1
            self._set_alarm()
            self._at_work.set()

    def end(self) -> None:
        with self._lock:
            self._at_work.clear()
            faulthandler.cancel_dump_traceback_later()

    def _set_alarm(self) -> None:
        """Have the process end where nobody sets the alarm again; the thread that waits for it needs no GIL."""
        faulthandler.dump_traceback_later(self._ticket.patience, exit=True)

    def _look(self) -> None:
        patience, seconds = self._ticket.patience, min(self._ticket.beat, self._ticket.patience / 2)
        while self._at_work.wait():
            number, busy, unsaid = self._number, Busy(self._work), 0.0
            while True:
                time.sleep(seconds)
                with self._lock:
                    if number != self._number or not self._at_work.is_set():
                        break
                    self._set_alarm()
                if busy.seconds_without_work(seconds) > patience:
                    faulthandler.dump_traceback()
                    os._exit(1)
                unsaid += seconds
                if unsaid >= self._ticket.beat:
                    unsaid = 0.0
                    _internal_kv_put(self._ticket.run.encode(), uuid.uuid4().bytes, overwrite=True)

    def _work(self) -> tuple[float, int]:
        """What the thread of the jobs has done, for `Busy`: Ray's own threads are never quite idle."""
        num_bytes = 0
        if os.path.exists(self._io):  # Linux
            with open(self._io) as file:
                said: dict[str, Any] = dict(line.split(": ") for line in file)
            num_bytes = sum(int(said[name]) for name in ("rchar", "wchar", "read_bytes"))
        return time.clock_gettime(self._clock), num_bytes
