"""Write files and folders that are either whole or not there, and keep some of them in the user's cache."""

import ctypes
import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from energon_pack.errors import PackError

_log = logging.getLogger(__name__)

#: Energon's folder of metadata in a dataset.
META_FOLDER = ".nv-meta"
#: of a file that `write_atomically` has not renamed yet; a kill leaves it
TEMPORARY_SUFFIX = ".tmp"
#: a file in each folder of `make_folder_atomically`: the names of its files, and the hash of each
_HASHES_FILE = "sums.json"
_PRIVATE_FOLDER_MODE = 0o700  # no other user can read
#: folders of a kind that are kept: a template with a large tokenizer takes 10 to 30 MB
_MOST_FOLDERS = 8
_DISK_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

Value = TypeVar("Value")


def write_atomically(path: Path, data: bytes, sync: bool = True) -> None:
    """Write a file through a temporary one, synced and renamed; a kill or power cut leaves the old or the new file."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def make_folder_atomically(folder: Path) -> Iterator[Path]:
    """Give a new folder to write into, which becomes `folder` at the end, unless another process made it meanwhile."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        new_folder = Path(temporary) / "made"
        new_folder.mkdir()
        yield new_folder
        write_atomically(new_folder / _HASHES_FILE, json.dumps(_hashes_of(new_folder)).encode())
        if folder.exists() and not is_intact(folder):  # if it is whole, another run made it first and may be using it
            os.rename(folder, Path(temporary) / "damaged")
        try:
            os.rename(new_folder, folder)
        except OSError:
            if not is_intact(folder):
                raise


def is_intact(folder: Path) -> bool:
    """Say whether `make_folder_atomically` made this folder, and each file still has the same bytes."""
    try:
        written = json.loads((folder / _HASHES_FILE).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(written, dict) and written.items() <= _hashes_of(folder).items()


def _hashes_of(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path != folder / _HASHES_FILE)
    return {path.relative_to(folder).as_posix(): digest_of(path) for path in files}


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with open(path, "rb") as file:
        return digest_of_rest(file)


def digest_of_rest(file: BinaryIO) -> str:
    """Return the SHA-256 of an open file from its present position on, in hex."""
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def sync_file_system(path: Path) -> None:
    """Sync the file system on which a path lies: all files written to it outlast a power cut."""
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


def read_cached_value(kind: str, key: str, parse: Callable[[Any], Value]) -> Value | None:
    """Read a value that `write_cached_value` wrote; None if there is none, or it can't be read.

    Args:
        kind: the cache's folder of such values.
        parse: makes the value from JSON; raises ValueError, TypeError or KeyError if the JSON has another form.
    """
    path = _kept_file(kind, key)
    try:
        return parse(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        _log.warning("%s can't be read, and is made again: %s", path, error)
        return None


def write_cached_value(kind: str, key: str, value: Any) -> None:
    """Write a value as JSON for `read_cached_value` of later processes; if that fails, a warning is logged."""
    path = _kept_file(kind, key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(value, indent=1).encode(), sync=False)
    except OSError as error:
        _log.warning("%s is not kept for the next start: %s", path, error)


def user_cache_folder(kind: str, name: str) -> Path:
    """Return the path of a folder in the user's cache; the folder may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "energon_pack" / kind / name


def _kept_file(kind: str, key: str) -> Path:
    return user_cache_folder(kind, f"{key}.json")


def restore_folder_from_cache(kind: str, folder: Path) -> bool:
    """Make a folder like the one of its name that `copy_folder_to_cache` kept; say whether there is one."""
    kept = user_cache_folder(kind, folder.name)
    try:
        if not is_intact(folder):
            with make_folder_atomically(folder) as made:
                shutil.copytree(kept, made, dirs_exist_ok=True)
                if not is_intact(made):
                    raise OSError(f"{kept} is damaged")
    except (OSError, shutil.Error) as error:
        if kept.exists():
            _log.warning("%s can't be read, and is made again: %s", kept, error)
        return False
    with suppress(OSError):
        os.utime(kept)
    return True


def copy_folder_to_cache(kind: str, folder: Path) -> None:
    """Keep a copy of a folder of `make_folder_atomically`, in place of the one that was not restored for longest.

    If that fails, a warning is logged.
    """
    kept = user_cache_folder(kind, folder.name)
    try:
        if not is_intact(kept):
            with make_folder_atomically(kept) as made:
                shutil.copytree(folder, made, dirs_exist_ok=True)
        others = sorted(kept.parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except (OSError, shutil.Error) as error:
        _log.warning("%s is not kept for the next start: %s", kept, error)
        return
    for old in others[_MOST_FOLDERS:]:
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def reporting_full_disk(setting: str, folder: Path) -> Iterator[None]:
    """Turn a full disk's error in the block, which names no file, into a PackError with the folder and its setting."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FULL_ERRORS:
            raise
        raise PackError(
            f"{folder}: {os.strerror(error.errno)}; make room, or choose another {setting}: the same command goes on"
            " from what is there"
        ) from None


def user_temporary_folder(name: str) -> Path:
    """Return a folder for temporary files, shared by this user's processes; no other user can list or write it."""
    above = Path(tempfile.gettempdir()) / f"energon_pack-{os.getuid()}"
    above.mkdir(_PRIVATE_FOLDER_MODE, exist_ok=True)
    status = above.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PackError(f"{above} is a link, or belongs to another user: set TMPDIR to a folder of your own")
    if status.st_mode & ~_PRIVATE_FOLDER_MODE & 0o777:
        above.chmod(_PRIVATE_FOLDER_MODE)
    (above / name).mkdir(_PRIVATE_FOLDER_MODE, exist_ok=True)
    return above / name
