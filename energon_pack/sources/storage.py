"""List the files of a source, and read their size, version and bytes, on this machine or on object stores.

    path ──expand, walk──► paths ──state_of──► size and version
                              └───open_file──► File: the same, and its bytes; a descriptor if it is on this machine

Only this module distinguishes storages: files of this machine, objects of stores by their addresses, and values that
are read whole. The client of stores is imported where a path is an address.
"""

import glob
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple, TypeVar

from energon_pack.errors import PackError, similar_path_hint
from energon_pack.run.address import is_address, join_address, parent, tidy_address

Job = TypeVar("Job")
Result = TypeVar("Result")


class FileState(NamedTuple):
    """Size in bytes and version of a file; if either differs, the file has changed."""

    size: int
    version: str  # of a local file its mtime in ns, of an object what its store says, such as an etag


class File(ABC):
    """A file that is open for reading: on this machine, in memory, or on an object store."""

    #: its descriptor, if it is a file of this machine; None: it has none
    fd: int | None = None

    def __init__(self, state: FileState):
        self.size, self.version = state

    @abstractmethod
    def read(self, offset: int, size: int) -> bytes:
        """Read the `size` bytes from `offset` on; fewer if the file ends before that."""

    def read_into(self, offset: int, view: memoryview) -> int:
        """Read bytes at `offset` into `view`; return their number, which is 0 only at the end."""
        data = self.read(offset, len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the file."""
        return

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ReadCounter:
    """Counts the bytes that this process read."""

    num_bytes = 0


def call_counting_read_bytes(function: Callable[[Job], Result], job: Job) -> tuple[Result, int]:
    """Call a function with a job; return its result, and how many bytes of files this process read meanwhile."""
    before = _ReadCounter.num_bytes
    return function(job), _ReadCounter.num_bytes - before


class LocalFile(File):
    """A file of this machine, open by its descriptor `fd`."""

    fd: int

    def __init__(self, fd: int, state: FileState):
        super().__init__(state)
        self.fd = fd

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self.fd, size, offset)
        _ReadCounter.num_bytes += len(data)
        return data

    def read_into(self, offset: int, view: memoryview) -> int:
        num_read = os.preadv(self.fd, [view], offset)
        _ReadCounter.num_bytes += num_read
        return num_read

    def close(self) -> None:
        os.close(self.fd)


class InMemoryFile(File):
    """A file, or a value inside a file, whose bytes are all in memory."""

    def __init__(self, data: bytes, version: str):
        super().__init__(FileState(len(data), version))
        self._data = data
        _ReadCounter.num_bytes += len(data)

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]


class ObjectStoreFile(File):
    """An object on a store; its bytes are requested in blocks, or in advance by `read_ahead`."""

    def __init__(self, address: str, state: FileState):
        super().__init__(state)
        from energon_pack.sources.store_objects import BlockwiseReader

        self.blocks = BlockwiseReader(address, *state)

    def read(self, offset: int, size: int) -> bytes:
        data = self.blocks.read(offset, size)
        _ReadCounter.num_bytes += len(data)
        return data


def read_ahead(ranges_by_file: Sequence[tuple[File, Sequence[tuple[int, int]]]]) -> None:
    """Request (offset, size) ranges of files on object stores before they are read; local files need no request."""
    if objects := [(file.blocks, ranges) for file, ranges in ranges_by_file if isinstance(file, ObjectStoreFile)]:
        from energon_pack.sources import store_objects

        store_objects.read_ahead(objects)


def open_file(path: str | os.PathLike[str], expected: FileState | None = None) -> File:
    """Open a file for reading.

    `expected`: the state of an object on a store, if it is known; None: the store is asked for it.

    Raises:
        FileNotFoundError: there is nothing, or no regular file: a folder, a pipe, a device.
        OSError: it can't be read.
        StoreError: an object can't be read.
    """
    if is_address(path):
        if expected is None:
            from energon_pack.run import stores

            expected = FileState(*stores.find(str(path)))
        return ObjectStoreFile(str(path), expected)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for its writer
    state = _state(os.fstat(fd))
    if state is None:
        os.close(fd)
        raise FileNotFoundError(0, "not a regular file", str(path))
    return LocalFile(fd, state)


def state_of(path: str) -> FileState | None:
    """Return size and version of a file as it is now; None: it is no regular file."""
    if is_address(path):
        from energon_pack.sources import store_objects

        return FileState(*store_objects.state_of(path))
    return _state(os.stat(path))


def _state(status: os.stat_result) -> FileState | None:
    return FileState(status.st_size, str(status.st_mtime_ns)) if stat.S_ISREG(status.st_mode) else None


# ----------------------------------------------------------------------------------------------- which files there are


def read_whole(path: str) -> bytes | None:
    """Return all bytes of a file; None: there is no such file."""
    try:
        with open_file(path) as file:
            return file.read(0, file.size)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_file(path: str) -> bool:
    """Tell whether a path or address is a regular file."""
    try:
        return state_of(path) is not None
    except OSError:
        return False


def absolute(path: str) -> str:
    """Return the absolute path, as `os.path.abspath`; an address is returned without a slash at its end."""
    return tidy_address(path) if is_address(path) else os.path.abspath(path)


def path_in(folder: str, name: str) -> str:
    """Join a folder and a name, as `os.path.join`; each may be an address."""
    return join_address(folder, name) if is_address(folder) or is_address(name) else os.path.join(folder, name)


def folder_of(path: str) -> str:
    """Return the folder that a path or address lies in, as `os.path.dirname`; a bucket is its own folder."""
    return parent(path) if is_address(path) else os.path.dirname(path)


def real_path(path: str) -> str:
    """Resolve links in a file's path, as `os.path.realpath`; links of a folder are resolved once for all its files."""
    if is_address(path):
        return path
    if os.path.islink(path):
        return os.path.realpath(path)
    folder, name = os.path.split(path)
    return os.path.join(_real_folder(folder, "" if os.path.isabs(folder) else os.getcwd()), name)


@lru_cache(maxsize=1024)
def _real_folder(folder: str, working: str) -> str:
    return os.path.realpath(folder)


class ResolvedEntry(NamedTuple):
    """What an entry of `source.path` stands for; a glob may have no folders and no files."""

    root: str  # the folder that names of samples are relative to
    folders: list[str]
    files: list[str]


def resolve_source_entry(entry: str) -> ResolvedEntry:
    """Resolve an entry of `source.path`: a folder, a file, a glob, or an address; PackError: it does not exist."""
    if is_address(entry):
        from energon_pack.sources import store_objects

        return ResolvedEntry(*store_objects.resolve_address(entry))
    if os.path.isdir(entry):
        return ResolvedEntry(entry, [entry], [])
    if os.path.isfile(entry):
        return ResolvedEntry(os.path.dirname(entry) or ".", [], [entry])
    if not glob.has_magic(entry):
        raise PackError(f"source.path={entry}: no such folder or file{similar_path_hint(entry)}")
    fixed = re.split(r"[*?\[]", entry, maxsplit=1)[0]
    matches = sorted(glob.glob(entry, recursive=True))
    files = [match for match in matches if os.path.isfile(match)]
    return ResolvedEntry(os.path.dirname(fixed) or ".", [match for match in matches if os.path.isdir(match)], files)


def walk(folder: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the paths of files in a folder and its subfolders whose names match, without hidden ones (`.name`)."""
    if is_address(folder):
        from energon_pack.sources import store_objects

        return store_objects.walk(folder, pattern)
    return [
        os.path.join(here, name)
        for here, files, first in walk_subfolders(folder)
        for name in files
        if first is None and not name.startswith(".") and pattern.search(name)
    ]


def walk_subfolders(folder: str) -> Iterator[tuple[str, list[str], str | None]]:
    """Yield each subfolder with its files; a link to one that came before, with the first path of that one."""
    seen: dict[tuple[int, int], str] = {}
    for here, folders, files in os.walk(folder, followlinks=True, onerror=_raise_error):
        status = os.stat(here)
        first = seen.setdefault((status.st_dev, status.st_ino), here)
        if first is not here:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield here, files, None if first is here else first


def names_in(folder: str) -> list[str]:
    """Return the names in a folder; names of subfolders end with a slash."""
    if is_address(folder):
        from energon_pack.run import stores

        return stores.names(folder)
    with os.scandir(folder or ".") as entries:
        return [f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries]


def list_folder(folder: str, below: Collection[str] = ()) -> dict[str, FileState | None]:
    """List a folder: name → size and version of an object; None for a local file and for a subfolder (`name/`).

    `below`: the names of subfolders whose files are listed in place of the subfolder.
    """
    if is_address(folder):
        from energon_pack.sources import store_objects

        return {
            name: FileState(*one) if one else None for name, one in store_objects.list_folder(folder, below).items()
        }
    states: dict[str, FileState | None] = {}
    for inner in ("", *below):
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(os.path.join(folder, inner)) as entries:
            for entry in entries:
                name = f"{inner}/{entry.name}" if inner else entry.name
                if not entry.is_dir():
                    states[name] = None
                elif name not in below:
                    states[f"{name}/"] = None
    return states


def _raise_error(error: OSError) -> None:
    """Raise the error: an unreadable folder must not pass for an empty one."""
    raise error
