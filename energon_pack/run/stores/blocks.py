"""Cache blocks read from objects, in memory and on a disk of this machine, so that nothing is read twice.

Packing reads a source three times: for headers, for texts and media, and to copy. Objects are read in blocks; a
sequential read gets several in one request. On disk, each block is a file in the temporary folder (`TMPDIR`); together
they take at most `_MAX_DISK_BLOCKS` and half of the free space. When that is full, blocks unused for an hour are
removed. If there are none, no new block is kept, and it is read again when needed: if a source is larger than the
cache, replacing blocks would remove each one before its second use.
"""

import hashlib
import os
import shutil
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from energon_pack.run.files import user_temporary_folder

BLOCK_BYTES = 1 << 20
_MAX_MEMORY_BLOCKS = 48  # blocks that a process keeps in memory
_MAX_DISK_BLOCKS = 16 << 10  # on a machine's disk
_CHECK_EVERY_BLOCKS = 128  # after so many kept blocks, the folder's size is checked again
_UNUSED_SECONDS = 3600.0  # seconds without use after which a block may be removed


def blocks_key(address: str, version: str) -> str:
    """Return the name for the blocks of an object."""
    return hashlib.sha256(f"{address}\0{version}".encode()).hexdigest()[:32]


class BlockCache:
    """Blocks in this process's memory, and on disk for all processes of this user on this machine."""

    def __init__(self, most: int = _MAX_DISK_BLOCKS) -> None:
        self._memory: OrderedDict[tuple[str, int], memoryview] = OrderedDict()
        self._most = most
        self._folder: Path | None = None
        self._room = 0  # blocks to keep before the folder is checked again; negative: it is full

    def read_if_cached(self, key: str, block_number: int, start: int, end: int) -> bytes | None:
        """Return bytes of a block; None: the block is not in the cache."""
        data = self._memory.get((key, block_number))
        if data is not None:
            self._memory.move_to_end((key, block_number))
            return bytes(data[start:end])
        try:
            fd = os.open(self._path(key, block_number), os.O_RDONLY)
        except OSError:
            return None
        try:
            return os.pread(fd, end - start, start)
        finally:
            os.close(fd)

    def has(self, key: str, block_number: int) -> bool:
        """Say whether a block is in the cache."""
        return (key, block_number) in self._memory or os.path.exists(self._path(key, block_number))

    def keep(self, key: str, block_number: int, data: memoryview) -> None:
        """Keep a block in memory, and on disk if there is room."""
        self._memory[key, block_number] = data
        while len(self._memory) > _MAX_MEMORY_BLOCKS:
            self._memory.popitem(last=False)
        if self._room == 0:
            self._make_room_on_disk()
        if self._room < 0:
            self._room += 1
            return
        self._room -= 1
        path = self._path(key, block_number)
        temporary = f"{path}.{os.getpid()}"
        try:
            with open(temporary, "wb", buffering=0) as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError:  # the disk is full; the block will be read again
            Path(temporary).unlink(missing_ok=True)
            self._room = -_CHECK_EVERY_BLOCKS

    @property
    def folder(self) -> Path:
        """Return the folder of the blocks; only this user can write to it."""
        if self._folder is None:
            self._folder = user_temporary_folder("blocks")
        return self._folder

    def _path(self, key: str, number: int) -> str:
        return f"{self.folder}/{key}-{number}"

    def _make_room_on_disk(self) -> None:
        """Compute how many more blocks fit on disk; if few do, remove those that were not used for long."""
        kept = list(os.scandir(self.folder))
        free = shutil.disk_usage(self.folder).free // (2 * BLOCK_BYTES)
        room = min(self._most - len(kept), free)
        if room < _CHECK_EVERY_BLOCKS:
            for entry in kept:
                with suppress(FileNotFoundError):  # another process removed it first
                    if time.time() - max(entry.stat().st_mtime, entry.stat().st_atime) > _UNUSED_SECONDS:
                        os.unlink(entry)
                        room += 1
        self._room = min(room, _CHECK_EVERY_BLOCKS) if room > 0 else -_CHECK_EVERY_BLOCKS


BLOCKS = BlockCache()
