"""Whether media that are files of their own are still what was measured: their size and version tell."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from energon_pack.errors import PackError
from energon_pack.lengths.table_cache import Chunk, Piece, in_chunks
from energon_pack.run.context import Run
from energon_pack.run.executors import Executor
from energon_pack.run.seeded import Ints
from energon_pack.samples.skip import Reason
from energon_pack.sources.reader import state_of
from energon_pack.sources.shard import Shard
from energon_pack.sources.storage import State

_MAY_BE_MENDED = {reason.value for reason in (Reason.MISSING_MEDIA, Reason.UNREADABLE_MEDIA, Reason.UNSUPPORTED_MEDIA)}
_JOB_ROWS = 50_000

_Job = tuple[dict[int, Shard], Chunk]  # the shards of a chunk by number
_Found = list[tuple[int, str]]  # of the rows of a chunk, which, and the medium that changed


def stale_rows(shards: Sequence[Shard], pieces: Sequence[Sequence[Piece]], executor: Executor) -> dict[int, Ints]:
    """Samples to be measured again: a medium changed, or could not be read then.

    Args:
        pieces: of each shard, where its lengths are, from its first row on.

    Returns:
        By the number of the shard the rows, ascending.
    """
    stale: dict[int, Ints] = {}
    chunks = list(_chunks(shards, pieces))
    jobs = (_job(shards, chunk) for chunk in chunks)
    for chunk, found in zip(chunks, executor.map(_stale, jobs, are_short=True), strict=True):
        if found:
            places = np.array([place for place, _ in found])
            numbers, rows = chunk.numbers_of_rows[places], chunk.rows[places]
            for number in np.unique(numbers).tolist():
                before = stale.get(number, np.zeros(0, np.int64))
                stale[number] = np.concatenate((before, rows[numbers == number]))
    return stale


def check_media(shards: Sequence[Shard], pieces: Sequence[Sequence[Piece]], run: Run) -> None:
    """Compare the media of samples that were measured with what is there now.

    Raises:
        PackError: one changed.
    """
    chunks = list(_chunks(shards, pieces))
    jobs = (_job(shards, chunk) for chunk in chunks)
    with run.progress.stage("compare", sum(chunk.num_rows for chunk in chunks), "samples") as advance:
        for chunk, found in zip(chunks, run.executor.map(_stale, jobs, are_short=True), strict=True):
            advance(chunk.num_rows)
            changed = next(((place, why) for place, why in found if why not in _MAY_BE_MENDED), None)
            if changed is not None:
                path = shards[chunk.numbers_of_rows[changed[0]]].path_of(changed[1])
                raise PackError(f"{path} changed since it was measured: run again; not published")


def _chunks(shards: Sequence[Shard], pieces: Sequence[Sequence[Piece]]) -> Iterator[Chunk]:
    with_files: Iterable[tuple[int, Sequence[Piece]]] = (
        (number, pieces[number]) for number, shard in enumerate(shards) if shard.media_root is not None
    )
    return in_chunks(with_files, _JOB_ROWS)


def _job(shards: Sequence[Shard], chunk: Chunk) -> _Job:
    return {number: shards[number] for number in chunk.numbers}, chunk


def _stale(job: _Job) -> _Found:
    """Rows of a chunk with a medium that changed, or with a reason to be left out that may hold no longer."""
    shards, chunk = job
    table = chunk.read(["reason", "files"])
    states: dict[str, State | None] = {}  # by path
    found: _Found = []
    rows = zip(chunk.numbers_of_rows.tolist(), table["reason"].to_pylist(), table["files"].to_pylist(), strict=True)
    for row, (number, reason, files) in enumerate(rows):
        why = reason if reason in _MAY_BE_MENDED else None
        for name, size, version in (file.values() for file in files or ()):
            path = shards[number].path_of(name)
            if path not in states:
                states[path] = state_of(path)
            if states[path] != (size, version):
                why = name
                break
        if why:
            found.append((row, why))
    return found
