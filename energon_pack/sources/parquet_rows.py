"""Read rows and cells of Parquet.

    a.parquet ──row_json──► {"texts": […], "images": ["a.parquet::17/images/0/bytes"]} ──open_cell──► the image

A row becomes the JSON of a sample. Bytes and images in base64 become names, which `open_cell` opens.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from energon_pack.errors import PackError, format_bytes, one_line
from energon_pack.run.bounded_memory import LruCache
from energon_pack.run.untrusted_input import BoundExceeded, bounded_memory_and_time
from energon_pack.samples.bytes import as_file
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.named_bytes import json_with_media_names, medium_at
from energon_pack.sources.open_tables import (
    GroupKey,
    OpenTableCache,
    cached_row_json,
    cell_item,
    find_group_of_row,
    split_cell_key,
    turn_errors_into_pack_error,
    turn_errors_into_row_skip,
)
from energon_pack.sources.parquet_bytes import ColumnChunk, read_column_chunks
from energon_pack.sources.parquet_pages import (
    EACH_ELEMENT,
    BytesColumn,
    LeafPath,
    ValuePlace,
    is_readable_without_pyarrow,
    leaf_paths,
    plain_type,
    put_empty_bytes,
    read_bytes_column,
)
from energon_pack.sources.storage import File, FileState, InMemoryFile

#: bytes of a group of rows that are read at once
MAX_GROUP_BYTES = 1 << 30
#: the memory that a part of a file may take above that, by its bytes; texts are in it three times
MEMORY_PER_BYTE = 64
_MAX_ROWS_PER_BYTE = 8  # of a byte: a table of nothing, or of the same again and again, may have any number
_BUFFER_BYTES = 1 << 14  # small, because columns of images lie between columns of text


@dataclass
class ParquetTable:
    """An open Parquet file, whose rows are read one row group at a time."""

    file: File
    parquet: Any  # pyarrow's ParquetFile
    chunks: list[list[ColumnChunk]]  # the columns of each group
    group_lens: list[int]  # number of rows of each group
    text_lens: list[int]  # approximate bytes of a row's text, for each group

    def group_memory_limit(self, group: int) -> int:
        """Return how many bytes of memory reading a row group may take: 1 GiB, and 64 for each of its bytes on disk."""
        return MAX_GROUP_BYTES + MEMORY_PER_BYTE * min(sum(chunk.size for chunk in self.chunks[group]), self.file.size)

    @cached_property
    def group_starts(self) -> list[int]:
        """Return the number, in the file, of each row group's first row, and at the end the number of all rows."""
        return list(accumulate(self.group_lens, initial=0))

    @cached_property
    def bytes_columns(self) -> dict[LeafPath, int]:
        """Return the columns of bytes: the path to their values in a row (as of `leaf_paths`) → the column's number."""
        columns = enumerate(leaf_paths(self.parquet.schema_arrow))
        return {way: number for number, way in columns if not _is_text(self.parquet.schema.column(number))}

    @cached_property
    def texts(self) -> list[str]:
        """Return the names of the columns that hold no bytes, as pyarrow's readers take them."""
        leaves = map(self.parquet.schema.column, range(len(self.parquet.schema)))
        return [leaf.path for leaf in leaves if _is_text(leaf)]


def _read_table(path: str, file: File) -> ParquetTable:
    with bounded_memory_and_time(2 * (MAX_GROUP_BYTES + MEMORY_PER_BYTE * file.size)):
        table = _table_of_file(path, file)
    if table.group_starts[-1] > _MAX_ROWS_PER_BYTE * file.size:
        raise PackError(
            f"{path} has {table.group_starts[-1]:,} rows in {format_bytes(file.size)}: that is no table of samples"
        )
    return table


