"""Put empty bytes into rows that were read without their bytes. Pure.

{"texts": […], "images": [{"path": null}]}  +  images, LIST, bytes: there  ──►  "images": [{"path": null, "bytes": b""}]
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

#: the step of a way that leads into each element of a list
LIST: Final = object()

#: field names and `LIST`
Way = tuple[Any, ...]


def ways_of(schema: pa.Schema) -> Iterator[Way]:
    """Yield the way to each leaf of a schema, in the order of a Parquet file's columns: `("images", LIST, "bytes")`."""
    for field in schema:
        yield from _inside(field.type, (field.name,))


def _inside(kind: pa.DataType, way: Way) -> Iterator[Way]:
    if isinstance(kind, pa.BaseExtensionType):
        yield from _inside(kind.storage_type, way)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _inside(field.type, (*way, field.name))
    elif pa.types.is_map(kind):
        yield from _inside(kind.key_type, (*way, LIST, "key"))
        yield from _inside(kind.item_type, (*way, LIST, "value"))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _inside(kind.value_type, (*way, LIST))
    else:
        yield way


def put_bytes(row: dict[str, Any], way: Way, are_there: Sequence[bool]) -> None:
    """Put empty bytes at the end of a way, or None if the value is null.

    Args:
        row: a row without the leaf, and without structs that hold only the leaf.
        way: a way with at most one `LIST`.
        are_there: whether each element is there; for an empty or missing list, a single False.
    """
    values = [b"" if is_there else None for is_there in are_there]
    if LIST not in way:
        if values[0] is not None or len(way) == 1 or _at(row, way[:-1]) is not None:
            _put(row, way, values[0])
        return
    place = way.index(LIST)
    before, after = way[:place], way[place + 1 :]
    elements = _at(row, before)
    if elements is None:
        if not any(are_there) and len(values) == 1:
            return
        elements = [{} if after else None for _ in values]
        _put(row, before, elements)
    for number, value in enumerate(values[: len(elements)]):
        if not after:
            elements[number] = value
        elif elements[number] is not None:
            _put(elements[number], after, value)


def _at(value: Any, way: Way) -> Any:
    for step in way:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _put(value: dict[str, Any], way: Way, item: Any) -> None:
    for step in way[:-1]:
        if value.get(step) is None:
            value[step] = {}
        value = value[step]
    value[way[-1]] = item
