"""Keep the rows of all packed items in one file, from which a loader's worker reads single rows and holds none.

Lengths ──write_rows──► rows.arrow: batches of `_BATCH` rows, not compressed ──memory map──► Rows[number]
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from energon_pack.dataset.plan_rows import PlanRow
from energon_pack.lengths.schema import LENGTHS_SCHEMA
from energon_pack.plan.items import Lengths
from energon_pack.samples.cut import with_cuts
from energon_pack.sources.rows import MeasuredRow, SampleRow, rows_of

Row = TypeVar("Row", bound=SampleRow)
_BATCH = 256  # rows that are read to get one row


@dataclass(slots=True)
class ItemRow(MeasuredRow):
    """A sample, or a part of one, that may be in a pack."""

    shard: int  # number of its source shard
    checksum: int  # checksum of its JSON and the ends of its media

    def of_pack(self, pack: str, shard: str) -> PlanRow:
        """Return this row as a row of a plan.

        Args:
            pack: key of the pack.
            shard: name of the source shard.
        """
        common = {field.name: getattr(self, field.name) for field in fields(MeasuredRow)}
        return PlanRow(**common, pack=pack, shard=shard)


_COLUMNS = [field.name for field in fields(MeasuredRow)]
_SCHEMA = pa.schema(
    [*(LENGTHS_SCHEMA.field(name) for name in _COLUMNS), ("shard", pa.int32()), LENGTHS_SCHEMA.field("checksum")]
)


def write_rows(path: Path, lengths: Lengths) -> None:
    """Write a row for each of `lengths.items`, in their order."""
    schema = with_cuts(_SCHEMA, lengths.cut_type)
    write_tables(path, _tables(lengths, schema), schema)


def write_tables(path: Path, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
    """Write the rows of all these tables to a file that `Rows` reads."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in _batches(tables, schema):
            writer.write_batch(batch)


def _tables(lengths: Lengths, schema: pa.Schema) -> Iterator[pa.Table]:
    for _, numbers, table in lengths.tables([*_COLUMNS, "checksum"]):
        shards = pa.array(numbers.astype(np.int32))
        yield table.add_column(len(_COLUMNS), "shard", shards).cast(schema)


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
        self._file: pa.ipc.RecordBatchFileReader | None = None

    def __getitem__(self, number: int) -> Row:
        batch = self._opened.get_batch(number // _BATCH).slice(number % _BATCH, 1)
        (row,) = rows_of(pa.Table.from_batches([batch]), self._form)
        return row

    def __len__(self) -> int:
        whole: int = self._opened.num_record_batches - 1
        return whole * _BATCH + int(self._opened.get_batch(whole).num_rows) if whole >= 0 else 0

    @property
    def _opened(self) -> pa.ipc.RecordBatchFileReader:
        if self._file is None:
            self._file = pa.ipc.open_file(pa.memory_map(str(self._path)))
        return self._file

    def __reduce__(self) -> Any:
        return Rows, (self._path, self._form)
