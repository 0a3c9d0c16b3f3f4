"""Recognise files that are neither tar nor JSONL by their first bytes, with advice for the user. Pure."""

_LINES = "source=jsonl reads lines of JSON in UTF-8, with media as files of their own"
#: advice for a folder of Parquet files
PARQUET = "Parquet: source=table reads it"
_FORMATS = (
    (b"PAR1", PARQUET),
    (b"ARROW1", "Arrow: source=table reads it"),
    (b"PK\x03\x04", f"a zip archive: {_LINES}"),
)


def what_else(head: bytes) -> str | None:
    """Name the format of a file that begins with these bytes, with advice; None: unknown."""
    return next((what for magic, what in _FORMATS if head.startswith(magic)), None)
