"""Open media inside other files, each read whole: `path.lmdb::key`, `path.zip::name`, `path.parquet::row/column`."""

import os
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from energon_pack.errors import one_line
from energon_pack.run.address import bucket_of
from energon_pack.run.expansion_bounds import BoundExceeded, bounded
from energon_pack.run.lru_cache import LruCache
from energon_pack.run.plain_data import parse_json
from energon_pack.samples.bytes import as_file
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.named_bytes import item_of, medium_at
from energon_pack.sources.other_formats import TABLE_SUFFIXES
from energon_pack.sources.storage import File, InMemory, open_file, read_ahead, state_of

_MAX_MEMBER_BYTES = 4 << 30  # bytes of a member of an archive
#: how much memory one may take: bytes, and times what it takes in the archive
_MIN_MEMORY_BYTES, _MEMORY_PER_ZIP_BYTE = 512 << 20, 16
_MAX_OPEN_FILES = 64
#: path of an LMDB or an archive → its version, and the open LMDB or archive
_open_containers: LruCache[str, tuple[str, Any]] = LruCache(32, close=lambda opened: opened[1].close())
_SEPARATOR = "::"
_LMDB, _ZIP = (".lmdb", ".mdb"), ".zip"
_CONTAINERS = (*_LMDB, _ZIP, *TABLE_SUFFIXES)
#: the key of base64 in a line, whose file may be called anything
_KEY_IN_LINE = re.compile(r"\d+\+\d+/")


def split_file_and_key(path: str) -> tuple[str, str | None]:
    """Split a path `FILE::KEY` into the file and the key; the key is None if the path names an ordinary file."""
    file, separator, key = path.partition(_SEPARATOR)
    is_inside = separator and (file.lower().endswith(_CONTAINERS) or _KEY_IN_LINE.match(key))
    return (file, key) if is_inside else (path, None)


def joined_name(file: str, key: str) -> str:
    """Return the path that names a key in a file: the reverse of `split_file_and_key`."""
    return f"{file}{_SEPARATOR}{key}"


def path_in_archive(media_root: str, name: str) -> str | None:
    """Return the path of a medium in the zip archive `media_root`; None: it is no archive, or `name` is an address."""
    return joined_name(media_root, name) if media_root.lower().endswith(_ZIP) and not bucket_of(name) else None


def open_inside(file: str, key: str) -> File:
    """Open a medium inside an LMDB, a zip archive, a table or a JSONL file; raises KeyError if there is no such key."""
    if file.lower().endswith(TABLE_SUFFIXES):
        from energon_pack.sources.table_rows import open_cell  # imports pyarrow: loaders of other packs do without

        return open_cell(file, key)
    if file.lower().endswith(_ZIP):
        return open_zip_member(file, key)
    return open_lmdb_value(file, key) if file.lower().endswith(_LMDB) else _open_base64(file, key)


def _open_base64(path: str, key: str) -> InMemory:
    """Decode a medium that a JSONL line holds in base64. `key`: bytes of the line, and keys in it: `0+512/images/0`."""
    place, *way = key.split("/")
    offset, _, size = place.partition("+")
    if not (offset.isdecimal() and size.isdecimal()):
        raise KeyError(key)
    with open_file(path) as file:
        value = parse_json(file.read(int(offset), min(int(size), file.size)))
        return InMemory(medium_at(way, partial(item_of, value)), file.version)


def open_zip_member(archive: str, name: str) -> InMemory:
    """Read a member of a zip archive, with the archive's version; raises KeyError, or Skip if it can't be read."""
    state = state_of(archive)
    if state is None:
        raise FileNotFoundError(archive)
    try:
        opened = _open_container(archive, state.version, lambda: zipfile.ZipFile(as_file(open_file(archive))))
        info = opened.getinfo(name)
        if info.file_size > _MAX_MEMBER_BYTES:
            raise Skip(Reason.UNREADABLE_MEDIA, f"{name!r} has {info.file_size:,} bytes in the archive")
        with bounded(_MIN_MEMORY_BYTES + info.compress_size * _MEMORY_PER_ZIP_BYTE):
            return InMemory(opened.read(info), state.version)
    except (BoundExceeded, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise Skip(Reason.UNREADABLE_MEDIA, f"{name!r} of the zip archive: {one_line(error)}") from None


def _open_container(path: str, version: str, open_it: Callable[[], Any]) -> Any:
    """Return the open LMDB or zip archive of a path; `open_it` opens it if it is not open, or its version changed."""
    was, container = _open_containers.get(path) or ("", None)
    if was != version:
        _open_containers.drop(path)
        container = open_it()
        _open_containers.put(path, (version, container))
    return container


def open_lmdb_value(database: str, key: str) -> InMemory:
    """Read the value of a key of an LMDB, with the LMDB's version; raises KeyError, or Skip as `open_lmdb`."""
    from energon_pack.sources.lmdb_pages import open_lmdb  # packs of copies do not need it

    file = os.path.join(database, "data.mdb") if os.path.isdir(database) else database
    state = state_of(file)
    if state is None:
        raise FileNotFoundError(file)
    lmdb = _open_container(file, state.version, partial(open_lmdb, file, database))
    return InMemory(lmdb.get(key.encode()), state.version)


def open_medium(path: str) -> File:
    """Open an ordinary file, or a medium inside a file, by its path; raises like `open_file` and `open_inside`."""
    file, key = split_file_and_key(path)
    return open_file(path) if key is None else open_inside(file, key)


def _make_file_cache() -> LruCache[str, File]:
    return LruCache(_MAX_OPEN_FILES, close=lambda file: file.close())


class OpenFiles:
    """Keeps files open by their paths, and closes the least recently used. A forked process opens them anew."""

    def __init__(self) -> None:
        self._open = _make_file_cache()
        self._files_ahead: list[File] = []  # files with ranges that were read ahead
        self._process = os.getpid()

    def open(self, path: str, opened: Callable[[], File] | None = None) -> File:
        """Return the open file of a path. `opened`: called to open it if it is not open; None: `open_medium` is."""
        if self._process != os.getpid():  # open files belong to the process that this one was forked from
            self._open, self._process = _make_file_cache(), os.getpid()
        return self._open.get(path) or self._open.put(path, opened() if opened else open_medium(path))

    def read_ahead(self, ranges_of: Sequence[tuple[File, Sequence[tuple[int, int]]]]) -> None:
        """Request ranges before they are read, as `storage.read_ahead`, and drop those of this method's last call."""
        before, self._files_ahead = self._files_ahead, [file for file, _ in ranges_of]
        read_ahead([*((file, ()) for file in before if file not in self._files_ahead), *ranges_of])

    def __len__(self) -> int:
        return len(self._open)

    def __reduce__(self) -> Any:
        return OpenFiles, ()

    def __enter__(self) -> "OpenFiles":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.clear()
