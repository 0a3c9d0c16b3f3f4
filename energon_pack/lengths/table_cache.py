"""Keeps tables in a folder under keys, many small ones in a file, so that a few calls read thousands of them.

    keys ──add──► <hash of its bytes>.parquet: rows of many keys; its metadata says which rows belong to which key
    keys ──find──► pieces of files ──chunks_of_pieces──► rows in the order of the keys, some hundred thousand at a time

A file never changes: rows in a later file replace rows of the same key in an earlier file. The rows of a key may come
in several files, so finished rows are kept whenever a run ends. A file whose hash is not its name was cut or damaged:
it is removed, and its rows are missing again.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from energon_pack.errors import PackError
from energon_pack.run.files import digest_of, write_atomically
from energon_pack.run.seeded_random import Ints

_FILE_ROWS = 50_000  # a file is read whole, whichever of its rows are wanted
_FILE_RECORDS = 10_000
_FILE_SECONDS = 10.0  # seconds of work that a kill may cost
_CHUNK_ROWS = 200_000
_NUM_ROWS_IF_FORGOTTEN = -1
_NO_ROWS = np.zeros(0, np.int64)


class Piece(NamedTuple):
    """Consecutive rows of one Parquet file in the cache."""

    path: str
    first_row: int
    num_rows: int


class RowRun(NamedTuple):
    """Says to which key some consecutive rows of a file belong. The records of a file are in the order of its rows."""

    key: str
    start: int  # number of the first of them among the rows of the key
    num_rows: int  # _NUM_ROWS_IF_FORGOTTEN: no rows here, and the rows in older files do not count
    note: dict[str, str] | None = None


_FileRows = tuple[str, int, int, int, dict[str, str] | None]  # file, row of the file, row of the key, how many, note


class _UndamagedFiles(dict[str, bool]):
    """By path, whether the hash of a file is its name. Each file is checked once, and a damaged one is removed."""

    def __missing__(self, path: str) -> bool:
        try:
            self[path] = is_whole = digest_of(Path(path)) == Path(path).stem
        except FileNotFoundError:  # another run removed it first
            self[path] = is_whole = False
        if not is_whole:
            Path(path).unlink(missing_ok=True)
        return is_whole


class TableCache:
    """A cache on disk that finds table rows by key; they are in the Parquet files of one folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        #: number for the files that are written now: higher than the numbers of all existing files
        self.number = 0
        self._kept: dict[str, list[_FileRows]] = {}
        self._whole = _UndamagedFiles()
        self._waiting: list[pa.Table] = []
        self._records: list[RowRun] = []
        self._last = time.monotonic()
        files = [(*described, path) for path in folder.glob("*.parquet") if (described := _read_records(path))]
        for number, records, path in sorted(files, key=lambda item: (item[0], item[2])):
            self._register_records(path, number, records)

    def find(self, key: str, num_rows: int) -> tuple[list[Piece], Ints]:
        """Return the pieces of files with the rows of a key, in row order, and the row numbers that the cache lacks.

        Args:
            num_rows: the number of rows of the key, missing ones included.
        """
        kept = self._undamaged_rows(key)
        if len(kept) == 1 and kept[0][3] == num_rows:
            return [Piece(*kept[0][:2], num_rows)], _NO_ROWS
        owner = np.full(num_rows, -1)
        for number, (_, _, start, num, _) in enumerate(kept):
            owner[start : start + num] = number
        edges = [0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), num_rows]
        pieces = [
            Piece(item[0], item[1] + start - item[2], end - start)
            for start, end in pairwise(edges)
            if start < end and owner[start] >= 0 and (item := kept[owner[start]])
        ]
        return pieces, np.flatnonzero(owner < 0)

    def note(self, key: str) -> dict[str, str] | None:
        """Return the note of the newest record of a key; None: there is no such record, or it has no note."""
        kept = self._kept.get(key)
        return kept[-1][4] if kept else None

    def add(self, table: pa.Table, records: Iterable[RowRun]) -> None:
        """Buffer rows and their records, in equal order; `flush` after 50,000 rows, 10,000 records or 10 seconds."""
        self._waiting.append(table)
        self._records += records
        num_rows = sum(table.num_rows for table in self._waiting)
        is_late = time.monotonic() - self._last > _FILE_SECONDS
        if num_rows >= _FILE_ROWS or len(self._records) >= _FILE_RECORDS or is_late:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows to a file."""
        if self._waiting:
            waiting, records = pa.concat_tables(self._waiting), self._records
            self._waiting, self._records = [], []
            self.add_file(write_cache_file(self.folder, self.number, waiting, records))
        self._last = time.monotonic()

    def add_file(self, path: Path) -> None:
        """Make the rows of a file that `write_cache_file` wrote known to `find`."""
        described = _read_records(path)
        assert described is not None
        self._register_records(path, *described)

    def forget(self, keys: Iterable[str]) -> None:
        """Make `find` miss all rows of these keys, in this run and in later runs."""
        self.flush()
        records = [RowRun(key, 0, _NUM_ROWS_IF_FORGOTTEN) for key in keys]
        self.add_file(write_cache_file(self.folder, self.number, pa.table({"key": pa.array([], pa.string())}), records))

    def _register_records(self, path: Path, number: int, records: Sequence[Any]) -> None:
        self.number = max(self.number, number + 1)
        first, name, kept = 0, str(path), self._kept
        for key, start, num_rows, note in records:
            if num_rows == _NUM_ROWS_IF_FORGOTTEN:
                kept.pop(key, None)
                continue
            item = (name, first, start, num_rows, note)
            if key in kept:
                kept[key].append(item)
            else:
                kept[key] = [item]
            first += num_rows

    def _undamaged_rows(self, key: str) -> list[_FileRows]:
        kept = self._kept.get(key, [])
        return [item for item in kept if self._whole[item[0]]]


def write_cache_file(folder: Path, number: int, table: pa.Table, records: Sequence[RowRun]) -> Path:
    """Write rows to a new file of the cache, named after its hash; return its path.

    Args:
        number: orders the files: a row of a key replaces the same row in files with lower numbers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    about = {"number": str(number), "records": json.dumps(records)}
    file = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(about), file)
    data = file.getvalue()
    path = folder / f"{hashlib.sha256(data).hexdigest()}.parquet"
    write_atomically(path, data)
    return path


