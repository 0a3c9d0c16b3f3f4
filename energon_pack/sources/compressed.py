"""Find compressed files by their first bytes, and refuse them with advice, because sources are read in place.

Compressed tars may also be unpacked into a copy, which is kept as long as the compressed file stays the same.
"""

import bz2
import gzip
import hashlib
import lzma
import os
import re
import shlex
import uuid
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from energon_pack.errors import PackError, amount, sized
from energon_pack.run.console import say
from energon_pack.run.executors.local import count_cores
from energon_pack.samples.bytes import Bytes, as_file
from energon_pack.sources.storage import File, open_file, real_path

#: names of compressed tars, and of compressed JSON
COMPRESSED_LINES = re.compile(r"(?i)\.jsonl?\.(gz|bz2|xz|zst|zstd|lz4)$")
COMPRESSED_NAMES = re.compile(r"(?i)\.(tgz|tbz2?|txz|tar\.(gz|bz2|xz|zst|zstd|lz4))$")
COMPRESSED = re.compile(f"{COMPRESSED_NAMES.pattern}|{COMPRESSED_LINES.pattern.removeprefix('(?i)')}")


def _opened_by_arrow(file: BinaryIO, compression: str) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(file, "r"), compression)


_OPENED_BY: dict[str, Callable[[BinaryIO], Any]] = {
    "gunzip": gzip.open,
    "bunzip2": bz2.open,
    "unxz": lzma.open,
    "unzstd": partial(_opened_by_arrow, compression="zstd"),
    "unlz4": partial(_opened_by_arrow, compression="lz4"),
}
_BLOCK = 4 << 20
_MOST_TIMES = 256  # what a file may unpack to; text of samples takes 3 to 20 times its compressed bytes
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
    made = plain if plain != path else f"{path}.plain"
    rest = f"rm {shlex.quote(path)}" if plain != path else f"mv {shlex.quote(made)} {shlex.quote(path)}"
    unpack = f"{command} < {shlex.quote(path)} > {shlex.quote(made)} && {rest}"
    if command is None:  # only its name looks compressed
        unpack = f"mv {shlex.quote(path)} {shlex.quote(plain)}"
    others = f" (and {number - 1} more)" if number > 1 else ""
    copied = "source.compressed=copy packs a copy in cache_dir; or " if command and plain != path else ""
    return PackError(
        f"{path}{others} is compressed, sources are read in place: {copied}replace it by what it holds: {unpack}"
    )


def plain_name(path: str) -> str:
    """Return the name of a file after unpacking."""
    stem = _ENDING.sub("", path)
    return f"{stem}.tar" if COMPRESSED_NAMES.search(path) and not stem.endswith(".tar") else stem


def plain_copies(paths: Sequence[str], folder: Path) -> dict[str, str]:
    """Return the uncompressed copy of each compressed file, and make the copies that are missing."""
    if paths:
        say(f"packed from copies in {folder}: {amount(len(paths), 'compressed file')}")
    with ThreadPoolExecutor(count_cores()) as pool:  # decompressing lets other threads go on
        return dict(zip(paths, pool.map(partial(_copied, folder=folder), paths), strict=True))


def _copied(path: str, folder: Path) -> str:
    with open_file(path) as file:
        how = compression(file)
        if how is None:  # only its name looks compressed
            return path
        of_file = folder / hashlib.sha256(real_path(path).encode()).hexdigest()[:16]
        ending = os.path.splitext(plain_name(path))[1]
        copy = of_file / f"{hashlib.sha256(f'{file.size} {file.version}'.encode()).hexdigest()[:16]}{ending}"
        if not copy.exists():
            of_file.mkdir(parents=True, exist_ok=True)
            for old in of_file.glob(f"*{ending}"):  # copies of earlier versions of the file
                old.unlink()
            _unpack(path, file, how, copy)
    return os.fspath(copy)


def _unpack(path: str, file: File, how: str, copy: Path) -> None:
    temporary = copy.with_name(uuid.uuid4().hex)
    try:
        with _OPENED_BY[how](as_file(file, _BLOCK)) as stream, open(temporary, "wb") as out:
            while block := stream.read(_BLOCK):
                out.write(block)
                if out.tell() > _MOST_TIMES * (file.size + _BLOCK):
                    raise PackError(f"{path} has {sized(file.size)}, and unpacks to more than {sized(out.tell())}")
        os.replace(temporary, copy)
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an error of the disk
            raise
        raise PackError(f"{path} is damaged: {error}; get it again") from None
    finally:
        temporary.unlink(missing_ok=True)
