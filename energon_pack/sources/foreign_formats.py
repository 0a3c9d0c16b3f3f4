"""Tells files that are neither tar nor JSONL by their first bytes."""

_LINES = "source=jsonl reads lines of JSON in UTF-8, with media as files of their own"
#: advice for a folder of Parquet files
PARQUET = "Parquet: source=table reads it"
ARROW = "Arrow, which is not read: datasets.load_from_disk(FOLDER).to_parquet(FILE) writes Parquet of it"
_FORMATS = (
    (b"PAR1", PARQUET),
    (b"ARROW1", ARROW),
    (b"PK\x03\x04", f"a zip archive: {_LINES}"),
)

#: the extension of tables
TABLE = ".parquet"


def what_else(head: bytes) -> str | None:
    """Name the format of a file that begins with these bytes, with advice; None: unknown."""
    if head[16:20] == b"\xde\xc0\xef\xbe":
        return 'an LMDB: lines of JSON name its values, {"images": ["DIR.lmdb::KEY"], …}'
    return next((what for magic, what in _FORMATS if head.startswith(magic)), None)
