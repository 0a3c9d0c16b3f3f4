"""Find and open media, at the paths of another machine or inside other files, and say why a medium is not there.

`replace_mapped_prefix` finds a path of another machine here:

    /mnt/old/a.jpg ──source.media_map=["/mnt/old=/data"]──► /data/a.jpg

Packs, ledger and ids keep the names of the data: the same bytes at another place make the same packs. A medium inside
another file has a path `FILE::KEY`. By the bytes at its ends (`EndBytes`), a medium is known again.
"""

import os
import re
import shlex
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from energon_pack.errors import PackError, one_line
from energon_pack.run.address import bucket_of
from energon_pack.run.bounded_memory import LruCache
from energon_pack.run.untrusted_input import BoundExceeded, bounded_memory_and_time, parse_json
from energon_pack.samples.bytes import Bytes, as_file
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.named_bytes import get_item_of_record, medium_at
from energon_pack.sources.other_formats import TABLE_SUFFIXES
from energon_pack.sources.storage import File, InMemoryFile, open_file, read_ahead, state_of
from energon_pack.sources.tar import parse_tar_header

#: beginnings of names, each with what stands in its place; the longest that fits is taken
MediaMap = tuple[tuple[str, str], ...]

#: OLD=NEW: folders may have a `=` in their names, so the first counts that a path from the root follows, if any does
_ENTRY = re.compile(r"(.+?)=(?:(?=[/~]|\w+://)|(?!.*=(?:[/~]|\w+://)))(.+)")
_WINDOWS_PATH = re.compile(r"[A-Za-z]:\\|\\\\|[^/\s]+\\[^\s]*\.\w{2,5}$")


def parse_media_map(setting: Any) -> MediaMap:
    """Read `source.media_map`, a list of `OLD=NEW`, or one of them; raises PackError if it is none."""
    entries = [*setting] if isinstance(setting, list | tuple) else [] if setting is None else [setting]
    pairs = [_ENTRY.fullmatch(entry) if isinstance(entry, str) else None for entry in entries]
    if wrong := next((entry for entry, pair in zip(entries, pairs, strict=True) if pair is None), None):
        raise PackError(f"source.media_map: {wrong!r} is not OLD=NEW, as in 'source.media_map=[\"/mnt/old=/data\"]'")
    spelled = ((_with_single_backslashes(pair[1]), os.path.expanduser(pair[2])) for pair in pairs if pair)
    return tuple(sorted(spelled, key=lambda pair: -len(pair[0])))


def _with_single_backslashes(path: str) -> str:
    """Return a path of Windows with one backslash between folders: a shell and Hydra leave two as they are."""
    return path[:2] + path[2:].replace("\\\\", "\\")


def replace_mapped_prefix(medium_name: str, media_map: MediaMap) -> str:
    """Return the name of a medium with its beginning mapped; after a Windows path, slashes are as they are here."""
    for old, new in media_map:
        rest = medium_name.removeprefix(old)
        if medium_name.startswith(old) and (not rest or old[-1] in "/\\" or rest[0] in "/\\"):
            rest = rest.replace("\\", "/") if "\\" in old or rest[:1] == "\\" else rest
            return f"{new.rstrip('/')}/{rest.lstrip('/')}" if rest else new
    return medium_name


def mapped_buckets(media_map: MediaMap) -> set[str]:
    """Return the buckets that a map names: the user allows them."""
    return {bucket_of(new) for _, new in media_map}


def explain_missing_medium(medium_name: str, path: str) -> str:
    """Say what is the matter with a medium that can't be opened, and what cures it. `path`: its place here."""
    if "\0" in medium_name:
        return f"{medium_name!r} has a zero byte, and no file has"
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        mode = 0
    if stat.S_ISDIR(mode):
        return f"{medium_name!r} is a folder: the list of its files in its place is a video of these frames"
    if mode and not stat.S_ISREG(mode):
        return f"{medium_name!r} is a pipe, a socket or a device: only files are read"
    if _WINDOWS_PATH.match(medium_name):
        old = medium_name.rpartition("\\")[0] or medium_name
        return f"{medium_name!r} is not there: a path of Windows ({map_advice(old)})"
    if medium_name.startswith("/") or bucket_of(medium_name):
        return f"{medium_name!r} is not there: a path of another machine? ({map_advice(os.path.dirname(medium_name))})"
    return f"{medium_name!r} is not there (source.media_root)"


def map_advice(old: str) -> str:
    setting = f'source.media_map=["{old}=FOLDER"]'
    return f"{shlex.quote(setting)} says where it is here"


def list_mapped_absolute_paths(media_map: MediaMap) -> list[str]:
    """Return the absolute paths and the addresses that a map names."""
    return [new for _, new in media_map if bucket_of(new) or os.path.isabs(new)]


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


def join_file_and_key(file: str, key: str) -> str:
    """Return the path that names a key in a file: the reverse of `split_file_and_key`."""
    return f"{file}{_SEPARATOR}{key}"


def path_in_archive(media_root: str, name: str) -> str | None:
    """Return the path of a medium in the zip archive `media_root`; None: it is no archive, or `name` is an address."""
    return join_file_and_key(media_root, name) if media_root.lower().endswith(_ZIP) and not bucket_of(name) else None