def _table_of_file(path: str, file: File) -> ParquetTable:
    parquet = pq.ParquetFile(as_file(file, _BUFFER_BYTES))
    chunks = read_column_chunks(file)
    leaves = [number for number in range(len(parquet.schema)) if _is_text(parquet.schema.column(number))]
    texts = [sum(group[number].plain_size for number in leaves) for group in chunks]
    lens = [parquet.metadata.row_group(number).num_rows for number in range(parquet.num_row_groups)]
    if sum(lens) != parquet.metadata.num_rows or min(lens, default=0) < 0:
        raise ValueError(f"its row groups do not have its {parquet.metadata.num_rows} rows")
    _check_sizes(path, chunks, {*leaves}, [way.count(EACH_ELEMENT) > 1 for way in leaf_paths(parquet.schema_arrow)])
    text_lens = [max(1, size // max(1, num)) for size, num in zip(texts, lens, strict=True)]
    return ParquetTable(file, parquet, chunks, lens, text_lens)


def _check_sizes(path: str, groups: Sequence[Sequence[ColumnChunk]], texts: set[int], are_deep: Sequence[bool]) -> None:
    """Raise PackError if a row group has too many bytes (`MAX_GROUP_BYTES`) in columns that are read at once.

    Args:
        texts: the numbers of the columns that hold no bytes.
        are_deep: for each column, whether it is in two or more nested lists.
    """
    for number, group in enumerate(groups):
        of_bytes = {*range(len(group))} - texts
        is_whole = any(are_deep[leaf] or not is_readable_without_pyarrow(group[leaf]) for leaf in of_bytes)
        size = sum(chunk.plain_size for leaf, chunk in enumerate(group) if is_whole or leaf in texts)
        if size > MAX_GROUP_BYTES:
            raise PackError(f"{path}: row group {number} has {format_bytes(size)} that are read at once: {_ADVICE}")


def _is_text(leaf: Any) -> bool:
    return bool(leaf.physical_type != "BYTE_ARRAY" or leaf.logical_type.type in _TEXT_TYPES)


_TEXT_TYPES = ("STRING", "JSON", "DECIMAL")  # DuckDB writes JSON
_ADVICE = "write it in groups of 200 rows (iter_batches of pyarrow's ParquetFile, ParquetWriter.write_batch)"
#: opening a table with 1,000 row groups takes 0.3 s, and 7 times its footer's bytes
_open_tables = OpenTableCache(
    _read_table, 256 << 20, lambda table: max(1 << 20, 7 * table.parquet.metadata.serialized_size)
)
#: a group, and whether its bytes are there → its rows, or why they can't be read
_kept_groups: LruCache[tuple[GroupKey, bool], pa.Table | BoundExceeded] = LruCache(
    128 << 20, lambda group: group.nbytes if isinstance(group, pa.Table) else 0
)
#: a group and a leaf → where its values are; None: only pyarrow can read it
_kept_columns: LruCache[tuple[GroupKey, int], tuple[BytesColumn | None]] = LruCache(
    256 << 20, lambda kept: kept[0].memory_bytes if kept[0] else 0
)


def table_of(path: str) -> ParquetTable:
    """Return the table of a Parquet file, opened if it was not; raises PackError if it can't be read as Parquet."""
    with turn_errors_into_pack_error(path, "parquet"):
        return _open_tables.get(path)[1]


def row_json(path: str, version: str, row_number: int) -> bytes:
    """Return the JSON of a row, with names in place of bytes; raises Skip if the row can't be read.

    `version`: the file's version when it was found; `row_number`: the row's number in the file, from 0.
    """
    with turn_errors_into_row_skip(row_number):
        table, key, row = find_group_of_row(_open_tables, path, version, row_number)
        try:
            return cached_row_json(path, version, row_number, partial(_rows_as_json, table, key, row))
        except BoundExceeded:
            raise Skip(
                Reason.INVALID_JSON, f"row group {key[2]} takes more than {format_bytes(MAX_GROUP_BYTES)}: {_ADVICE}"
            ) from None


def _rows_as_json(table: ParquetTable, key: GroupKey, first: int, number: int) -> list[bytes]:
    """Return the JSON of rows of a group, with names in place of bytes; raises BoundExceeded."""
    path, _, index = key
    name, start = os.path.basename(path), table.group_starts[index] + first
    with bounded_memory_and_time(table.group_memory_limit(index)):
        values = _rows_without_bytes(table, key, first, number)
        values = _read_group(table, key).slice(first, number).to_pylist() if values is None else values
        return [json_with_media_names(row, f"{name}::{start + place}") for place, row in enumerate(values)]


def _rows_without_bytes(table: ParquetTable, key: GroupKey, first: int, number: int) -> list[Any] | None:
    """Read some rows of a group with b"" in place of any bytes; None: the group has to be read whole."""
    columns = []
    for way, leaf in table.bytes_columns.items():
        column = _bytes_column(table, key, leaf)
        if column is None or way.count(EACH_ELEMENT) > 1:
            return None
        columns.append((way, column))
    number = min(number, table.group_lens[key[2]] - first)
    rows = _read_group(table, key, has_bytes=False).slice(first, number).to_pylist() if table.texts else []
    rows = rows or [{} for _ in range(number)]
    for way, column in columns:
        for place, row in enumerate(rows):
            put_empty_bytes(row, way, column.are_not_null(first + place))
    return rows


class _CellFile(File):
    """A value of a column of bytes as a file; the table is opened again if it was closed between reads."""

    def __init__(self, path: str, version: str, value: ValuePlace):
        super().__init__(FileState(value.size, version))
        self._path, self._value = path, value

    def read(self, offset: int, size: int) -> bytes:
        try:
            return self._value.read(_open_tables.get(self._path, self.version)[0], offset, size)
        except pa.ArrowException as error:
            raise OSError(None, one_line(error)) from None


def open_cell(path: str, key: str) -> File:
    """Open one value of a Parquet file as a file of bytes, whose version is that of the Parquet file.

    `key`: number of the row, and the keys to the value in it, as `17/images/0/bytes`; KeyError: there is no such value.
    """
    number, way = split_cell_key(key)
    try:
        version = _open_tables.get(path)[0].version
        table, group, row = find_group_of_row(_open_tables, path, version, number)
        if value := _find_in_page(table, group, row, [unquote(step) for step in way]):
            return _CellFile(path, version, value)
        data = medium_at(way, partial(cell_item, _read_group(table, group), row), lambda scalar: scalar.as_py())
    except (pa.ArrowException, BoundExceeded) as error:
        raise Skip(Reason.UNREADABLE_MEDIA, f"{key!r} of the table: {one_line(error)}") from None
    return InMemoryFile(data, version)


def _find_in_page(table: ParquetTable, group: GroupKey, row: int, way: list[str]) -> ValuePlace | None:
    """Return the place of a value, by its row in the group, and the keys to it; None: pyarrow has to read it."""
    lists = [step for step in way[1:] if step.isdecimal()]
    if len(lists) > 1:
        return None
    leaf = table.bytes_columns.get((way[0], *(EACH_ELEMENT if step.isdecimal() else step for step in way[1:])))
    column = None if leaf is None else _bytes_column(table, group, leaf)
    return None if column is None else column.value_place(row, int(lists[0]) if lists else 0)


def _bytes_column(table: ParquetTable, group: GroupKey, leaf: int) -> BytesColumn | None:
    """Find the values of the bytes column with the number `leaf` in a row group; None: only pyarrow can read them."""
    kept = _kept_columns.get((group, leaf))
    if kept is None:
        try:
            with bounded_memory_and_time(table.group_memory_limit(group[2])):
                schema = table.parquet.schema.column(leaf)
                column = read_bytes_column(table.file, group[:2], table.chunks[group[2]][leaf], schema)
        # It is damaged: pyarrow reports it.
        except (BoundExceeded, pa.ArrowException, OSError, ValueError, LookupError, TypeError):
            column = None
        if column is not None and len(column.first_values) - 1 != table.group_lens[group[2]]:
            column = None
        kept = _kept_columns.put((group, leaf), (column,))
    return kept[0]


def _read_group(table: ParquetTable, key: GroupKey, has_bytes: bool = True) -> pa.Table:
    """Return the rows of a group, with or without columns of bytes, and keep them; raises BoundExceeded."""
    kept = _kept_groups.get((key, has_bytes))
    if kept is None:
        try:
            with bounded_memory_and_time(table.group_memory_limit(key[2])):
                kept = table.parquet.read_row_group(key[2], None if has_bytes else table.texts, use_threads=False)
                plain = pa.schema([field.with_type(plain_type(field.type)) for field in kept.schema])
                kept = kept if plain.equals(kept.schema) else kept.cast(plain, safe=False)
        except BoundExceeded as error:
            kept = error
        _kept_groups.put((key, has_bytes), kept)
    if isinstance(kept, BoundExceeded):
        raise BoundExceeded(str(kept))
    return kept
