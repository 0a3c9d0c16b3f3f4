"""Tells tables by their names, and files that are neither tar nor JSONL by their first bytes."""

import os

_LINES = "source=jsonl reads lines of JSON in UTF-8, with media as files of their own"
#: advice for a folder of Parquet files
PARQUET = "Parquet: source=table reads it"
_FORMATS = (
    (b"PAR1", PARQUET),
    (b"ARROW1", "Arrow: source=table reads it"),
    (b"PK\x03\x04", f"a zip archive: {_LINES}"),
)


#: extensions of tables
TABLES = (".parquet", ".arrow")


def kind_of_table(path: str) -> str:
    """Return the extension of a table that decides how it is read."""
    return os.path.splitext(path.lower())[1]


def what_else(head: bytes) -> str | None:
    """Name the format of a file that begins with these bytes, with advice; None: unknown."""
    if head[16:20] == b"\xde\xc0\xef\xbe":
        return 'an LMDB: lines of JSON name its values, {"images": ["DIR.lmdb::KEY"], …}'
    return next((what for magic, what in _FORMATS if head.startswith(magic)), None)
