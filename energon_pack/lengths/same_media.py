"""Find media files that changed since they were measured, and hash media, so that equal contents are known.

A file has changed if it has another size or version.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from energon_pack.errors import PackError
from energon_pack.lengths.table_cache import Chunk, Piece, chunks_of_pieces
from energon_pack.run.bounded_memory import LruCache
from energon_pack.run.executors import Executor
from energon_pack.run.seeded_random import Ints
from energon_pack.run.workshop import Workshop
from energon_pack.samples.media.medium import Media
from energon_pack.samples.sample import MediaPart
from energon_pack.samples.skip import Reason
from energon_pack.sources.reader import NOT_THERE, SourceReader, state_of_medium
from energon_pack.sources.shard import Shard
from energon_pack.sources.storage import FileState

_MEDIA_SKIP_REASONS = {
    reason.value for reason in (Reason.MISSING_MEDIA, Reason.UNREADABLE_MEDIA, Reason.UNSUPPORTED_MEDIA)
}
_JOB_ROWS = 50_000

_Job = tuple[dict[int, Shard], Chunk]  # the shards of a chunk by their numbers
#: For each stale row of a chunk: its number, the changed medium or the reason to be left out, the old message.
_StaleRowsOfChunk = list[tuple[int, str, str | None]]
#: Rows to measure again, ascending, by the number of their shard; a sample that was left out keeps its old message.
StaleRows = dict[int, dict[int, str | None]]


def stale_rows(shards: Sequence[Shard], pieces: Sequence[Sequence[Piece]], executor: Executor) -> StaleRows:
    """Return the samples to measure again: {index of the shard: {row number in its pieces: message or None}}.

    Such a sample has a media file that changed (None), or was left out because of missing, unreadable or unsupported
    media, for the reason that the message says.
    """
    stale: StaleRows = {}
    chunks = list(_chunks_with_files(shards, pieces))
    jobs = [_stale_rows_job(shards, chunk) for chunk in chunks]
    for chunk, changes in zip(chunks, executor.map(_stale_rows_of_chunk, jobs, are_short=True), strict=True):
        if changes:
            places = np.array([place for place, *_ in changes])
            numbers, rows = chunk.owners_of_rows[places].tolist(), chunk.row_numbers_in_owners[places].tolist()
            for number, row, (_, _, message) in zip(numbers, rows, changes, strict=True):
                stale.setdefault(number, {})[row] = message
    return stale


def rows_to_cache(table: pa.Table, numbers: Ints, rows: Ints, stale: StaleRows) -> npt.NDArray[np.bool_]:
    """Return for each measured row whether to write it to the cache: not if its sample is left out as it was before.

    `numbers` are the shard indices of the rows of `table`, `rows` their row numbers in these shards. If equal rows were
    written again, every run would get another identity.
    """
    if not stale:
        return np.ones(table.num_rows, np.bool_)
    messages = map(_skip_message, table["reason"].to_pylist(), table["detail"].to_pylist())
    places = zip(numbers.tolist(), rows.tolist(), messages, strict=True)
    return np.array([now is None or stale.get(number, {}).get(row) != now for number, row, now in places], np.bool_)


def _skip_message(reason: str | None, detail: str | None) -> str | None:
    return None if reason is None else f"{reason}: {detail}"


def refuse_changed_media(shards: Sequence[Shard], pieces: Sequence[Sequence[Piece]], workshop: Workshop) -> None:
    """Raise PackError if a media file changed since its sample was measured."""
    chunks = list(_chunks_with_files(shards, pieces))
    jobs = [_stale_rows_job(shards, chunk) for chunk in chunks]
    with workshop.progress.stage("compare", sum(chunk.num_rows for chunk in chunks), "samples") as advance:
        for chunk, changes in zip(
            chunks, workshop.executor.map(_stale_rows_of_chunk, jobs, are_short=True), strict=True
        ):
            advance(chunk.num_rows)
            changed = next(((place, why) for place, why, _ in changes if why not in _MEDIA_SKIP_REASONS), None)
            if changed is not None:
                path = shards[chunk.owners_of_rows[changed[0]]].path_of(changed[1])
                raise PackError(f"{path} changed since it was measured: run again; not published")


def _chunks_with_files(shards: Sequence[Shard], pieces: Sequence[Sequence[Piece]]) -> Iterator[Chunk]:
    with_files = [(number, pieces[number]) for number, shard in enumerate(shards) if shard.media_root is not None]
    return chunks_of_pieces(with_files, _JOB_ROWS)


def _stale_rows_job(shards: Sequence[Shard], chunk: Chunk) -> _Job:
    return {number: shards[number] for number in chunk.numbers}, chunk


def _stale_rows_of_chunk(job: _Job) -> _StaleRowsOfChunk:
    """Find the rows of a chunk with a changed medium, or with a reason to be left out that may no longer hold."""
    shards, chunk = job
    table = chunk.read(["reason", "detail", "files"])
    states: dict[str, FileState] = {}  # path → size and version
    changes: _StaleRowsOfChunk = []
    columns = (table[name].to_pylist() for name in ("reason", "detail", "files"))
    for row, (number, reason, detail, files) in enumerate(zip(chunk.owners_of_rows.tolist(), *columns, strict=True)):
        why, message = (reason, _skip_message(reason, detail)) if reason in _MEDIA_SKIP_REASONS else (None, None)
        for name, size, version in (file.values() for file in files or ()):
            path = shards[number].path_of(name)
            if path not in states:
                states[path] = state_of_medium(path) or NOT_THERE
            if states[path] != (size, version):
                why, message = name, None
                break
        if why:
            changes.append((row, why, message))
    return changes


_MAX_HASHES = 10_000  # media whose hashes are held


def can_share_beginning(media: Sequence[Media]) -> bool:
    """Tell whether samples with these media may share a beginning: none is a sound, or a video as a list of frames."""
    return all(medium.is_seen and not (medium.settings and medium.settings.list_of_frames) for medium in media)


class MediaHasher:
    """Reads media whole and hashes their bytes; caches the hashes of the last 10,000 media."""

    def __init__(self, reader: SourceReader):
        self._reader = reader
        self._known: LruCache[tuple[str, MediaPart], bytes] = LruCache(_MAX_HASHES)

    def hash_media_of_sample(
        self, shard: Shard, parts: Sequence[MediaPart], media: Sequence[Media]
    ) -> list[tuple[str, bytes]] | None:
        """Return the kind of each medium of a sample, and a 16-byte hash over its bytes, size and settings.

        Returns:
            None if a video is a list of frames, or a medium is a sound: beginnings of such a sample are never shared.
        """
        if not can_share_beginning(media):
            return None
        return [
            (medium.kind, blake2b(self._content(shard, part) + repr(medium).encode(), digest_size=16).digest())
            for part, medium in zip(parts, media, strict=True)
        ]

    def hash_first_medium(self, shard: Shard, parts: Sequence[MediaPart]) -> int | None:
        """Return 64 bits of the hash of the first medium's bytes, as an int; None: the sample has no media."""
        return int.from_bytes(self._content(shard, parts[0])[:8], "little") if parts else None

    def _content(self, shard: Shard, part: MediaPart) -> bytes:
        key = shard.path, part
        if (known := self._known.get(key)) is not None:
            return known
        data = self._reader.part_file(shard, part).read(part.offset, part.size)
        return self._known.put(key, blake2b(data, digest_size=16).digest())
