"""Read rows and cells of Arrow: files, and streams as `datasets` writes them.

    a.arrow ──messages──► batches ──one row──► {"image": "a.arrow::17/image/bytes"} ──► the image

The bytes of cells stay where they lie: a file of this machine is mapped into memory, and of one on a store one batch is
read at a time.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa

from energon_pack.errors import PackError, format_bytes, one_line
from energon_pack.run.bounded_memory import LruCache
from energon_pack.run.untrusted_input import BoundExceeded, bounded_memory_and_time
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.named_bytes import decode_medium_bytes, json_with_media_names, value_at
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
from energon_pack.sources.parquet_pages import plain_type
from energon_pack.sources.storage import File, FileState, InMemoryFile

_FILE_MAGIC = b"ARROW1\0\0"  # of a file: a stream lies behind it
_CONTINUES = b"\xff\xff\xff\xff"  # before the length of a message, since Arrow 0.15
_TAIL_BYTES = 10  # of a file: the length of its footer, and the magic bytes
_BUFFER_BYTES = 1 << 10
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3  # kinds of messages
_MAX_BATCH_BYTES = 1 << 30  # of a batch that is read at once
_MEMORY_PER_BYTE = 64  # of a compressed batch
_MAX_ROWS_PER_BYTE = 8  # a batch of nothing may have any number


class _Message(NamedTuple):
    kind: int
    offset: int
    size: int
    num_rows: int  # of a batch
    is_compressed: bool


@dataclass
class ArrowTable:
    """An open Arrow file or stream."""

    file: File
    name: str
    head: list[_Message]  # its schema and dictionaries
    batches: list[_Message]
    #: offset and description of the place where it breaks off
    damage: list[tuple[int, str]]
    #: whether a dictionary may be replaced behind the batches that it is for
    is_stream: bool
    #: what each message has before it, and the schema of a file that polars writes has not
    schema_lead: bytes = b""

    @cached_property
    def _mapped(self) -> "pa.Buffer | None":
        mapped = None if self.file.fd is None else mmap.mmap(self.file.fd, 0, access=mmap.ACCESS_READ)
        return mapped and pa.py_buffer(mapped)

    def _bytes_of(self, message: _Message) -> pa.Buffer:
        kind, offset, size, *_ = message
        if kind == _SCHEMA:
            return pa.py_buffer(self.schema_lead + self.file.read(offset, size))
        return (
            pa.py_buffer(self.file.read(offset, size)) if self._mapped is None else self._mapped[offset : offset + size]
        )

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.ipc.read_schema(self._bytes_of(self.head[0]))

    @cached_property
    def group_starts(self) -> list[int]:
        """Return the number, in the file, of each batch's first row, and at the end the number of all rows."""
        return list(accumulate((batch.num_rows for batch in self.batches), initial=0))

    @property
    def group_lens(self) -> list[int]:
        return [batch.num_rows for batch in self.batches]

    @cached_property
    def text_lens(self) -> list[int]:
        """Return the approximate bytes of a row's text, for each batch: by the columns without bytes of the first."""
        share = 1.0
        with suppress(pa.ArrowException, BoundExceeded, OSError, ValueError):  # a damaged batch costs its own rows
            first = self.read(0) if self.batches else pa.record_batch({})
            texts = sum(column.nbytes for column in first.columns if not _has_bytes(column.type))
            share = texts / max(1, first.nbytes)
        return [max(1, int(batch.size * share) // max(1, batch.num_rows)) for batch in self.batches]

    def copies_batch_on_read(self, batch: _Message) -> bool:
        """Tell whether reading a batch takes memory; else its values are those of the mapped file."""
        return self._mapped is None or batch.is_compressed or len(self.head) > 1

    def read(self, number: int) -> pa.RecordBatch:
        """Read a batch, and check that its offsets and texts are valid."""
        message = self.batches[number]
        with bounded_memory_and_time(_MAX_BATCH_BYTES + _MEMORY_PER_BYTE * message.size):
            data = self._bytes_of(message)
            if len(self.head) == 1:
                batch = pa.ipc.read_record_batch(pa.ipc.read_message(data), self.schema)
            else:
                before = [each for each in self.head if not self.is_stream or each.offset < message.offset]
                stream = pa.BufferReader(b"".join(map(memoryview, [*map(self._bytes_of, before), data])))
                batch = pa.ipc.open_stream(stream).read_next_batch()
            batch.validate(full=True)
        return batch


def _read_table(path: str, file: File) -> ArrowTable:
    start = len(_FILE_MAGIC) if file.read(0, 6) == _FILE_MAGIC[:6] else 0
    table = ArrowTable(file, os.path.basename(path), [], [], [], start == 0)
    try:
        if start and _schema_lacks_length(file, start):
            begin, start = start, _first_block_offset(file)
            table.head.append(_Message(_SCHEMA, begin, start - begin, 0, False))
            table.schema_lead = _CONTINUES + struct.pack("<i", start - begin)
        for message in _messages(file, start):
            (table.batches if message.kind == _BATCH else table.head).append(message)
    except (ValueError, struct.error) as error:
        end = max((message.offset + message.size for message in (*table.head, *table.batches)), default=0)
        table.damage.append(
            (end, str(error) if isinstance(error, ValueError) else "it breaks off, without a mark of its end")
        )
    if not table.head or table.head[0].kind != _SCHEMA:
        raise ValueError("it does not begin with a schema")
    large = next(
        (each for each in table.batches if table.copies_batch_on_read(each) and each.size > _MAX_BATCH_BYTES), None
    )
    if large is not None:
        raise PackError(
            f"{path} has a batch of {format_bytes(large.size)}, which is read at once: write smaller ones (in"
            " datasets.save_to_disk more shards, num_shards=…)"
        )
    return table


def _messages(file: File, start: int) -> Iterator[_Message]:
    """Yield the messages of a stream; raises ValueError or struct.error if one is not whole, or no end is there."""
    offset = start
    while True:
        head = file.read(offset, 8)
        lead = 8 if head.startswith(_CONTINUES) else 4
        (size,) = struct.unpack_from("<i", head, lead - 4)
        if size == 0:
            return
        described = file.read(offset + lead, min(max(size, 0), file.size))
        kind, header, body = _read_message_header(described)
        whole = lead + size + body
        if size < 0 or body < 0 or offset + whole > file.size:
            raise ValueError(
                f"it breaks off within a batch of {whole:,} bytes, of which {file.size - offset:,} are there"
            )
        is_batch = kind == _BATCH
        num_rows = _field(described, header, 0, "<q") if is_batch else 0
        if not 0 <= num_rows <= _MAX_ROWS_PER_BYTE * file.size:
            raise ValueError(f"a batch has {num_rows:,} rows in {whole:,} bytes: that is no table of samples")
        yield _Message(kind, offset, whole, num_rows, is_batch and _field(described, header, 3, "<I") != 0)
        offset += whole


def _schema_lacks_length(file: File, start: int) -> bool:
    """Tell whether the schema of a file stands there without its length before it, as polars writes it."""
    head = file.read(start, _BUFFER_BYTES)
    with suppress(struct.error):
        return not head.startswith(_CONTINUES) and _read_message_header(head)[0] == _SCHEMA
    return False


def _first_block_offset(file: File) -> int:
    """Return where the first dictionary or batch lies; raises ValueError or struct.error if the footer is damaged."""
    end = file.size - _TAIL_BYTES
    (size,) = struct.unpack("<I", file.read(end, 4))
    footer = file.read(max(0, end - size), size)
    (root,) = struct.unpack_from("<I", footer)
    offsets = list[int]()
    for place in filter(None, (_place_of_field(footer, root, slot) for slot in (2, 3))):
        begin = place + struct.unpack_from("<I", footer, place)[0] + 4
        (number,) = struct.unpack_from("<I", footer, begin - 4)
        offsets += (block[0] for block in struct.iter_unpack("<q16x", footer[begin : begin + 24 * number]))
    first = min(offsets, default=end - size - len(_CONTINUES) - 4)
    if not len(_FILE_MAGIC) < first <= end:
        raise ValueError(f"its footer names byte {first}")
    return first


def _read_message_header(message: bytes) -> tuple[int, int, int]:
    """Return kind, place of the header, and bytes of the body of a message: a table of Message.fbs, in FlatBuffers."""
    (root,) = struct.unpack_from("<I", message)
    place = _place_of_field(message, root, 2)
    return (
        _field(message, root, 1, "<B"),
        place + struct.unpack_from("<I", message, place)[0],
        _field(message, root, 3, "<q"),
    )


def _field(message: bytes, table: int, slot: int, form: str) -> int:
    """Return a number in a table of FlatBuffers; 0 if it is not there."""
    place = _place_of_field(message, table, slot)
    return int(struct.unpack_from(form, message, place)[0]) if place else 0


def _place_of_field(message: bytes, table: int, slot: int) -> int:
    names = table - struct.unpack_from("<i", message, table)[0]
    (size,) = struct.unpack_from("<H", message, names)
    offset = struct.unpack_from("<H", message, names + 4 + 2 * slot)[0] if 4 + 2 * slot < size else 0
    return table + offset if offset else 0


_open_tables = OpenTableCache(_read_table)
#: the rows of a batch, and the bytes of memory that they take
_kept_batches: LruCache[GroupKey, tuple[pa.RecordBatch, int]] = LruCache(64 << 20, lambda kept: kept[1])


def table_of(path: str) -> ArrowTable:
    """Return the table of an Arrow file, opened if it was not; raises PackError if it can't be read as Arrow."""
    with turn_errors_into_pack_error(path, "Arrow"):
        _, table = _open_tables.get(path)
        _ = table.text_lens
        return table


def row_json(path: str, version: str, row_number: int) -> bytes:
    """Return the JSON of a row, with names in place of bytes; raises Skip if the row can't be read.

    `version`: the file's version when it was found; `row_number`: the row's number in the file, from 0.
    """
    with turn_errors_into_row_skip(row_number):
        table, key, row = find_group_of_row(_open_tables, path, version, row_number)
        return cached_row_json(path, version, row_number, partial(_rows_as_json, table, key, row))


def _rows_as_json(table: ArrowTable, key: GroupKey, first: int, number: int) -> list[bytes]:
    """Return the JSON of rows of a batch, with names in place of bytes; raises BoundExceeded."""
    rows, start = _read_batch(table, key).slice(first, number), table.group_starts[key[2]] + first
    with bounded_memory_and_time(_MAX_BATCH_BYTES + _MEMORY_PER_BYTE * table.batches[key[2]].size):
        columns = [
            [*map(_value_without_bytes, column)]
            if _has_bytes(column.type)
            else _without_nanoseconds(column).to_pylist()
            for column in rows.columns
        ]
        return [
            json_with_media_names(dict(zip(rows.schema.names, row, strict=True)), f"{table.name}::{start + index}")
            for index, row in enumerate(zip(*columns, strict=True))
        ]


def _without_nanoseconds(column: pa.Array) -> pa.Array:
    is_fine = not pa.types.is_timestamp(column.type)
    return column if is_fine else column.cast(plain_type(column.type), safe=False)


def _has_bytes(kind: pa.DataType) -> bool:
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or any(map(_has_bytes, inner))


def _value_without_bytes(value: Any) -> Any:
    """Return a value of Arrow as Python has it, with b"" in place of any bytes, which are not copied."""
    if not value.is_valid:
        return None
    if isinstance(value, pa.BinaryScalar | pa.LargeBinaryScalar) and not isinstance(value, pa.StringScalar):
        return b""
    if isinstance(value, pa.StructScalar):
        return {name: _value_without_bytes(value[name]) for name in value}
    if isinstance(value, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
        return [*map(_value_without_bytes, value.values)]
    return value.as_py()


class _CellFile(File):
    """The bytes of a cell, of which only those that are read are copied."""

    def __init__(self, data: pa.Buffer, version: str):
        super().__init__(FileState(data.size, version))
        self._data = memoryview(data)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._data[offset : offset + size])


def open_cell(path: str, key: str) -> File:
    """Open one value of an Arrow file as a file of bytes, whose version is that of the Arrow file.

    `key`: number of the row, and the keys to the value in it, as `17/images/0/bytes`; KeyError: there is no such value.
    """
    number, way = split_cell_key(key)
    file, _ = _open_tables.get(path)
    try:
        table, batch, row = find_group_of_row(_open_tables, path, file.version, number)
        value = value_at(way, partial(cell_item, _read_batch(table, batch), row))
    except PackError:
        raise
    except (pa.ArrowException, BoundExceeded, OSError, ValueError) as error:
        raise Skip(Reason.UNREADABLE_MEDIA, f"{key!r} of the table: {one_line(error)}") from None
    if value.is_valid and hasattr(value, "as_buffer") and _has_bytes(value.type):
        return _CellFile(value.as_buffer(), file.version)
    return InMemoryFile(decode_medium_bytes(way, value.as_py()), file.version)


def _read_batch(table: ArrowTable, key: GroupKey) -> pa.RecordBatch:
    kept = _kept_batches.get(key)
    if kept is None:
        batch = table.read(key[2])
        memory = batch.nbytes if table.copies_batch_on_read(table.batches[key[2]]) else 1 << 12
        kept = _kept_batches.put(key, (batch, memory))
    return kept[0]
