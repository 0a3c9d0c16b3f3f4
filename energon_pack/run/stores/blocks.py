"""What was read of objects, kept for a while so that nothing is read twice: in memory, and on a disk of this machine.

Packing looks at a source three times: at its headers, at texts and media, and at what it copies. Objects are read in
blocks, several in one request where they are read in order. On disk they lie in the folder of temporary files
(`TMPDIR`), a file each, up to `_MOST_BLOCKS` and half of what is free. Where that is full, what nobody used for an hour
goes; else nothing more is kept, and is read again when it is needed: a source that is larger would throw out each block
before it comes to be used.
"""

import hashlib
import os
import shutil
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from energon_pack.run.files import own_temporary

BLOCK = 1 << 20
_IN_MEMORY = 48  # blocks of a process
_MOST_BLOCKS = 16 << 10  # on the disk of a machine
_LOOK_EVERY = 128  # blocks that are kept: then the folder is looked at again
_OLD = 3600.0  # seconds


def key_of(address: str, version: str) -> str:
    """What the blocks of an object are called."""
    return hashlib.sha256(f"{address}\0{version}".encode()).hexdigest()[:32]


class Blocks:
    """The blocks that this process keeps, and those of all processes of the user on this machine."""

    def __init__(self, most: int = _MOST_BLOCKS) -> None:
        self._memory: OrderedDict[tuple[str, int], memoryview] = OrderedDict()
        self._most = most
        self._folder: Path | None = None
        self._room = 0  # blocks to keep before the folder is looked at again; below 0: it is full

    def read(self, key: str, number: int, start: int, end: int) -> bytes | None:
        """Bytes of a block; None: it is not here."""
        data = self._memory.get((key, number))
        if data is not None:
            self._memory.move_to_end((key, number))
            return bytes(data[start:end])
        try:
            fd = os.open(self._path(key, number), os.O_RDONLY)
        except OSError:
            return None
        try:
            return os.pread(fd, end - start, start)
        finally:
            os.close(fd)

    def has(self, key: str, number: int) -> bool:
        """Whether a block need not be read from the store."""
        return (key, number) in self._memory or os.path.exists(self._path(key, number))

    def keep(self, key: str, number: int, data: memoryview) -> None:
        """Keep a block: in memory, and on disk where there is room."""
        self._memory[key, number] = data
        while len(self._memory) > _IN_MEMORY:
            self._memory.popitem(last=False)
        if self._room == 0:
            self._look()
        if self._room < 0:
            self._room += 1
            return
        self._room -= 1
        path = self._path(key, number)
        temporary = f"{path}.{os.getpid()}"
        try:
            with open(temporary, "wb", buffering=0) as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError:  # it is full: what is not kept is read again
            Path(temporary).unlink(missing_ok=True)
            self._room = -_LOOK_EVERY

    @property
    def folder(self) -> Path:
        """Where blocks lie: the user's own, whoever else writes beside it."""
        if self._folder is None:
            self._folder = own_temporary("blocks")
        return self._folder

    def _path(self, key: str, number: int) -> str:
        return f"{self.folder}/{key}-{number}"

    def _look(self) -> None:
        """How many more may lie here; where there is no room, those go that were not used for long."""
        kept = list(os.scandir(self.folder))
        free = shutil.disk_usage(self.folder).free // (2 * BLOCK)
        room = min(self._most - len(kept), free)
        if room < _LOOK_EVERY:
            for entry in kept:
                with suppress(FileNotFoundError):  # another process was faster
                    if time.time() - max(entry.stat().st_mtime, entry.stat().st_atime) > _OLD:
                        os.unlink(entry)
                        room += 1
        self._room = min(room, _LOOK_EVERY) if room > 0 else -_LOOK_EVERY


BLOCKS = Blocks()
