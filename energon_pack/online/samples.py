"""Samples by number, for packs that are made while loading, wherever the samples are.

number ──sample_for_measuring──► the conversation and its media by their headers: enough to count tokens
       ──member────────────────► the same with its images and videos: what training encodes
       ──sides…, sides─────────► both sides of a preference pair, likewise

In memory they are `user_dataset.UserSamples`; in files, `IndexedSamples`. Measured samples keep their rows in a file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from energon_pack.dataset.files import PlanRow
from energon_pack.lengths.index import IndexedShard
from energon_pack.lengths.schema import LENGTHS_SCHEMA
from energon_pack.lengths.table_cache import chunks_of_pieces
from energon_pack.plan.items import Lengths
from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.cut import member_id, schema_with_cut_type
from energon_pack.samples.member import MemberInput, Shared
from energon_pack.samples.pairs import cuts_of_pair
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.sample import cut_sample, read_sample
from energon_pack.sources.shard import Shard
from energon_pack.sources.source_file import IndexRow, MeasuredRow, SampleRow, rows_of
from energon_pack.sources.wds import INDEX_SCHEMA
from energon_pack.templates.sample import Sample

Row = TypeVar("Row", bound=SampleRow)
_ROWS_PER_BATCH = 256  # rows that are read to get one row


@dataclass(slots=True)
class SourceIndexRow(IndexRow):
    """The place of a sample in its source shard; its length was not measured."""

    shard: int  # number of its source shard


@dataclass(slots=True)
class MeasuredItem(PlanRow):
    """A measured sample, or a part of one, that plans may put into a pack; its field `pack` stays empty."""

    pack: str = ""
    shard: str = ""
    checksum: int = 0  # checksum of its JSON and the ends of its media


_MEASURED_COLUMNS = [column.name for column in fields(MeasuredRow)]
#: what an item shares with the one before it in its pack: a column of `MeasuredItem` → a count of `PrefixTrees.shared`
_SHARED_COLUMNS = {"shared_len": "token_len", "num_shared_images": "num_images", "num_shared_videos": "num_videos"}
_MEASURED_SCHEMA = pa.schema(
    [
        *(LENGTHS_SCHEMA.field(name) for name in _MEASURED_COLUMNS),
        ("shard", pa.string()),
        LENGTHS_SCHEMA.field("checksum"),
        *((name, pa.int32()) for name in _SHARED_COLUMNS),
    ]
)
_INDEXED_SCHEMA = pa.schema([*INDEX_SCHEMA, ("shard", pa.int32())])


def write_measured_rows(path: Path, lengths: Lengths) -> None:
    """Write a file of `MeasuredItem` rows, one for each of `lengths.items`, in their order."""
    schema, names = schema_with_cut_type(_MEASURED_SCHEMA, lengths.cut_type), pa.array(lengths.shard_names)
    shared = lengths.shared or dict.fromkeys(_SHARED_COLUMNS.values(), np.zeros(len(lengths.items), np.int32))

    def tables() -> Iterator[pa.Table]:
        for start, numbers, table in lengths.tables([*_MEASURED_COLUMNS, "checksum"]):
            table = table.add_column(len(_MEASURED_COLUMNS), "shard", names.take(pa.array(numbers)))
            for name, count in _SHARED_COLUMNS.items():
                table = table.append_column(name, pa.array(shared[count][start : start + table.num_rows]))
            yield table.cast(schema)

    _write_tables(path, tables(), schema)


def write_index(path: Path, indexed: Sequence[IndexedShard]) -> None:
    """Write a file of `SourceIndexRow` rows, one for each sample, in the order of the source.

    A sample that `indexed` draws several times has as many rows.
    """
    _write_tables(path, _index_tables(indexed), _INDEXED_SCHEMA)


def _index_tables(indexed: Sequence[IndexedShard]) -> Iterator[pa.Table]:
    for number, item in enumerate(indexed):
        tables = [chunk.read() for chunk in chunks_of_pieces([(number, item.pieces)])]
        table = pa.concat_tables([_INDEXED_SCHEMA.empty_table().drop(["shard"]), *tables]).select(INDEX_SCHEMA.names)
        if item.rows is not None:
            table = table.take(pa.array(item.rows))
        yield table.append_column("shard", pa.array(np.full(table.num_rows, number, np.int32))).cast(_INDEXED_SCHEMA)


def _write_tables(path: Path, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in _even_batches(tables, schema):
            writer.write_batch(batch)


def _even_batches(tables: Iterator[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield batches of `_ROWS_PER_BATCH` rows, the last one smaller, so that a row's number gives its batch."""
    rest = schema.empty_table()
    for table in tables:
        whole = pa.concat_tables([rest, table])
        num = whole.num_rows // _ROWS_PER_BATCH * _ROWS_PER_BATCH
        yield from whole.slice(0, num).combine_chunks().to_batches(_ROWS_PER_BATCH)
        rest = whole.slice(num)
    yield from rest.combine_chunks().to_batches(_ROWS_PER_BATCH)


