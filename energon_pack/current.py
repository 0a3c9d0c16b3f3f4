"""Whether media that are files of their own are still what was measured: their size and time tell."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from energon_pack.errors import PackError
from energon_pack.executor import LocalExecutor
from energon_pack.progress import Progress
from energon_pack.sample import Reason
from energon_pack.sources.find import Shard
from energon_pack.sources.reader import path_of, state_of

_MAY_BE_MENDED = {reason.value for reason in (Reason.MISSING_MEDIA, Reason.UNREADABLE_MEDIA, Reason.UNSUPPORTED_MEDIA)}


def stale_rows(job: tuple[Shard, Path]) -> list[int]:
    """Rows of a file of lengths to be measured again: a medium changed, or could not be read then."""
    return [row for row, why in _stale(*job) if why]


def check_media(lengths: Sequence[tuple[Shard, Path]], executor: LocalExecutor, progress: Progress) -> None:
    """Compare the media of samples that were measured with what is there now.

    Raises:
        PackError: one changed.
    """
    with_files = [(shard, path) for shard, path in lengths if shard.lines is not None]
    with progress.stage("compare", len(with_files), "files") as advance:
        for (shard, _), found in zip(with_files, executor.map(_first_changed, with_files), strict=True):
            advance(1)
            if found:
                raise PackError(f"{path_of(shard, found)} changed since it was measured: run again; not published")


def _first_changed(job: tuple[Shard, Path]) -> str | None:
    return next((why for _, why in _stale(*job) if why and why not in _MAY_BE_MENDED), None)


def _stale(shard: Shard, path: Path) -> "list[tuple[int, str | None]]":
    """Of each row the medium that changed, or the reason it was left out for that may hold no longer."""
    table = pq.read_table(path, columns=["reason", "files"])
    states: dict[str, tuple[int, int] | None] = {}
    found: list[tuple[int, str | None]] = []
    rows = zip(table["reason"].to_pylist(), table["files"].to_pylist(), strict=True)
    for row, (reason, files) in enumerate(rows):
        why = reason if reason in _MAY_BE_MENDED else None
        for name, size, mtime_ns in (file.values() for file in files or ()):
            if name not in states:
                states[name] = state_of(path_of(shard, name))
            if states[name] != (size, mtime_ns):
                why = name
                break
        found.append((row, why))
    return found
