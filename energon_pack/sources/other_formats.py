"""Find files that are neither tars nor lines by their first bytes, and refuse them with advice."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from energon_pack.errors import PackError
from energon_pack.samples.bytes import Bytes
from energon_pack.sources.storage import File, open_file

#: names of compressed tars, lines and tables
COMPRESSED_NAME = re.compile(r"(?i)\.(tgz|tbz2?|txz|(tar|jsonl?|csv|tsv)\.(gz|bz2|xz|zst|zstd|lz4))$")


def find_decompress_command(file: Bytes) -> str | None:
    """Return the shell command that unpacks a file, as `gunzip`, by its first bytes; None: it is not compressed."""
    head = file.read(0, 10)
    if head[:2] == b"\x1f\x8b":
        return "gunzip"
    if head[:3] == b"BZh" and head[4:] == b"1AY&SY":
        return "bunzip2"
    magic = {b"\xfd7zXZ\0": "unxz", b"\x28\xb5\x2f\xfd": "unzstd", b"\x04\x22\x4d\x18": "unlz4"}
    return next((command for start, command in magic.items() if head.startswith(start)), None)


def make_compressed_file_error(path: str, num_files: int = 1) -> PackError:
    """Make the error for a compressed file. `num_files`: how many such files there are."""
    with open_file(path) as file:
        command = find_decompress_command(file)
    more = f" (and {num_files - 1} more)" if num_files > 1 else ""
    if command is None:
        return PackError(f"{path}{more} is called as a compressed file, and is none: rename it")
    return PackError(
        f"{path}{more} is compressed, and sources are read in place: put what {command} gives in its place"
    )


@contextmanager
def open_refusing_compressed(path: str) -> Iterator[File]:
    """Open a file; raises PackError if it is compressed or can't be opened."""
    try:
        file = open_file(path)
    except OSError as error:
        raise PackError(f"{path}: {error.strerror}") from None
    with file:
        if find_decompress_command(file):
            raise make_compressed_file_error(path)
        yield file


_JSONL_ADVICE = "source=jsonl reads lines of JSON in UTF-8, with media as files of their own"
_PARQUET_ADVICE = "Parquet: source=table reads it"
_ARROW_ADVICE = "Arrow: source=table reads it, if it is called *.arrow"
_FORMAT_BY_MAGIC = (
    (b"PAR1", _PARQUET_ADVICE),
    (b"ARROW1", _ARROW_ADVICE),
    (b"PK\x03\x04", f"a zip archive: {_JSONL_ADVICE}"),
)

#: the extension of Parquet
PARQUET_SUFFIX = ".parquet"
#: the extensions of tables
TABLE_SUFFIXES = (PARQUET_SUFFIX, ".arrow", ".csv", ".tsv")
#: names of tables; those that are compressed as a whole are refused
TABLE_FILE = re.compile(r"(?i)\.(parquet|arrow|(csv|tsv)(\.(gz|bz2|xz|zst|lz4))?)$")


def describe_foreign_format(first_bytes: bytes) -> str | None:
    """Return the format of a file that begins with these bytes, with advice for an error; None: it is unknown."""
    if first_bytes[16:20] == b"\xde\xc0\xef\xbe":
        return 'an LMDB: lines of JSON name its values, {"images": ["DIR.lmdb::KEY"], …}'
    return next((name for magic, name in _FORMAT_BY_MAGIC if first_bytes.startswith(magic)), None)