def open_medium_inside_file(file: str, key: str) -> File:
    """Open a medium inside an LMDB, a zip archive, a table or a JSONL file; raises KeyError if there is no such key."""
    if file.lower().endswith(TABLE_SUFFIXES):
        from energon_pack.sources.table_rows import open_cell  # imports pyarrow: loaders of other packs do without

        return open_cell(file, key)
    if file.lower().endswith(_ZIP):
        return open_zip_member(file, key)
    return _open_lmdb_value(file, key) if file.lower().endswith(_LMDB) else _open_base64(file, key)


def _open_base64(path: str, key: str) -> InMemoryFile:
    """Decode a medium that a JSONL line holds in base64. `key`: bytes of the line, and keys in it: `0+512/images/0`."""
    place, *way = key.split("/")
    offset, _, size = place.partition("+")
    if not (offset.isdecimal() and size.isdecimal()):
        raise KeyError(key)
    with open_file(path) as file:
        value = parse_json(file.read(int(offset), min(int(size), file.size)))
        return InMemoryFile(medium_at(way, partial(get_item_of_record, value)), file.version)


def open_zip_member(archive: str, name: str) -> InMemoryFile:
    """Read a member of a zip archive, with the archive's version; raises KeyError, or Skip if it can't be read."""
    state = state_of(archive)
    if state is None:
        raise FileNotFoundError(archive)
    try:
        opened = _open_container(archive, state.version, lambda: zipfile.ZipFile(as_file(open_file(archive))))
        info = opened.getinfo(name)
        if info.file_size > _MAX_MEMBER_BYTES:
            raise Skip(Reason.UNREADABLE_MEDIA, f"{name!r} has {info.file_size:,} bytes in the archive")
        with bounded_memory_and_time(_MIN_MEMORY_BYTES + info.compress_size * _MEMORY_PER_ZIP_BYTE):
            return InMemoryFile(opened.read(info), state.version)
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


def _open_lmdb_value(database: str, key: str) -> InMemoryFile:
    """Read the value of a key of an LMDB, with the LMDB's version; raises KeyError, or Skip as `open_lmdb`."""
    from energon_pack.sources.lmdb_pages import open_lmdb  # packs of copies do not need it

    file = os.path.join(database, "data.mdb") if os.path.isdir(database) else database
    state = state_of(file)
    if state is None:
        raise FileNotFoundError(file)
    lmdb = _open_container(file, state.version, partial(open_lmdb, file, database))
    return InMemoryFile(lmdb.get(key.encode()), state.version)


def open_medium(path: str) -> File:
    """Open a file, or a medium inside one, by its path; raises like `open_file` and `open_medium_inside_file`."""
    file, key = split_file_and_key(path)
    return open_file(path) if key is None else open_medium_inside_file(file, key)


def _make_file_cache() -> LruCache[str, File]:
    return LruCache(_MAX_OPEN_FILES, close=lambda file: file.close())


class OpenFileCache:
    """Keeps files open by their paths, and closes the least recently used. A forked process opens them anew."""

    def __init__(self) -> None:
        self._open = _make_file_cache()
        self._files_ahead: list[File] = []  # files with ranges that were read ahead
        self._process = os.getpid()

    def open(self, path: str, opener: Callable[[], File] | None = None) -> File:
        """Return the open file of a path. `opener`: called to open it if it is not open; None: `open_medium` is."""
        if self._process != os.getpid():  # open files belong to the process that this one was forked from
            self._open, self._process = _make_file_cache(), os.getpid()
        return self._open.get(path) or self._open.put(path, opener() if opener else open_medium(path))

    def read_ahead(self, ranges_by_file: Sequence[tuple[File, Sequence[tuple[int, int]]]]) -> None:
        """Request ranges before they are read, as `storage.read_ahead`, and drop those of this method's last call."""
        before, self._files_ahead = self._files_ahead, [file for file, _ in ranges_by_file]
        read_ahead([*((file, ()) for file in before if file not in self._files_ahead), *ranges_by_file])

    def __len__(self) -> int:
        return len(self._open)

    def __reduce__(self) -> Any:
        return OpenFileCache, ()

    def __enter__(self) -> "OpenFileCache":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.clear()


#: bytes at each end of a medium that are compared
END_BYTES = 1024


class EndBytes(NamedTuple):
    """The first and the last bytes of a part of a source, and the tar header before it."""

    header: bytes  # the header in the tar; empty for a separate file
    first: bytes
    last: bytes

    @property
    def checksum(self) -> int:
        """Return a part's CRC-32: of its name in the tar header, and of both ends; ValueError: no valid header."""
        name = b""
        if self.header:
            member = name_and_size(self.header)
            if member is None:
                raise ValueError("no header of a tar")
            name = member[0].encode()
        return zlib.crc32(self.last, zlib.crc32(self.first, zlib.crc32(name)))


def end_ranges(offset: int, size: int) -> list[tuple[int, int]]:
    """Return (offset, size) of the first and of the last 1,024 bytes of a part, or of all of it if it is smaller."""
    end = min(size, END_BYTES)
    return [(offset, end), (offset + size - end, end)]


def ends_of(file: Bytes, offset: int, size: int, lead: int) -> EndBytes:
    """Read the first and last bytes of a part, and the `lead` bytes of the tar header before it."""
    (first, end), last = end_ranges(offset, size)
    head = file.read(first - lead, lead + end)
    return EndBytes(head[:lead], head[lead:], file.read(*last))


def name_and_size(header: bytes) -> tuple[str, int] | None:
    """Return name and size of the member that a header block describes; None: it is no header. Long names are cut."""
    try:
        name, size, _ = parse_tar_header(header)
    except (ValueError, struct.error):
        return None
    return name, size
