"""Media inside of another file, named `path.lmdb::key` or `path.parquet::row/column`, each read whole."""

from energon_pack.sources.jsonl.lmdb_file import open_value
from energon_pack.sources.storage import InMemory

_SEPARATOR = "::"
_LMDB = ".lmdb"
#: Only files that are called so are tables.
TABLES = (".parquet", ".arrow", ".csv", ".tsv")


def split_name(path: str) -> tuple[str, str | None]:
    """Split a path into the file and the key in it; no key: it names an ordinary file."""
    file, separator, key = path.partition(_SEPARATOR)
    return (file, key) if separator and file.endswith((_LMDB, *TABLES)) else (path, None)


def joined_name(file: str, key: str) -> str:
    """Return the path that names a key in a file: the reverse of `split_name`."""
    return f"{file}{_SEPARATOR}{key}"


def open_inside(file: str, key: str) -> InMemory:
    """Open what a key names; raises as `lmdb_file.open_value` and `tables.open_cell`."""
    if file.endswith(TABLES):
        from energon_pack.sources.tables import open_cell  # a loader of other packs needs no pyarrow

        return open_cell(file, key)
    return open_value(file, key)
