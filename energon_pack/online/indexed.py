"""Read samples from files that nobody has measured, at the places that the source's index gives.

list[IndexedShard] ──write_index──► a row for each draw of a sample ──Indexed──► look, member
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from energon_pack.lengths.index import IndexedShard
from energon_pack.lengths.table_cache import in_chunks
from energon_pack.online.rows import Rows, write_tables
from energon_pack.samples.member import MemberInput
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.reader import Reader
from energon_pack.sources.rows import IndexRow
from energon_pack.sources.sample import ReadSample, read_sample
from energon_pack.sources.shard import Shard
from energon_pack.sources.wds import INDEX_SCHEMA
from energon_pack.templates.sample import Sample

_SCHEMA = pa.schema([*INDEX_SCHEMA, ("shard", pa.int32())])


@dataclass(slots=True)
class FoundRow(IndexRow):
    """The place of a sample in a source."""

    shard: int  # number of its source shard


def write_index(path: Path, indexed: Sequence[IndexedShard]) -> None:
    """Write a row for each draw of a sample, in the order of the source."""
    write_tables(path, _tables(indexed), _SCHEMA)


def _tables(indexed: Sequence[IndexedShard]) -> Iterator[pa.Table]:
    for number, item in enumerate(indexed):
        tables = [chunk.read() for chunk in in_chunks([(number, item.pieces)])]
        table = pa.concat_tables([_SCHEMA.empty_table().drop(["shard"]), *tables]).select(INDEX_SCHEMA.names)
        if item.rows is not None:
            table = table.take(pa.array(item.rows))
        yield table.append_column("shard", pa.array(np.full(table.num_rows, number, np.int32))).cast(_SCHEMA)


class Indexed:
    """Samples of a source by number; each process opens its own files.

    Args:
        shards: the source's shards; rows have an index into this list.
        settings: the settings by which samples are read.
        path: the file that `write_index` wrote.
    """

    def __init__(self, shards: Sequence[Shard], settings: ReadSettings, path: Path):
        self._shards, self._settings, self._path = list(shards), settings, path
        self._rows = Rows(path, FoundRow)
        self._reader: Reader | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def sample_id(self, number: int) -> str:
        """Return the id that the ledger uses."""
        row = self._rows[number]
        return self._shards[row.shard].sample_id(row.key)

    def look(self, number: int) -> Sample:
        """Return a sample with only the headers of its media read; raises Skip."""
        read, _ = self._read(number)
        return Sample(read.timed, read.media, read.tools, read.options)

    def member(self, number: int) -> MemberInput:
        """Return a sample with its media; raises Skip, and PackError if its file changed."""
        read, shard = self._read(number)
        return read.member(self.sample_id(number), [self._open.read(shard, part) for part in read.parts])

    def _read(self, number: int) -> tuple[ReadSample, Shard]:
        row = self._rows[number]
        if row.reason is not None:
            raise Skip(Reason(row.reason), row.detail or "")
        shard = self._shards[row.shard]
        return read_sample(self._open, shard, row, self._settings), shard

    @property
    def _open(self) -> Reader:
        if self._reader is None:
            self._reader = Reader()
        return self._reader

    def __reduce__(self) -> Any:
        return Indexed, (self._shards, self._settings, self._path)
