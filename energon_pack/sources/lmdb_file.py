"""Images in an LMDB, named `path.lmdb::key`: each as a file in memory, so that they are read like any other."""

import os
import tempfile
from functools import lru_cache
from typing import Any

from energon_pack.sample import Reason, Skip

_SEPARATOR = "::"


def split_name(path: str) -> tuple[str, str | None]:
    """The LMDB and the key that a path names; no key for an ordinary file."""
    database, separator, key = path.partition(_SEPARATOR)
    return (database, key) if separator and database.endswith(".lmdb") else (path, None)


def open_value(database: str, key: str) -> tuple[int, int, int]:
    """Descriptor of a file in memory with the value of a key, its size, and the time the LMDB was written.

    Raises:
        FileNotFoundError: no such LMDB.
        KeyError: no such key.
        Skip: `unsupported_media` without lmdb, `unreadable_media` for a file that is none, or a key that can't be.
    """
    file = os.path.join(database, "data.mdb") if os.path.isdir(database) else database
    mtime_ns = os.stat(file).st_mtime_ns
    environment = _environment(database, mtime_ns)
    import lmdb  # it is there, and has opened one

    try:
        with environment.begin(buffers=True) as transaction:
            value = transaction.get(key.encode())
            if value is None:
                raise KeyError(key)
            return _in_memory(value), len(value), mtime_ns
    except lmdb.Error as error:  # a damaged page, or a key that no LMDB can have
        raise Skip(Reason.UNREADABLE_MEDIA, f"the LMDB's {key!r}: {error}") from None


@lru_cache(maxsize=16)
def _environment(database: str, mtime_ns: int) -> Any:
    """An open LMDB; another one once it was written to."""
    try:
        import lmdb
    except ImportError:
        raise Skip(Reason.UNSUPPORTED_MEDIA, "images of an LMDB need lmdb: pip install 'energon-pack[lmdb]'") from None
    try:
        return lmdb.open(database, subdir=os.path.isdir(database), readonly=True, lock=False, readahead=False)
    except lmdb.Error as error:
        what = str(error).removeprefix(f"{database}: ")  # the ledger names no machine's folder
        raise Skip(Reason.UNREADABLE_MEDIA, f"{os.path.basename(database)!r} is no LMDB: {what}") from None


def _in_memory(value: Any) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("energon_pack")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    view = memoryview(value)
    while view:
        view = view[os.write(fd, view) :]
    return fd
