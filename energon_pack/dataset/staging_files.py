"""The files of a run's staging folder, and the folders of runs: may one be written, and how is one removed?

Beside a shard that a process of a run finished stands `packed-000000.tar.done`. Its first line says of which run it is,
and of which bytes; behind it are the checksums of the shard's media, which nobody then has to read again.
"""

import json
import os
import shutil
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from energon_pack.dataset.files import PLAN
from energon_pack.errors import PackError
from energon_pack.run.files import TEMPORARY_SUFFIX, write_atomically

#: folder with what `stage=write` reads beside the plan, and its file that is written last
JOBS_FOLDER, ABOUT_FILE = ".jobs", "about.json"
IDENTITY_FILE, GONE_SUFFIX = ".identity", ".gone"
#: extension of the file that marks a finished shard
DONE_SUFFIX = ".done"


def mark_shard_done(shard: Path, identity: str, media_checksums: bytes) -> None:
    """Write the file beside a finished shard. `media_checksums`: see `dataset.files`."""
    write_atomically(_done_file(shard), _first_line(shard, identity) + media_checksums)


def read_media_checksums_if_done(shard: Path, identity: str | None) -> bytes | None:
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
    """Say whether a process of this run wrote and synced a shard, as `read_media_checksums_if_done` does."""
    return read_media_checksums_if_done(shard, identity) is not None


def _first_line(shard: Path, identity: str) -> bytes:
    """Return the run, the shard's size, and a checksum of its index, which names every pack."""
    index = crc32(shard.with_suffix(".tar.idx").read_bytes())
    return json.dumps({"identity": identity, "size": shard.stat().st_size, "index_crc32": index}).encode() + b"\n"


def _done_file(shard: Path) -> Path:
    return shard.with_suffix(f".tar{DONE_SUFFIX}")


def refuse_unwritable_folder(knob: str, folder: Path) -> None:
    """Raise PackError if no file can be written into a folder, or, if it is missing, into the first above it."""
    above = next((path for path in (folder, *folder.absolute().parents) if path.exists()), folder)
    try:
        with tempfile.TemporaryFile(dir=above) as file:
            file.write(b"energon_pack")
            file.flush()
    except OSError as error:
        raise PackError(f"{knob}={folder}: {above} can't be written: {error.strerror}; choose another {knob}") from None


def remove_folder(path: Path) -> None:
    """Remove a folder that another run may use: it is renamed first, so that the other run can't find it any more."""
    gone = path.with_name(f"{uuid.uuid4().hex}{GONE_SUFFIX}")
    with suppress(FileNotFoundError):
        os.rename(path, gone)
        shutil.rmtree(gone, ignore_errors=True)


def remove_run_files(staging: Path) -> None:
    """Remove all that a published dataset lacks: a plan's jobs, the marks of the run and of its shards, half a file."""
    shutil.rmtree(staging / JOBS_FOLDER, ignore_errors=True)
    left_by_kills = staging.glob(f"*{TEMPORARY_SUFFIX}")
    for path in (staging / IDENTITY_FILE, *staging.glob(f"*{DONE_SUFFIX}"), *left_by_kills):
        path.unlink(missing_ok=True)


def remove_all_but_shards(staging: Path, identity: str) -> None:
    """Remove everything but finished shards, and a plan, from a staging folder; make it if it does not exist."""
    if not staging.exists():
        staging.mkdir(parents=True)
        write_atomically(staging / IDENTITY_FILE, identity.encode())
    finished = {path.name.removesuffix(".idx") for path in staging.glob("*.tar.idx")}
    kept = {
        IDENTITY_FILE,
        JOBS_FOLDER,
        PLAN,
        *finished,
        *(f"{name}{end}" for name in finished for end in (".idx", DONE_SUFFIX)),
    }
    for path in staging.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
