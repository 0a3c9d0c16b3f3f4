"""Read rows and cells of tables by number, whatever the file: Parquet, Arrow, CSV, TSV."""

import pyarrow as pa

from energon_pack.errors import PackError
from energon_pack.sources import arrow_rows, csv_rows, parquet_rows
from energon_pack.sources.other_formats import TABLE_SUFFIXES
from energon_pack.sources.storage import File


def table_extension(path: str) -> str:
    """Return the extension of a table in small letters, as `.csv`; raises PackError: it is called otherwise."""
    kind = next(filter(path.lower().endswith, TABLE_SUFFIXES), None)
    if kind is None:
        raise PackError(f"{path}: source=table reads *{', *'.join(TABLE_SUFFIXES)}")
    return kind


def is_text_table(path: str) -> bool:
    """Tell whether a table is a CSV or TSV, whose rows are texts at places of their own."""
    return table_extension(path) in (".csv", ".tsv")


def columnar_table_of(path: str) -> parquet_rows.ParquetTable | arrow_rows.ArrowTable:
    """Return a table whose rows are read in groups; raises PackError if it can't be read."""
    return arrow_rows.table_of(path) if table_extension(path) == ".arrow" else parquet_rows.table_of(path)


def column_names(path: str) -> list[str]:
    """Return the names of a table's columns; raises PackError if it can't be read."""
    if is_text_table(path):
        return csv_rows.cached_csv_table(path).columns
    table = columnar_table_of(path)
    schema: pa.Schema = table.schema if isinstance(table, arrow_rows.ArrowTable) else table.parquet.schema_arrow
    return [*schema.names]


def row_json(path: str, file: File, row_number: int, offset: int, size: int) -> bytes:
    """Return the JSON of a row, with names in place of bytes; raises Skip if it can't be read.

    `file`: the open table; `offset`, `size`: the place that the index names; only a CSV needs it.
    """
    if is_text_table(path):
        return csv_rows.row_json(path, file, row_number, offset, size)
    read_json = arrow_rows.row_json if table_extension(path) == ".arrow" else parquet_rows.row_json
    return read_json(path, file.version, row_number)


def open_cell(path: str, key: str) -> File:
    """Open one value of a table as a file of bytes, whose version is that of the table.

    `key`: number of the row, and the keys to the value in it, as `17/images/0/bytes`; KeyError: there is no such value.
    """
    if "/" not in key:  # a row, and no value of it
        raise KeyError(key)
    if is_text_table(path):
        return csv_rows.open_cell(path, key)
    return arrow_rows.open_cell(path, key) if table_extension(path) == ".arrow" else parquet_rows.open_cell(path, key)
