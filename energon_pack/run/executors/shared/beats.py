"""Whether a process of another machine lives: it writes a file again and again, and others look whether it changes.

Times are those of the one who looks alone: clocks of machines differ, and so do those of their file systems.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from energon_pack.run.executors.shared.folder import read, remove, write

#: between two beats; one that misses `lost_after` of them is lost
BEAT_SECONDS = 2.0
_QUIET_SECONDS = 3 * BEAT_SECONDS


class Beat:
    """Writes a file every few seconds, as long as the `with` lasts.

    Args:
        describe: what it says beside.
    """

    def __init__(self, path: Path, describe: Callable[[], Mapping[str, Any]]):
        self._path, self._describe = path, describe
        self._ended = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._number = 0

    def __enter__(self) -> "Beat":
        self._write()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        remove(self._path)

    def _run(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            self._write()

    def _write(self) -> None:
        self._number += 1
        with suppress(OSError):  # a full disk, a server that is away: the next one may come through
            write(self._path, json.dumps({"beat": self._number, **self._describe()}).encode())


class Watched:
    """A file that should change.

    Args:
        path: of it.
        lost_after: seconds without a change after which whoever writes it is lost.
    """

    def __init__(self, path: Path, lost_after: float):
        self.path, self._lost_after = path, lost_after
        self._content: bytes | None = None
        self._changed = time.monotonic()
        #: whether it was seen to change
        self.lives = False
        #: whether it is gone, or has not changed for a while: time to look closer at who writes it
        self.is_quiet = False

    def is_lost(self) -> bool:
        """Whether it has not changed for too long; looks.

        NFS asks its server for a file that is opened, though not for a name that was not there, or for a folder.
        """
        content, now = read(self.path), time.monotonic()
        if content is not None and content != self._content:
            self.lives = self._content is not None
            self._content, self._changed = content, now
        self.is_quiet = content is None or now - self._changed > _QUIET_SECONDS
        return now - self._changed > self._lost_after


def here() -> dict[str, Any]:
    """This process, so that it can be told from all others on all machines."""
    return {"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid(), "born": _born(os.getpid())}


def is_dead(process: Mapping[str, Any]) -> bool:
    """Whether a process that `here` told of was one of this machine, and is no more; False: that can't be told."""
    return process.get("machine") == _machine() != "" and _born(int(process.get("pid", 0))) != process.get("born")


def _machine() -> str:
    """This start of this machine, and which numbers its processes have: containers have their own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return ""


def _born(pid: int) -> int | None:
    """When a process began, in ticks since the machine did: the time of day may be set meanwhile."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state == "Z" else int(rest[18])
    except OSError:  # there is none, or this is not Linux
        return None
