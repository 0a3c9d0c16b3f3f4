"""Where a dataset appears: what is refused before any work, a staging folder meanwhile, one rename at the end."""

import fcntl
import glob
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

from energon_pack.dataset.files import PAGE
from energon_pack.dataset.losses import kept_ledger, page_beside
from energon_pack.dataset.manifest import MANIFEST, REPORT
from energon_pack.dataset.shards import parts_folder
from energon_pack.dataset.stored import discard_shards, publish_there, refuse_existing_there, refuse_unwritable_there
from energon_pack.errors import PackError, sized
from energon_pack.run.executors.shared.folder import refresh
from energon_pack.run.files import META_FOLDER, sync_file_system, write_whole
from energon_pack.run.stores import is_address, lies_in
from energon_pack.sources.shard import Source
from energon_pack.sources.storage import read_whole

_IDENTITY = ".identity"
_TERM = ".term-"


def refuse_source(final: Path | str, cache_dir: Path | str, source: Source) -> None:
    """Keep a run from writing into its source, and from reading what it writes.

    Args:
        final, cache_dir: addresses where they are strings.

    Raises:
        PackError: the dataset or the cache would lie in a folder of the source, or beside its tars, or around it.
    """
    for knob, path in (("output.dir", final), ("cache_dir", cache_dir)):
        if inside := source.around(path):
            raise PackError(f"{knob}: {path} lies in the source {inside}, which is never written to: choose another")
    if isinstance(final, str):
        inside = next((shard.path for shard in source.shards if lies_in(shard.path, final)), None)
        if inside is not None:
            raise PackError(f"the source {inside} lies in {final}: choose another output.dir or output.name")
        return
    media = {
        Path(shard.media_root).resolve()
        for shard in source.shards
        if shard.media_root and not is_address(shard.media_root)
    }
    around = next((folder for folder in sorted(source.beside | media) if folder.is_relative_to(final.resolve())), None)
    if around is not None:
        raise PackError(f"the source {around} lies in {final}: choose another output.dir or output.name")


def refuse_existing(final: Path | str, overwrite: bool) -> None:
    """Keep what is there already.

    Args:
        final: an address where it is a string.

    Raises:
        PackError: a dataset without `overwrite`, or anything else at all.
    """
    if isinstance(final, str):
        refuse_existing_there(final, overwrite)
        return
    if not final.exists() or (final.is_dir() and not any(final.iterdir())):
        return
    if not overwrite:
        raise PackError(f"{final} exists; output.overwrite=true replaces it, output.name=NAME writes beside it")
    if not (final / META_FOLDER / MANIFEST).exists():
        raise PackError(f"{final} is not a packed dataset, output.overwrite does not replace it: choose another name")


def refuse_unwritable(knob: str, folder: Path | str) -> None:
    """Write a file that has no name where a folder is, or would be: now, not after hours of measuring.

    Args:
        folder: an address where it is a string.

    Raises:
        PackError: that can't be done.
    """
    if isinstance(folder, str):
        refuse_unwritable_there(knob, folder)
        return
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), folder)
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"energon_pack")
            file.flush()
    except OSError as error:
        raise PackError(f"{knob}={folder}: {there} can't be written: {error.strerror}; choose another {knob}") from None


@contextmanager
def staging_folder(final: Path, identity: str, term: int | None = None) -> Iterator[Path]:
    """A folder on the output's file system for this run alone, with the shards that a killed run left finished.

    It goes once the dataset is published, or when nothing in it is of use; after a kill or an error it stays, for the
    next run of the same command.

    Args:
        identity: of all that the bytes of the shards depend on. What was left under another one is removed.
        term: which of several drivers, that follow each other, this is; None: it is the only one, and holds a lock. One
            that was taken for lost may wake up at any step: its successor renamed its folder, so it finds nothing there
            to write or to publish; and it takes none from those after it.

    Raises:
        PackError: another run is at work on the same dataset.
    """
    folder = final.parent / ".staging"
    folder.mkdir(parents=True, exist_ok=True)
    staging, old, lock_file = (folder / f"{final.name}{end}" for end in ("", ".old", ".lock"))
    with _locked(lock_file, final) if term is None else nullcontext():
        if term is not None:
            staging = _of_earlier_term(staging, term, lock_file, final)
        if old.exists() and not final.exists():  # a run was killed between the two renames of `publish`
            os.rename(old, final)
        for leftover in (old, parts_folder(staging)):
            shutil.rmtree(leftover, ignore_errors=True)
        _keep_shards(staging, identity)
        is_done = False
        try:
            yield staging
            is_done = True
        except (OSError, PackError):
            if term is not None and (not staging.exists() or _identity_of(staging) not in (identity, None)):
                raise _beside(final) from None
            raise
        finally:
            if (term is None or is_done) and not any(staging.glob("*.tar.idx")):
                shutil.rmtree(staging, ignore_errors=True)
            shutil.rmtree(parts_folder(staging), ignore_errors=True)
            if is_done:
                for left in folder.glob(f"{glob.escape(final.name)}{_TERM}*"):
                    shutil.rmtree(left, ignore_errors=True)
            if term is None:
                lock_file.unlink(missing_ok=True)
            with suppress(OSError):  # a staging folder is there
                folder.rmdir()


