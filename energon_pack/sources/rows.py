"""Rows of the index, of lengths and of the plan, with names and types."""

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, dataclass, fields
from itertools import pairwise, repeat
from typing import Any, TypeVar

import pyarrow as pa

from energon_pack.samples.cut import Cut
from energon_pack.samples.sample import MediaPart, Part


@dataclass(slots=True)
class SampleRow:
    """A sample's key, and where in its shard its JSON or text lies (offset and size in bytes)."""

    key: str
    record_part: str
    record_offset: int
    record_size: int


@dataclass(slots=True)
class IndexRow(SampleRow):
    """A sample that was indexed, but not read yet: a row of `wds.INDEX_SCHEMA`."""

    parts: list[Part]  # its other parts, in the tar's order
    reason: str | None  # why it can't be read; None: it may be readable
    detail: str | None


@dataclass(slots=True)
class MeasuredRow(SampleRow):
    """A sample that was measured, or a part of one that was cut: the columns that lengths and the plan share."""

    parts: list[MediaPart]  # its media, in the order of their placeholders
    positions: list[Part]  # in a tar, the .npy files of the whole sample's images, and a txt read beside the JSON
    cut: Cut | None  # None: a whole sample
    token_len: int
    num_supervised: int
    num_visual_tokens: int


_Row = TypeVar("_Row", bound=SampleRow)


def rows_of(table: pa.Table, form: type[_Row]) -> Iterator[_Row]:
    """Yield the rows of a table as objects of a class, each of whose fields is a column or has a default."""

    def values(field: Field[Any]) -> Iterable[Any]:
        if field.default is not MISSING and field.name not in table.column_names:
            return repeat(field.default)
        return _column_values(table[field.name], field.name)

    return map(form, *map(values, fields(form)))


def parts_of(column: pa.ChunkedArray) -> list[list[Any]]:
    """Return the parts of each row, from a column of lists: `MediaPart`s if they have a kind, else `Part`s."""
    array = column.combine_chunks()
    starts = array.offsets.to_pylist()
    first, values = starts[0], array.values[starts[0] : starts[-1]]  # a slice of a table has the values of all of it
    form: type[Part] | type[MediaPart] = MediaPart if "kind" in values.type.names else Part
    columns = (values.field(number).to_pylist() for number in range(values.type.num_fields))
    parts = list(map(form._make, zip(*columns, strict=True)))
    return [parts[start - first : end - first] for start, end in pairwise(starts)]


def _column_values(column: pa.ChunkedArray, name: str) -> list[Any]:
    if name in ("parts", "positions"):
        return parts_of(column)
    values: list[Any] = column.to_pylist()
    return [value and Cut(**value) for value in values] if name == "cut" else values
