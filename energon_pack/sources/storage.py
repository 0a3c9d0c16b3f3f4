"""Where the files of a source lie: which there are, their size and version, and their bytes by place.

    path ──expand, walk──► paths ──state_of──► size and version
                              └───open_file──► File: the same, and its bytes; a descriptor where the kernel can copy

All that is known of the storage stands here: today the files of this machine, and values that were read whole.
"""

import glob
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeVar

from energon_pack.errors import PackError

Job = TypeVar("Job")
Result = TypeVar("Result")


class State(NamedTuple):
    """What tells whether a file is still the same."""

    size: int
    version: str  # another once it was written to: today the time of that


class File(ABC):
    """An open file of a source."""

    #: a descriptor from which the kernel can copy its bytes; None: it has none
    fd: int | None = None

    def __init__(self, state: State):
        self.size, self.version = state

    @abstractmethod
    def read(self, offset: int, size: int) -> bytes:
        """The `size` bytes from `offset` on; fewer where the end is before that."""

    def read_into(self, offset: int, view: memoryview) -> int:
        """Read into `view` what is at `offset`; how many bytes, 0 at the end alone."""
        data = self.read(offset, len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Nothing is read from it any more."""
        return

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Read:
    """What this process has read through files, and not had copied by the kernel."""

    num_bytes = 0


def counted(function: Callable[[Job], Result], job: Job) -> tuple[Result, int]:
    """The result of a job, and how many bytes were read for it."""
    before = _Read.num_bytes
    return function(job), _Read.num_bytes - before


class LocalFile(File):
    """An open file of this machine."""

    fd: int

    def __init__(self, fd: int, state: State):
        super().__init__(state)
        self.fd = fd

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self.fd, size, offset)
        _Read.num_bytes += len(data)
        return data

    def read_into(self, offset: int, view: memoryview) -> int:
        num_read = os.preadv(self.fd, [view], offset)
        _Read.num_bytes += num_read
        return num_read

    def close(self) -> None:
        os.close(self.fd)


class InMemory(File):
    """A file that was read whole."""

    def __init__(self, data: bytes, version: str):
        super().__init__(State(len(data), version))
        self._data = data
        _Read.num_bytes += len(data)

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]


def open_file(path: str | os.PathLike[str]) -> File:
    """A file for reading.

    Raises:
        FileNotFoundError: there is none, or something from which reading might never end.
        OSError: it can't be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for its writer
    state = _state(os.fstat(fd))
    if state is None:
        os.close(fd)
        raise FileNotFoundError(0, "not a regular file", str(path))
    return LocalFile(fd, state)


def state_of(path: str) -> State | None:
    """Size and version of a file as it is now; None where something is there that is no regular file.

    Raises:
        OSError: nothing is there, or it can't be asked.
    """
    return _state(os.stat(path))


def _state(status: os.stat_result) -> State | None:
    return State(status.st_size, str(status.st_mtime_ns)) if stat.S_ISREG(status.st_mode) else None


# ----------------------------------------------------------------------------------------------- which files there are


def real_path(path: str) -> str:
    """As `os.path.realpath` of a file, asking once about its folder: of a hundred thousand files that is soon felt."""
    if os.path.islink(path):
        return os.path.realpath(path)
    folder, name = os.path.split(path)
    return os.path.join(_real_folder(folder, "" if os.path.isabs(folder) else os.getcwd()), name)


@lru_cache(maxsize=1024)
def _real_folder(folder: str, working: str) -> str:
    return os.path.realpath(folder)


def expand(entry: str) -> tuple[str, list[str], list[str]]:
    """What an entry's names are relative to, and the folders and files it stands for."""
    if os.path.isdir(entry):
        return entry, [entry], []
    if os.path.isfile(entry):
        return os.path.dirname(entry) or ".", [], [entry]
    if not glob.has_magic(entry):
        raise PackError(f"source.path={entry}: no such folder or file")
    fixed = re.split(r"[*?\[]", entry, maxsplit=1)[0]
    matches = sorted(glob.glob(entry, recursive=True))
    files = [match for match in matches if os.path.isfile(match)]
    return os.path.dirname(fixed) or ".", [match for match in matches if os.path.isdir(match)], files


def walk(folder: str, pattern: re.Pattern[str]) -> list[str]:
    """Files of a folder, and of the folders in it, with names like that."""
    paths = []
    seen = set()
    for here, folders, files in os.walk(folder, followlinks=True, onerror=_raise):
        status = os.stat(here)
        if (status.st_dev, status.st_ino) in seen:  # a link back up
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths += [os.path.join(here, name) for name in files if not name.startswith(".") and pattern.search(name)]
    return paths


def _raise(error: OSError) -> None:
    """A folder that can't be read is no empty folder."""
    raise error