class ArrowFileRows(Generic[Row]):
    """The rows of an Arrow file as objects of `row_class`, each read on access; every process opens the file itself."""

    def __init__(self, path: Path, row_class: type[Row]):
        self._path, self._row_class = path, row_class

    def __getitem__(self, number: int) -> Row:
        batch = self._file.get_batch(number // _ROWS_PER_BATCH).slice(number % _ROWS_PER_BATCH, 1)
        (row,) = rows_of(pa.Table.from_batches([batch]), self._row_class)
        return row

    def __len__(self) -> int:
        whole: int = self._file.num_record_batches - 1
        return whole * _ROWS_PER_BATCH + int(self._file.get_batch(whole).num_rows) if whole >= 0 else 0

    @cached_property
    def _file(self) -> pa.ipc.RecordBatchFileReader:
        return pa.ipc.open_file(pa.memory_map(str(self._path)))

    def __reduce__(self) -> Any:
        return ArrowFileRows, (self._path, self._row_class)


class MemberReader(Protocol):
    def __call__(self, row: PlanRow, *, checksum: int) -> MemberInput:
        """Read a measured sample with its media; raises SourceChanged if its file changed since it was measured."""


class Samples(Protocol):
    """A sequence of samples, each read by its number; their lengths are not measured yet."""

    def __len__(self) -> int: ...

    def sample_id(self, number: int) -> str:
        """Return the id of the sample `number`, for packs, errors and the ledger."""

    def sample_for_measuring(self, number: int) -> Sample:
        """Return the sample `number` for measuring its length, with only the headers of its media read; raises Skip."""

    def member(self, number: int) -> MemberInput:
        """Return the sample `number` for encoding, with media that are decoded when they are used; raises Skip."""

    def read_pair_sides_for_measuring(self, number: int) -> list[Sample]:
        """Return both sides of the pair `number`, as `sample_for_measuring`; only `source.take=both` asks for them."""

    def read_pair_sides(self, number: int) -> list[MemberInput]:
        """Return both sides of the pair `number`, as `member`; only `source.take=both` asks for them."""


def as_sample(read: ReadSample) -> Sample:
    """Return a sample that was read as a template takes it."""
    return Sample(read.timed_messages, read.media, read.tools, read.options)


def split_pair_into_sides(sample_id: str, pair: ReadSample) -> list[tuple[str, ReadSample]]:
    """Return both sides of a pair that was read, the chosen one first, each with its id."""
    cuts = cuts_of_pair(pair.messages, pair.kinds)
    return [(member_id(sample_id, cut.part), cut_sample(pair, cut)) for cut in cuts]


@dataclass
class IndexedSamples:
    """Samples in the files of a source, read by the places in an index; each process opens its own files."""

    shards: Sequence[Shard]
    settings: ReadSettings
    rows: ArrowFileRows[SourceIndexRow]
    reader: SourceReader = field(default_factory=SourceReader)

    def __len__(self) -> int:
        return len(self.rows)

    def sample_id(self, number: int) -> str:
        row = self.rows[number]
        return self.shards[row.shard].sample_id(row.key)

    def sample_for_measuring(self, number: int) -> Sample:
        return as_sample(self._read(number)[0])

    def member(self, number: int) -> MemberInput:
        read, shard = self._read(number)
        return read.member(self.sample_id(number), [self.reader.read(shard, part) for part in read.parts])

    def read_pair_sides_for_measuring(self, number: int) -> list[Sample]:
        return [as_sample(side) for _, side in split_pair_into_sides(self.sample_id(number), self._read(number)[0])]

    def read_pair_sides(self, number: int) -> list[MemberInput]:
        read, shard = self._read(number)
        media = [self.reader.read(shard, part) for part in read.parts]
        return [side.member(name, media) for name, side in split_pair_into_sides(self.sample_id(number), read)]

    def _read(self, number: int) -> tuple[ReadSample, Shard]:
        row = self.rows[number]
        if row.reason is not None:
            raise Skip(Reason(row.reason), row.detail or "")
        shard = self.shards[row.shard]
        return read_sample(self.reader, shard, row, self.settings), shard


@dataclass
class MeasuredSamples:
    """Measured samples by number, or parts of samples; `read` reads one from files or from a user's dataset."""

    rows: ArrowFileRows[MeasuredItem]
    read: MemberReader

    def sample_id(self, number: int) -> str:
        return self.rows[number].sample_id

    def member(self, number: int) -> MemberInput:
        row = self.rows[number]
        member = self.read(row, checksum=row.checksum)
        shared = Shared(row.shared_len, row.num_shared_images, row.num_shared_videos)
        return replace(member, shared=shared) if row.shared_len else member
