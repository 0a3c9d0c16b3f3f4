"""Read a table as a shard: a row is a sample; its media are cells of the table, or files beside it."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from energon_pack.samples.dialects.cells import with_lists_of_cells
from energon_pack.samples.dialects.interleaved import INTERLEAVED_FIELDS
from energon_pack.samples.dialects.rewrite import FILE_NAME_KEY
from energon_pack.samples.media.kinds import MEDIA_KEYS
from energon_pack.samples.settings import ReadSettings
from energon_pack.sources.arrow_rows import ArrowTable
from energon_pack.sources.csv_rows import delimiter_name, first_csv_places, index_csv
from energon_pack.sources.jsonl.line_index import file_digest, make_index_table
from energon_pack.sources.other_formats import TABLE_FILE
from energon_pack.sources.row_shard import RowShard
from energon_pack.sources.rows import SampleRow
from energon_pack.sources.sample_ratio import source_key
from energon_pack.sources.settings import Format
from energon_pack.sources.storage import File
from energon_pack.sources.table_rows import column_names, columnar_table_of, is_text_table, row_json, table_extension

_HASHED_HEAD_BYTES, _HASHED_TAIL_BYTES = 64 << 10, 1 << 20
#: a part of the key of kept lengths: the name that this class has had since they are kept
_KIND = ("energon_pack.sources.parquet_shard", "TableShard", 0)
_CALLED = {".parquet": "Parquet", ".arrow": "Arrow", ".csv": "CSV", ".tsv": "TSV"}
_USUAL_DELIMITERS = {".csv": ",", ".tsv": "tab"}


@dataclass(frozen=True)
class TableShard(RowShard):
    """A Parquet, an Arrow file, a CSV or a TSV; the key of a sample is the number of its row, from 0.

    The `record_offset` of a row is its number, or in a CSV its place.
    """

    names = TABLE_FILE
    format = Format.table
    has_splits = True

    @property
    def is_read_by_place(self) -> bool:
        return is_text_table(self.path)

    @property
    def called(self) -> str:
        kind = table_extension(self.path)
        usual = _USUAL_DELIMITERS.get(kind)
        delimiter = delimiter_name(self.path) if usual else None
        return _CALLED[kind] if delimiter == usual else f"{_CALLED[kind]} ({delimiter})"

    @property
    def identity(self) -> tuple[Any, ...]:
        return *super().identity, *_KIND

    def index(self) -> pa.Table:
        if is_text_table(self.path):
            return index_csv(self.path)
        table = columnar_table_of(self.path)
        sizes = np.repeat(np.array(table.text_lens, np.int64), table.group_lens)
        damage = table.damage if isinstance(table, ArrowTable) else []
        sizes = np.append(sizes, [0] * len(damage)).astype(np.int64)
        numbers = np.arange(len(sizes))
        return make_index_table(numbers, numbers, sizes, self.digest(), [detail for _, detail in damage], damage)

    def first_rows(self, number: int) -> list[SampleRow]:
        if is_text_table(self.path):
            places = first_csv_places(self.path, number)
        else:
            places = [(row, 0) for row in range(min(number, columnar_table_of(self.path).group_starts[-1]))]
        return [self._make_sample_row(*place) for place in enumerate(places)]

    def raw_of(self, file: File, row: SampleRow, lead: int = 0) -> bytes:
        number = int(source_key(row.key))
        return row_json(self.path, file, number, row.record_offset, row.record_size)

    @cached_property
    def _media_columns(self) -> dict[str, None]:
        names = {*MEDIA_KEYS, *INTERLEAVED_FIELDS.values()}
        return {name: None for name in column_names(self.path) if name in names or FILE_NAME_KEY.fullmatch(name)}

    def value(self, raw: bytes) -> Any:
        """Parse a row; a column of media that has nothing there is null, for a placeholder may have lost its medium."""
        return {**self._media_columns, **super().value(raw)}

    def _with_lists(self, value: Any, settings: ReadSettings) -> Any:
        return with_lists_of_cells(value, settings)

    def digest(self) -> str:
        """Hash all of a CSV; of others the size, first 64 KiB and last 1 MiB, where a Parquet names its columns."""
        if is_text_table(self.path):
            return file_digest(self.path)
        with self.open() as file:
            start = max(0, file.size - _HASHED_TAIL_BYTES)
            ends = file.read(0, _HASHED_HEAD_BYTES), file.read(start, file.size - start)
            return hashlib.sha256(b"".join(ends) + str(file.size).encode()).hexdigest()
