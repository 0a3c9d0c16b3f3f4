"""Files that are whole or not there at all."""

import ctypes
import os
import uuid
from pathlib import Path


def write_whole(path: Path, data: bytes, sync: bool = True) -> None:
    """Write a file beside, sync it, rename it into place: a kill or a power cut leaves the old one or the new."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def sync_file_system(path: Path) -> None:
    """Have all that was written to the file system of a path outlast a power cut."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):  # not Linux
        os.sync()
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        if libc.syncfs(fd):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fspath(path))
    finally:
        os.close(fd)
