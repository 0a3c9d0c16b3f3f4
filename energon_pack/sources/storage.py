"""Lists the files of a source, and reads their size, version and bytes, on this machine or on object stores.

    path ──expand, walk──► paths ──state_of──► size and version
                              └───open_file──► File: the same, and its bytes; a descriptor where the kernel can copy

Only this module knows the storage: files of this machine, objects of stores by their addresses, and values that were
read whole.
"""

import glob
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple, TypeVar

from energon_pack.errors import PackError
from energon_pack.run import stores
from energon_pack.run.stores import is_address
from energon_pack.sources import blockwise, stored

Job = TypeVar("Job")
Result = TypeVar("Result")


_SHORT = 4096  # bytes; of longer reads nothing is kept


class State(NamedTuple):
    """Size and version of a file, which show whether it changed."""

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
    """Counts the bytes that this process read itself, without those that the kernel copied."""

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
        self._last: tuple[tuple[int, bytes], ...] = ()  # what was read last: both ends of a medium are looked at twice

    def read(self, offset: int, size: int) -> bytes:
        for start, data in self._last:
            if start <= offset and offset + size <= start + len(data):
                return data[offset - start : offset - start + size]
        data = os.pread(self.fd, size, offset)
        _Read.num_bytes += len(data)
        if size <= _SHORT:
            self._last = (*self._last[-1:], (offset, data))
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


class StoredFile(File):
    """An object of a store."""

    def __init__(self, address: str, state: State):
        super().__init__(state)
        self.blocks = blockwise.Blockwise(address, *state)

    def read(self, offset: int, size: int) -> bytes:
        data = self.blocks.read(offset, size)
        _Read.num_bytes += len(data)
        return data


def read_ahead(wanted: Sequence[tuple[File, Sequence[tuple[int, int]]]]) -> None:
    """Tell files what will be read next, all at once: objects are read several at a time.

    Args:
        wanted: of each file its ranges, by offset and size.
    """
    blockwise.read_ahead([(file.blocks, ranges) for file, ranges in wanted if isinstance(file, StoredFile)])


def open_file(path: str | os.PathLike[str], expected: State | None = None) -> File:
    """A file for reading.

    Args:
        expected: of an object, which is then not asked for its state: reading it notices that it is another.

    Raises:
        FileNotFoundError: there is none, or something from which reading might never end.
        OSError: it can't be read.
        StoreError: the same, of an object.
    """
    if is_address(path):
        return StoredFile(str(path), expected or State(*stores.find(str(path))))
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
    return State(*stored.state_of(path)) if is_address(path) else _state(os.stat(path))


def _state(status: os.stat_result) -> State | None:
    return State(status.st_size, str(status.st_mtime_ns)) if stat.S_ISREG(status.st_mode) else None


# ----------------------------------------------------------------------------------------------- which files there are


def read_whole(path: str) -> bytes | None:
    """All of a file; None where there is none.

    Raises:
        OSError: it can't be read.
    """
    try:
        with open_file(path) as file:
            return file.read(0, file.size)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_file(path: str) -> bool:
    """Whether a regular file is there."""
    try:
        return state_of(path) is not None
    except OSError:
        return False


def absolute(path: str) -> str:
    """As `os.path.abspath`; an address is one."""
    return stores.tidy(path) if is_address(path) else os.path.abspath(path)


def path_in(folder: str, name: str) -> str:
    """As `os.path.join`, of addresses too."""
    return stores.joined(folder, name) if is_address(folder) or is_address(name) else os.path.join(folder, name)


def folder_of(path: str) -> str:
    """As `os.path.dirname`; of a bucket, itself."""
    return stores.parent(path) if is_address(path) else os.path.dirname(path)


def real_path(path: str) -> str:
    """As `os.path.realpath` of a file, asking once about its folder: of a hundred thousand files that is soon felt."""
    if is_address(path):
        return path
    if os.path.islink(path):
        return os.path.realpath(path)
    folder, name = os.path.split(path)
    return os.path.join(_real_folder(folder, "" if os.path.isabs(folder) else os.getcwd()), name)


@lru_cache(maxsize=1024)
def _real_folder(folder: str, working: str) -> str:
    return os.path.realpath(folder)


def expand(entry: str) -> tuple[str, list[str], list[str]]:
    """What an entry's names are relative to, and the folders and files it stands for."""
    if is_address(entry):
        return stored.expand(entry)
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
    if is_address(folder):
        return stored.walk(folder, pattern)
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


def names_in(folder: str) -> list[str]:
    """Names of what is in a folder; of folders with a slash at their end."""
    if is_address(folder):
        return stores.names(folder)
    with os.scandir(folder or ".") as entries:
        return [f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries]


def files_in(folder: str, below: Collection[str] = ()) -> dict[str, State | None]:
    """What is in a folder, by its name in it: of an object its state as it was listed; of a file None, it is not asked.

    Args:
        below: folders in it whose files are wanted, too. All others end in a slash, and are not looked into.
    """
    if is_address(folder):
        return {name: State(*found) if found else None for name, found in stored.files_in(folder, below).items()}
    found: dict[str, State | None] = {}
    for inner in ("", *below):
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(os.path.join(folder, inner)) as entries:
            for entry in entries:
                name = f"{inner}/{entry.name}" if inner else entry.name
                if not entry.is_dir():
                    found[name] = None
                elif name not in below:
                    found[f"{name}/"] = None
    return found


def _raise(error: OSError) -> None:
    """A folder that can't be read is no empty folder."""
    raise error
