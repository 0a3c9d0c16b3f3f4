"""Read a table as a shard: a row is a sample; its media are cells of the table, or files beside it."""

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from energon_pack.sources.jsonl.line_index import index_table
from energon_pack.sources.parquet_rows import table_of, table_row
from energon_pack.sources.row_shard import RowShard
from energon_pack.sources.settings import Format
from energon_pack.sources.storage import File

_HASHED_HEAD_BYTES, _HASHED_TAIL_BYTES = 64 << 10, 1 << 20
#: a part of the key of kept lengths: the name that this class has had since they are kept
_KIND = ("energon_pack.sources.parquet_shard", "TableShard", 0)


@dataclass(frozen=True)
class TableShard(RowShard):
    """A Parquet file; the `record_offset` of a sample is the number of its row, from 0, as `datasets` counts rows."""

    names = re.compile(r"(?i)\.parquet$")
    format = Format.table
    is_read_by_place = False
    has_splits = True

    @property
    def called(self) -> str:
        return "Parquet"

    @property
    def identity(self) -> tuple[Any, ...]:
        return *super().identity, *_KIND

    def index(self) -> pa.Table:
        table = table_of(self.path)
        sizes = np.repeat(np.array(table.text_lens, np.int64), table.group_lens)
        numbers = np.arange(len(sizes))
        return index_table(numbers, numbers, sizes, self.digest())

    def _first_places(self, number: int) -> list[tuple[int, int]]:
        return [(row, 0) for row in range(min(number, table_of(self.path).first_rows[-1]))]

    def raw(self, file: File, offset: int, size: int) -> bytes:
        return table_row(self.path, self.version, offset)

    def digest(self) -> str:
        """Hash the file's size, first 64 KiB and last 1 MiB: the footer there holds the places of all columns."""
        with self.open() as file:
            start = max(0, file.size - _HASHED_TAIL_BYTES)
            ends = file.read(0, _HASHED_HEAD_BYTES), file.read(start, file.size - start)
            return hashlib.sha256(b"".join(ends) + str(file.size).encode()).hexdigest()