def _read_records(path: Path) -> tuple[int, list[Any]] | None:
    """Read the number and the records of a file; a file that can't be read is removed."""
    try:
        about = pq.read_metadata(path).metadata
        return int(about[b"number"]), json.loads(about[b"records"])
    except FileNotFoundError:  # another run found it damaged and removed it
        return None
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        path.unlink(missing_ok=True)
        return None


# ---------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Chunk:
    """Pieces that are read as one table. Each belongs to an owner, such as a shard, that is known by its index."""

    pieces: list[Piece]
    numbers: list[int]  # for each piece, the number of its owner
    starts: list[int]  # for each piece, the number of its first row among its owner's rows

    @property
    def num_rows(self) -> int:
        return sum(piece.num_rows for piece in self.pieces)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the rows of all pieces into one table, in order; `columns` None: all columns.

        Raises:
            PackError: a file of the cache was removed or damaged meanwhile.
        """
        paths = dict.fromkeys(piece.path for piece in self.pieces)
        tables = [_read(path, columns) for path in paths]
        offsets = np.cumsum([0, *(table.num_rows for table in tables)])
        offset = dict(zip(paths, offsets.tolist(), strict=False))
        table = pa.concat_tables(tables)
        rows = _join_ranges([offset[piece.path] + piece.first_row for piece in self.pieces], self._sizes)
        in_a_row = len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all()
        return table.slice(int(rows[0]), len(rows)) if in_a_row else table.take(pa.array(rows))

    @property
    def owners_of_rows(self) -> Ints:
        """Return for each row of the chunk the index of its owner."""
        return np.repeat(np.array(self.numbers, np.int64), self._sizes)

    @property
    def row_numbers_in_owners(self) -> Ints:
        """Return for each row of the chunk the number that it has in its owner."""
        return _join_ranges(self.starts, self._sizes)

    @property
    def _sizes(self) -> list[int]:
        return [piece.num_rows for piece in self.pieces]


def chunks_of_pieces(kept: Iterable[tuple[int, Sequence[Piece]]], max_rows: int = _CHUNK_ROWS) -> Iterator[Chunk]:
    """Group the pieces of owners (index, pieces) into chunks of at most `max_rows` rows, or of one larger piece."""
    chunk, num_rows = Chunk([], [], []), 0
    for number, pieces in kept:
        start = 0
        for piece in pieces:
            if chunk.pieces and num_rows + piece.num_rows > max_rows:
                yield chunk
                chunk, num_rows = Chunk([], [], []), 0
            chunk.pieces.append(piece)
            chunk.numbers.append(number)
            chunk.starts.append(start)
            start += piece.num_rows
            num_rows += piece.num_rows
    if chunk.pieces:
        yield chunk


def _read(path: str, columns: Sequence[str] | None) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            table = file.read(None if columns is None else list(columns))
    except (pa.ArrowException, OSError) as error:
        raise PackError(f"cache_dir: {path} changed while it was used ({error}): run again") from None
    return table.replace_schema_metadata(None)


def _join_ranges(starts: Sequence[int], sizes: Sequence[int]) -> Ints:
    """Join ranges: `sizes[0]` numbers from `starts[0]` on, then `sizes[1]` numbers from `starts[1]` on …"""
    counts = np.array(sizes, np.int64)
    before = np.cumsum(counts) - counts
    return np.repeat(np.array(starts, np.int64) - before, counts) + np.arange(counts.sum())


def key_of(*identity: Any) -> str:
    """Hash JSON values into a cache key of 24 hexadecimal digits."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
