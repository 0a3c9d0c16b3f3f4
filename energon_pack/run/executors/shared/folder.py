"""The folder through which the machines of a run speak, and how files in it are written, read and listed.

It lies on a file system that all of them see, of any kind: nothing is locked, nothing is renamed to another folder,
and a file is whole or not there.

    <folder>/terms/000001.json      who drives the run: whoever made the file (nobody can make it twice)
             terms/000001.beat      that it lives: another content every few seconds
             terms/000001.end       what came of it
             submitted              the last array of Slurm's tasks that are to come
             publishing             what a driver is about to publish, for one that takes over
             runs/<term>-<id>/nodes/<node>.json         a machine that works: other contents as long as it lives
                       inbox/<node>/<number>     jobs that it is to do
                       results/<number>          what came of them
                       terms.json                what a machine needs that works
                       status.json               how far it is
"""

import contextlib
import errno
import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_pack.run.files import write_whole

_TEMPORARY = ".tmp"  # as `write_whole` names what is not whole yet
#: of a file that was replaced, or of a folder that was removed, by another machine
_GONE = {errno.ENOENT, errno.ESTALE, errno.ENOTDIR}


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @property
    def nodes(self) -> Path:
        return self.path / "nodes"

    @property
    def results(self) -> Path:
        return self.path / "results"

    @property
    def terms(self) -> Path:
        return self.path / "terms.json"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    def inbox(self, node: str) -> Path:
        return self.path / "inbox" / node

    def make(self) -> None:
        for folder in (self.nodes, self.results, self.inbox("")):
            folder.mkdir(parents=True, exist_ok=True)


def read(path: Path) -> bytes | None:
    """The bytes of a file; None: there is none, or none any more."""
    try:
        return path.read_bytes()
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise


def read_object(path: Path) -> dict[str, Any] | None:
    """What a JSON file says; None: it is not there, or being written."""
    try:
        value = json.loads(read(path) or b"null")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def write(path: Path, data: bytes) -> bool:
    """Write a file whole; False: its folder is no more."""
    try:
        write_whole(path, data, sync=False)
    except OSError as error:
        if error.errno in _GONE:
            return False
        raise
    return True


def claim(path: Path, data: bytes) -> bool:
    """Make a file; False: it is there, whoever made it. Of all machines that try, one makes it."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
    return True


def remove(path: Path) -> None:
    """Remove a file, unless another machine was faster."""
    try:
        path.unlink()
    except OSError as error:
        if error.errno not in _GONE:
            raise


def names_in(folder: Path) -> list[str]:
    """Names of the whole files of a folder, in order; none where it is no more."""
    try:
        # NFS keeps what is removed while somebody reads it, under a name with a dot.
        return sorted(name for name in os.listdir(folder) if not name.endswith(_TEMPORARY) and name[0] != ".")
    except OSError as error:
        if error.errno in _GONE:
            return []
        raise


def refresh(folder: Path) -> None:
    """Have this machine forget what it knows of a folder: NFS asks again half a minute later, or after a change."""
    nudge = folder / f"{uuid.uuid4().hex}{_TEMPORARY}"
    with contextlib.suppress(OSError):
        nudge.touch()
        nudge.unlink()
