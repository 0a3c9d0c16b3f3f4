"""Files that are whole or not there at all."""

import os
import uuid
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file beside, sync it, rename it into place: a kill or a power cut leaves the old one or the new."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder outlast a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
