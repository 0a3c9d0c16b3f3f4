"""Keep the rows of samples in one file, from which a loader's worker reads single rows and holds none.

Lengths             ──write_measured──┐
list[IndexedShard]  ──write_index─────┴──► batches of `_BATCH` rows, not compressed ──memory map──► Rows[number]
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from energon_pack.dataset.files import PlanRow
from energon_pack.lengths.index import IndexedShard
from energon_pack.lengths.schema import LENGTHS_SCHEMA
from energon_pack.lengths.table_cache import in_chunks
from energon_pack.plan.items import Lengths
from energon_pack.samples.cut import with_cuts
from energon_pack.sources.rows import IndexRow, MeasuredRow, SampleRow, rows_of
from energon_pack.sources.wds import INDEX_SCHEMA

Row = TypeVar("Row", bound=SampleRow)
_BATCH = 256  # rows that are read to get one row


@dataclass(slots=True)
class IndexedRow(IndexRow):
    """The place of a sample that nobody has measured."""

    shard: int  # number of its source shard


@dataclass(slots=True)
class MeasuredItem(MeasuredRow):
    """A sample, or a part of one, that may be in a pack."""

    shard: int  # number of its source shard
    checksum: int  # checksum of its JSON and the ends of its media

    def in_plan(self, shard: str) -> PlanRow:
        """Return this row as a row of a plan, in no pack.

        Args:
            shard: name of the source shard.
        """
        common = {field.name: getattr(self, field.name) for field in fields(MeasuredRow)}
        return PlanRow(**common, pack="", shard=shard)


_COLUMNS = [field.name for field in fields(MeasuredRow)]
_MEASURED = pa.schema(
    [*(LENGTHS_SCHEMA.field(name) for name in _COLUMNS), ("shard", pa.int32()), LENGTHS_SCHEMA.field("checksum")]
)
_INDEXED = pa.schema([*INDEX_SCHEMA, ("shard", pa.int32())])


def write_measured(path: Path, lengths: Lengths) -> None:
    """Write a `MeasuredItem` for each of `lengths.items`, in their order."""
    schema = with_cuts(_MEASURED, lengths.cut_type)
    tables = (
        table.add_column(len(_COLUMNS), "shard", pa.array(numbers.astype(np.int32))).cast(schema)
        for _, numbers, table in lengths.tables([*_COLUMNS, "checksum"])
    )
    _write(path, tables, schema)


def write_index(path: Path, indexed: Sequence[IndexedShard]) -> None:
    """Write an `IndexedRow` for each draw of a sample, in the order of the source."""
    _write(path, _tables(indexed), _INDEXED)


def _tables(indexed: Sequence[IndexedShard]) -> Iterator[pa.Table]:
    for number, item in enumerate(indexed):
        tables = [chunk.read() for chunk in in_chunks([(number, item.pieces)])]
        table = pa.concat_tables([_INDEXED.empty_table().drop(["shard"]), *tables]).select(INDEX_SCHEMA.names)
        if item.rows is not None:
            table = table.take(pa.array(item.rows))
        yield table.append_column("shard", pa.array(np.full(table.num_rows, number, np.int32))).cast(_INDEXED)


def _write(path: Path, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in _batches(tables, schema):
            writer.write_batch(batch)


def _batches(tables: Iterator[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield batches of `_BATCH` rows, the last one smaller, so that a row's number gives its batch."""
    left = schema.empty_table()
    for table in tables:
        whole = pa.concat_tables([left, table])
        num = whole.num_rows // _BATCH * _BATCH
        yield from whole.slice(0, num).combine_chunks().to_batches(_BATCH)
        left = whole.slice(num)
    yield from left.combine_chunks().to_batches(_BATCH)


class Rows(Generic[Row]):
    """The rows of a file, each read on access; every process opens the file itself.

    Args:
        form: the class of the rows; its fields are the columns.
    """

    def __init__(self, path: Path, form: type[Row]):
        self._path, self._form = path, form

    def __getitem__(self, number: int) -> Row:
        batch = self._file.get_batch(number // _BATCH).slice(number % _BATCH, 1)
        (row,) = rows_of(pa.Table.from_batches([batch]), self._form)
        return row

    def __len__(self) -> int:
        whole: int = self._file.num_record_batches - 1
        return whole * _BATCH + int(self._file.get_batch(whole).num_rows) if whole >= 0 else 0

    @cached_property
    def _file(self) -> pa.ipc.RecordBatchFileReader:
        return pa.ipc.open_file(pa.memory_map(str(self._path)))

    def __reduce__(self) -> Any:
        return Rows, (self._path, self._form)
