"""Several "nodes" on this machine: each is the command that a task of a cluster is, in a session of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil
import pytest

from energon_pack.run.executors.shared import beats, driver, node, together
from energon_pack.run.executors.shared.folder import read_object
from energon_pack.run.executors.shared.terms import latest_term
from support.running import ROOT
from support.samples import chat, write_tar

LOST_AFTER = 5.0


def hurry(patch: pytest.MonkeyPatch) -> None:
    """Have the parts of `executor=slurm` in this process look at each other more often."""
    for module, name, value in (
        (beats, "BEAT_SECONDS", 0.05),
        (beats, "_QUIET_SECONDS", 0.2),
        (driver, "_LOOK_SECONDS", 0.05),
        (driver, "_LONGEST_WAIT", 0.02),
        (driver, "_REFRESH_SECONDS", 0.1),
        (node, "_LOOK_SECONDS", 0.05),
        (node, "_LONGEST_WAIT", 0.02),
        (together, "_FOLLOW_SECONDS", 0.02),
    ):
        patch.setattr(module, name, value)


def write_texts(folder: Path, num_tars: int, num_samples: int, num_words: int) -> Path:
    """A source of texts alone: large enough that measuring takes a while."""
    random = Random(0)
    words = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(2, 9))) for _ in range(5000)]
    for number in range(num_tars):
        texts = (" ".join(random.choices(words, k=num_words)) for _ in range(num_samples))
        members = [(f"{i:05d}.json", chat("what?", text)) for i, text in enumerate(texts)]
        write_tar(folder / f"{number:03d}.tar", members)
    return folder


class Task:
    """One task: a process that drives or follows, the one beside it, and their workers."""

    def __init__(self, folder: Path, arguments: Sequence[str]):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._arguments = folder, arguments
        self.num_started = 0
        self.start()

    def start(self) -> None:
        self.num_started += 1
        with open(self._folder / f"{self.num_started}.log", "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "energon_pack", *self._arguments],
                cwd=self._folder,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def node(self) -> psutil.Process | None:
        """The process beside that has jobs done."""
        return next(iter(_children(self.process.pid, "shared.node")), None)

    @property
    def worker(self) -> psutil.Process | None:
        """One of those that do jobs."""
        node = self.node
        return None if node is None else next(iter(_children(node.pid, "spawn_main")), None)

    @property
    def beside(self) -> psutil.Process | None:
        """The process that does single jobs of one that drives, if it has begun any."""
        return next(iter(_children(self.process.pid, "spawn_main")), None)

    def signal(self, number: int) -> None:
        """To all processes of the task, as a scheduler or a frozen machine has it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()

    @property
    def said(self) -> str:
        return "".join(path.read_text() for path in sorted(self._folder.glob("*.log")))


def _children(pid: int, word: str) -> list[psutil.Process]:
    """Those whose command has a word; any may end meanwhile."""
    found = []
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children():
            with suppress(psutil.Error):
                if word in " ".join(child.cmdline()):
                    found.append(child)
    return found


class Nodes:
    """Four tasks of one run.

    Args:
        folder: their own folders lie there; the dataset, its cache and their meeting below `shared`.
        launch: None: nothing says that they belong together.
    """

    def __init__(self, folder: Path, arguments: Sequence[str], launch: str | None = "one", num: int = 4):
        self.shared = folder / "shared"
        own = (
            "executor=slurm", "executor.num_workers=1", f"executor.lost_after={LOST_AFTER}",
            f"output.dir={self.shared}", *([f"executor.launch={launch}"] if launch else []),
        )  # fmt: skip
        self.tasks = [Task(folder / f"node{number}", (*arguments, *own)) for number in range(num)]

    @property
    def meeting(self) -> Path | None:
        return next(iter((self.shared / ".cache" / "meetings").glob("packed-*")), None)

    @property
    def driver(self) -> Task | None:
        """The task that drives."""
        term = latest_term(self.meeting) if self.meeting else None
        pid = term.about.get("pid") if term else None
        return next((task for task in self.tasks if task.process.pid == pid), None)

    @property
    def line(self) -> str:
        """How far the run is."""
        term = latest_term(self.meeting) if self.meeting else None
        return str((read_object(term.run.status) or {}).get("line", "")) if term else ""

    @property
    def are_at_work(self) -> bool:
        return any(task.is_alive for task in self.tasks)

    def wait(self, seconds: float) -> None:
        """Wait for the end of all tasks.

        Raises:
            TimeoutError: one has not come to it.
        """
        end = time.monotonic() + seconds
        while self.are_at_work:
            if time.monotonic() > end:
                raise TimeoutError("\n".join(task.said[-2000:] for task in self.tasks))
            time.sleep(0.1)

    @property
    def left(self) -> list[str]:
        """Processes that work for these tasks still."""
        groups = {task.process.pid for task in self.tasks}
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if os.getpgid(process.pid) in groups and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline()))
        return found

    def __enter__(self) -> "Nodes":
        return self

    def __exit__(self, *_: object) -> None:
        for task in self.tasks:
            task.end()
