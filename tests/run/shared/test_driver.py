"""The executor of many machines, in small: jobs are dealt to machines, and what comes of them is taken in, in order."""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from energon_pack import __version__
from energon_pack.errors import PackError, SamplesLost, check_buffer_size, one_line, short
from energon_pack.run.executors.local import WorkerKilled
from energon_pack.run.executors.shared import beats, driver, folder, node
from energon_pack.run.executors.shared.driver import Deposed, SharedExecutor
from energon_pack.run.executors.shared.folder import names_in, write
from energon_pack.run.executors.shared.node import Node
from energon_pack.run.executors.shared.terms import Term, claim_term
from energon_pack.run.executors.shared.wire import decode, encode
from energon_pack.run.files import digest_of, write_whole
from energon_pack.sources.storage import counted

ABOUT = {"settings": "s", "version": __version__}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (beats, "BEAT_SECONDS", 0.05),
        (beats, "_QUIET_SECONDS", 0.2),
        (driver, "_LOOK_SECONDS", 0.05),
        (driver, "_LONGEST_WAIT", 0.02),
        (driver, "_REFRESH_SECONDS", 0.1),
        (node, "_LOOK_SECONDS", 0.05),
        (node, "_LONGEST_WAIT", 0.02),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def term(tmp_path: Path) -> Term:
    term = claim_term(tmp_path, None, ABOUT)
    assert term is not None
    return term


class Machine:
    """A machine of the test's own: it registers, and its jobs are done here, when the test says so."""

    def __init__(self, term: Term, name: str, num_workers: int = 1, version: str = __version__):
        self.run, self.name, self.num = term.run, name, 0
        self.about = {"num_workers": num_workers, "version": version}
        self.run.inbox(name).mkdir(parents=True)
        self.beat()

    def beat(self) -> None:
        self.num += 1
        write(self.run.nodes / f"{self.name}.json", __import__("json").dumps({**self.about, "n": self.num}).encode())

    @property
    def jobs(self) -> list[str]:
        return names_in(self.run.inbox(self.name))

    def do(self, name: str) -> None:
        node.do(self.run.inbox(self.name) / name, self.run.results)
        (self.run.inbox(self.name) / name).unlink()


class Machines(Thread):
    """Beats for machines, and does their jobs, as long as the `with` lasts."""

    def __init__(self, *machines: Machine, order: int = 1):
        super().__init__(daemon=True)
        self.machines, self.order, self.ended, self.done = [*machines], order, Event(), 0

    def run(self) -> None:
        while not self.ended.wait(0.01):
            for machine in list(self.machines):
                machine.beat()
                for name in machine.jobs[:: self.order]:
                    machine.do(name)
                    self.done += 1

    def __enter__(self) -> "Machines":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()


def _executor(term: Term, lost_after: float = 30.0) -> SharedExecutor:
    return SharedExecutor(term, lost_after, lambda: None)
