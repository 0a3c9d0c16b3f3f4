"""Read from the footer of a Parquet file where the chunks of its columns are.

pyarrow can do the same, but a damaged footer ends the process, without an error that could be caught: it throws across
C. The layout is Parquet's own (apache/parquet-format: parquet.thrift).
"""

from typing import Any, NamedTuple

from energon_pack.samples.bytes import Bytes

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 7, 8, 12
_INTEGER_TYPES, _LIST_TYPES = (4, 5, 6), (9, 10)
_SIZE_OF_TYPE = {_BYTE: 1, _DOUBLE: 8}


_TAIL_BYTES = 8  # the size of the footer, and the magic bytes


class ColumnChunk(NamedTuple):
    """One column of one row group: its encoding, its sizes in bytes, and where its pages begin in the file."""

    codec: int  # CompressionCodec
    encodings: list[int]
    num_values: int
    plain_size: int  # number of bytes before compression
    size: int
    data_offset: int  # offset of its first data page
    dictionary_offset: int | None


def read_chunks(file: Bytes) -> list[list[ColumnChunk]]:
    """Read the column chunks of each row group, in the order of the columns; ValueError: the footer is damaged."""
    size = int.from_bytes(file.read(file.size - _TAIL_BYTES, 4), "little")
    footer = file.read(file.size - _TAIL_BYTES - size, size)
    try:
        about, _ = read_struct(footer, 0)
        return [[_column_chunk(column[3]) for column in group[1]] for group in about[4]]
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"its footer is damaged: {error!r}") from None


def _column_chunk(about: dict[int, Any]) -> ColumnChunk:
    chunk = ColumnChunk(about[4], about[2], about[5], about[6], about[7], about[9], about.get(11))
    if not all(isinstance(value, int) and value >= 0 for value in (chunk.codec, *chunk[2:6], chunk[6] or 0)):
        raise ValueError("its footer has a number below zero")
    return chunk


def read_struct(data: bytes, position: int) -> tuple[dict[int, Any], int]:
    """Decode a struct of Thrift's compact protocol at `position`; return field number → value, and where it ends."""
    fields: dict[int, Any] = {}
    number = 0
    while data[position]:
        delta, kind = data[position] >> 4, data[position] & 15
        position += 1
        if delta:
            number += delta
        else:
            value, position = read_varint(data, position)
            number = _decode_zigzag(value)
        fields[number], position = (
            (kind == _TRUE, position) if kind in (_TRUE, _FALSE) else _read_value(data, position, kind)
        )
    return fields, position + 1


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Decode an unsigned number of seven bits a byte at `position`; return it, and the offset after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7


def _decode_zigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def _read_value(data: bytes, position: int, kind: int) -> tuple[Any, int]:
    if kind in _INTEGER_TYPES:
        value, position = read_varint(data, position)
        return _decode_zigzag(value), position
    if kind == _BINARY:
        size, position = read_varint(data, position)
        return None, position + size
    if kind == _STRUCT:
        return read_struct(data, position)
    if kind in _LIST_TYPES:
        size, inner = data[position] >> 4, data[position] & 15
        position += 1
        if size == 15:
            size, position = read_varint(data, position)
        values: list[Any] = []
        for _ in range(size):
            item, position = (None, position + 1) if inner in (_TRUE, _FALSE) else _read_value(data, position, inner)
            values.append(item)
        return values, position
    if kind not in _SIZE_OF_TYPE:
        raise ValueError(f"a field of type {kind}")
    return None, position + _SIZE_OF_TYPE[kind]
