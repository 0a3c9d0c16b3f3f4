"""Code that a worker process of a Ray cluster runs: a job, and a watch that ends the process if it is stuck."""

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

from energon_pack.run.bounds import hold_here
from energon_pack.run.executors.admission import Terms, why_unfit
from energon_pack.run.executors.workers import Busy


@dataclass(frozen=True)
class Ticket:
    """Facts about the run that travel with each of its jobs."""

    terms: Terms
    run: str  # the name under which workers signal that they are at work
    patience: float  # seconds without any work after which a worker counts as stuck
    beat: float  # seconds between two signs of life


def run_job(ticket: bytes, job: bytes) -> bytes | str:
    """Run a pickled function with its argument; return the pickled result, or why this machine is unfit, as text."""
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
    """Check once in a process whether its machine is fit; return the watch, or why it is unfit."""
    hold_here()
    told: Ticket = pickle.loads(ticket)
    return why_unfit(told.terms) or _Watch(told)


class _Watch:
    """Watches the thread that does the jobs. Ending the process loses a worker, and its job is done again."""

    def __init__(self, ticket: Ticket):
        self._ticket = ticket
        self._at_work = threading.Event()
        self._number = 0  # of the present job
        self._lock = threading.Lock()
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._io = f"/proc/self/task/{threading.get_native_id()}/io"
        threading.Thread(target=self._look, daemon=True).start()

    def begin(self) -> None:
        """Start to watch a job, which may keep all other threads of Python from running."""
        with self._lock:
            self._number += 1
            self._set_alarm()
            self._at_work.set()

    def end(self) -> None:
        with self._lock:
            self._at_work.clear()
            faulthandler.cancel_dump_traceback_later()

    def _set_alarm(self) -> None:
        """Set an alarm that ends the process unless it is set again; the thread that waits for it needs no GIL."""
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
        """Measure the work of the thread that does jobs, for `Busy`: Ray's own threads are never quite idle."""
        num_bytes = 0
        if os.path.exists(self._io):  # only Linux has this file
            with open(self._io) as file:
                said: dict[str, Any] = dict(line.split(": ") for line in file)
            num_bytes = sum(int(said[name]) for name in ("rchar", "wchar", "read_bytes"))
        return time.clock_gettime(self._clock), num_bytes