def _of_earlier_term(staging: Path, term: int, lock_file: Path, final: Path) -> Path:
    """The folder of a term, made of that of the term before it, or of what a run on one machine left."""
    mine = staging.with_name(f"{staging.name}{_TERM}{term:06d}")
    refresh(staging.parent)
    if staging.exists():
        with suppress(OSError), _locked(lock_file, final):
            os.rename(staging, mine)
            lock_file.unlink()
    found = {path.name.rpartition(_TERM)[2]: path for path in staging.parent.glob(f"{glob.escape(mine.name[:-6])}*")}
    for path in (found[number] for number in sorted(found) if number.isdecimal() and int(number) < term):
        shutil.rmtree(parts_folder(path), ignore_errors=True)
        with suppress(FileNotFoundError):  # its driver was not lost, and publishes it just now
            shutil.rmtree(mine, ignore_errors=True)
            os.rename(path, mine)
    return mine


def _keep_shards(staging: Path, identity: str) -> None:
    """Leave finished shards of the same run, and nothing else."""
    marker = staging / _IDENTITY
    if _identity_of(staging) != identity:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        write_whole(marker, identity.encode())
    indices = {path.name for path in staging.glob("*.tar.idx")}
    for path in staging.iterdir():
        if path.name not in indices and f"{path.name}.idx" not in indices and path != marker:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _identity_of(staging: Path) -> str | None:
    marker = staging / _IDENTITY
    return marker.read_text() if marker.exists() else None


def _beside(final: Path) -> PackError:
    return PackError(f"another run is writing {final}")


@contextmanager
def discarding_shards(staging: Path, stored: str | None = None) -> Iterator[None]:
    """Leave nothing for the next run to go on from where an error says that the shards are wrong.

    Args:
        stored: address of the folder in which they are instead.
    """
    try:
        yield
    except BaseException:
        if stored is not None:
            discard_shards(stored)
        for index in staging.glob("*.tar.idx"):
            index.unlink()
        raise


def refuse_little_space(staging: Path, num_bytes: int) -> None:
    """Keep a run from filling a disk.

    Args:
        num_bytes: of the shards that will be in the staging folder, those that are there among them.

    Raises:
        PackError: there is less room.
    """
    there = sum(path.stat().st_size for path in staging.glob("*.tar"))
    free = shutil.disk_usage(staging).free
    if num_bytes - there > free:
        raise PackError(
            f"output.dir: the shards take about {sized(num_bytes - there)}, and {sized(free)} are free"
            f" beside {staging}: nothing is written"
        )


def publish(staging: Path, final: Path, overwrite: bool, stored: str | None, identity: str) -> None:
    """Rename the finished folder into place; where its shards are on an object store, put it there.

    Args:
        stored: address of the dataset, or None.
        identity: as of `staging_folder`.

    Raises:
        PackError: a dataset appeared there meanwhile.
    """
    if stored is not None:
        publish_there(staging, stored, identity)
        return
    refuse_existing(final, overwrite)
    try:
        sync_file_system(staging)  # may take long: who is killed meanwhile goes on from these shards
    except OSError:
        (staging / _IDENTITY).unlink()  # no shard can be trusted
        raise
    if _identity_of(staging) != identity:  # of other machines, that meet in another cache_dir
        raise _beside(final)
    (staging / _IDENTITY).unlink()
    old = staging.with_name(f"{final.name}.old")
    if final.exists():
        os.rename(final, old)
    os.rename(staging, final)
    shutil.rmtree(old, ignore_errors=True)
    for path in (kept_ledger(final), page_beside(final, PAGE)):  # of an earlier run that published nothing
        path.unlink(missing_ok=True)


def announce(note: Path | None, report: Path) -> None:
    """Say which dataset appears, for one who takes over: this process may be lost before it has said that it is there.

    Args:
        note: None: nobody takes over.
        report: of the dataset; no other has the same.
    """
    if note is not None:
        write_whole(note, report.read_bytes())


def appeared(note: Path | None, final: str) -> dict[str, Any] | None:
    """The report of the dataset, where a driver that was lost or away has published just the one it did `announce`.

    Args:
        final: its folder, or its address.
    """
    report = None if note is None else read_whole(str(note))
    is_whole = report is not None and read_whole(f"{final}/{META_FOLDER}/dataset.yaml") is not None
    return dict(json.loads(report)) if report and is_whole and read_whole(f"{final}/{REPORT}") == report else None


@contextmanager
def _locked(path: Path, final: Path) -> Iterator[None]:
    while True:
        with open(path, "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _beside(final) from None
            if _is_still(lock, path):  # else its last owner removed it between our two calls
                yield
                return


def _is_still(file: IO[str], path: Path) -> bool:
    try:
        return os.fstat(file.fileno()).st_ino == os.stat(path).st_ino
    except FileNotFoundError:
        return False
