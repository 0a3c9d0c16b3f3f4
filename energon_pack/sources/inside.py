"""Open media inside other files, each read whole: `path.lmdb::key`, `path.zip::name`, `path.parquet::row/column`."""

from functools import partial
from typing import Any

from energon_pack.run.address import is_address
from energon_pack.run.plain_data import json_value
from energon_pack.sources.jsonl.lmdb_file import open_value
from energon_pack.sources.named_bytes import bytes_at
from energon_pack.sources.storage import File, InMemory, open_file
from energon_pack.sources.table_names import TABLES
from energon_pack.sources.zip_file import open_member

_SEPARATOR = "::"
_LINES = (".jsonl", ".json")
_LMDB, _ZIP = (".lmdb", ".mdb"), ".zip"


def split_name(path: str) -> tuple[str, str | None]:
    """Split a path into the file and the key in it; None: the path names an ordinary file."""
    file, separator, key = path.partition(_SEPARATOR)
    return (file, key) if separator and file.lower().endswith((*_LMDB, _ZIP, *TABLES, *_LINES)) else (path, None)


def joined_name(file: str, key: str) -> str:
    """Return the path that names a key in a file: the reverse of `split_name`."""
    return f"{file}{_SEPARATOR}{key}"


def media_in(media_root: str, name: str) -> str | None:
    """Return the path of a medium of which `media_root` is a zip archive; None: it is a folder."""
    return joined_name(media_root, name) if media_root.lower().endswith(_ZIP) and not is_address(name) else None


def open_inside(file: str, key: str) -> File:
    """Open the value of a key.

    Raises:
        FileNotFoundError, KeyError: nothing is there.
        Skip: `unreadable_media`, `unsupported_media`.
    """
    if file.lower().endswith(TABLES):
        from energon_pack.sources.tables import open_cell  # imports pyarrow, which loaders of other packs do not need

        return open_cell(file, key)
    if file.lower().endswith(_ZIP):
        return open_member(file, key)
    return open_value(file, key) if file.lower().endswith(_LMDB) else _open_base64(file, key)


def _open_base64(path: str, key: str) -> InMemory:
    """Open a medium in base64 in a line: its key is `OFFSET+SIZE/messages/0/content`."""
    place, *way = key.split("/")
    offset, _, size = place.partition("+")
    if not (offset.isdecimal() and size.isdecimal()):
        raise KeyError(key)
    with open_file(path) as file:
        value = json_value(file.read(int(offset), min(int(size), file.size)))
        return InMemory(bytes_at(way, partial(_item, value)), file.version)


def _item(line: Any, value: Any, step: str) -> Any:
    value = line if value is None else value
    return value[int(step) if isinstance(value, list) else step]
