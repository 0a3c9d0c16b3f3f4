"""What a file is that is neither a tar nor JSONL, by its first bytes; and what a user may do with it. Pure."""

_LINES = "source=jsonl reads lines of JSON in UTF-8, with media as files of their own"
_ROWS = f"it is not read yet: its rows can be written as JSONL ({_LINES}), or packed in the loader by energon_pack.lazy"
#: what to do with a folder of it
PARQUET = f"Parquet: {_ROWS}"
_FORMATS = ((b"PAR1", PARQUET), (b"ARROW1", f"Arrow: {_ROWS}"), (b"PK\x03\x04", f"a zip archive: {_LINES}"))


def what_else(head: bytes) -> str | None:
    """What a file is that begins so, and what to do about it; None: none of these."""
    return next((what for magic, what in _FORMATS if head.startswith(magic)), None)
