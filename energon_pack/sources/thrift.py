"""Read structs in Thrift's compact protocol, the form of Parquet's page headers and footer. Pure.

Numbers, structs and lists are returned; bytes are skipped. The protocol is described in Apache Thrift's
thrift-compact-protocol.md.
"""

from typing import Any

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 7, 8, 12
_INTEGERS, _LISTS = (4, 5, 6), (9, 10)
_SIZES = {_BYTE: 1, _DOUBLE: 8}


def read_struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Return the fields of a struct by their numbers, and where it ends.

    Raises:
        IndexError, ValueError: there is no struct.
    """
    fields: dict[int, Any] = {}
    number = 0
    while data[at]:
        delta, kind = data[at] >> 4, data[at] & 15
        at += 1
        if delta:
            number += delta
        else:
            value, at = varint(data, at)
            number = _signed(value)
        fields[number], at = (kind == _TRUE, at) if kind in (_TRUE, _FALSE) else _value(data, at, kind)
    return fields, at + 1


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned number, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in _INTEGERS:
        value, at = varint(data, at)
        return _signed(value), at
    if kind == _BINARY:
        size, at = varint(data, at)
        return None, at + size
    if kind == _STRUCT:
        return read_struct(data, at)
    if kind in _LISTS:
        size, inner = data[at] >> 4, data[at] & 15
        at += 1
        if size == 15:
            size, at = varint(data, at)
        values: list[Any] = []
        for _ in range(size):
            item, at = (None, at + 1) if inner in (_TRUE, _FALSE) else _value(data, at, inner)
            values.append(item)
        return values, at
    if kind not in _SIZES:
        raise ValueError(f"a field of type {kind}")
    return None, at + _SIZES[kind]
