"""Find files that are neither tars nor lines by their first bytes, and refuse them with advice."""

import re
import shlex

from energon_pack.errors import PackError
from energon_pack.samples.bytes import Bytes
from energon_pack.sources.storage import open_file

#: names of compressed tars and lines
COMPRESSED = re.compile(r"(?i)\.(tgz|tbz2?|txz|(tar|jsonl?)\.(gz|bz2|xz|zst|zstd|lz4))$")
_ENDING = re.compile(r"(?i)\.(tgz|tbz2?|txz|gz|bz2|xz|zst|zstd|lz4)$")


def compression(file: Bytes) -> str | None:
    """Return the command that unpacks this file; None: it is not compressed."""
    head = file.read(0, 10)
    if head[:2] == b"\x1f\x8b":
        return "gunzip"
    if head[:3] == b"BZh" and head[4:] == b"1AY&SY":
        return "bunzip2"
    magic = {b"\xfd7zXZ\0": "unxz", b"\x28\xb5\x2f\xfd": "unzstd", b"\x04\x22\x4d\x18": "unlz4"}
    return next((command for start, command in magic.items() if head.startswith(start)), None)


def compressed_error(path: str, number: int = 1) -> PackError:
    """Make the error for a compressed file, with a command after which the same source can be read."""
    with open_file(path) as file:
        command = compression(file)
    plain = plain_name(path)
    unpacked = plain if plain != path else f"{path}.plain"
    rest = f"rm {shlex.quote(path)}" if plain != path else f"mv {shlex.quote(unpacked)} {shlex.quote(path)}"
    unpack = f"{command} < {shlex.quote(path)} > {shlex.quote(unpacked)} && {rest}"
    if command is None:  # only its name looks compressed
        unpack = f"mv {shlex.quote(path)} {shlex.quote(plain)}"
    more = f" (and {number - 1} more)" if number > 1 else ""
    return PackError(f"{path}{more} is compressed, sources are read in place: replace it by what it holds: {unpack}")


def plain_name(path: str) -> str:
    """Return the name of a file after unpacking."""
    stem, is_short = _ENDING.sub("", path), path.lower().endswith(("tgz", "tbz", "tbz2", "txz"))
    return f"{stem}.tar" if is_short else stem


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
        return f"an LMDB: {_LINES}"
    return next((name for magic, name in _FORMATS if head.startswith(magic)), None)
