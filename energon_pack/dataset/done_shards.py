"""The file beside a shard that a process of a run finished: `packed-000000.tar.done`.

Its first line says of which run it is, and of which bytes; behind it are the checksums of the shard's media, which
nobody then has to read again.
"""

import json
from pathlib import Path
from zlib import crc32

from energon_pack.run.files import write_whole

#: extension of the file that marks a finished shard
DONE_SUFFIX = ".done"


def mark_done(shard: Path, identity: str, media_sums: bytes) -> None:
    """Write the file beside a finished shard. `media_sums`: see `dataset.media_sums`."""
    write_whole(_done_file(shard), _first_line(shard, identity) + media_sums)


def media_sums_if_done(shard: Path, identity: str | None) -> bytes | None:
    """Return the checksums of a shard that a process of the run with this identity wrote and synced; None: none did.

    The shard itself is not read. `identity`: None: one process writes alone and marks no shard, so no shard counts as
    done.
    """
    if identity is None:
        return None
    try:
        line, content = _first_line(shard, identity), _done_file(shard).read_bytes()
        return content[len(line) :] if content.startswith(line) else None
    except FileNotFoundError:
        return None


def is_shard_done(shard: Path, identity: str | None) -> bool:
    """Say whether a process of the run with this identity wrote and synced a shard: see `media_sums_if_done`."""
    return media_sums_if_done(shard, identity) is not None


def _first_line(shard: Path, identity: str) -> bytes:
    """Return the run, the shard's size, and a checksum of its index, which names every pack."""
    index = crc32(shard.with_suffix(".tar.idx").read_bytes())
    return json.dumps({"identity": identity, "size": shard.stat().st_size, "index_crc32": index}).encode() + b"\n"


def _done_file(shard: Path) -> Path:
    return shard.with_suffix(f".tar{DONE_SUFFIX}")
