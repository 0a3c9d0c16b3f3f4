"""Find the values of a Parquet column of bytes in its pages, so that one can be read without its row group.

The layout of pages, levels and encodings is Parquet's own (apache/parquet-format: Encodings.md, parquet.thrift).
Columns of bytes, alone or in one list, with plain or dictionary encoding are read; `None` says that pyarrow has to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from energon_pack.samples.bytes import Bytes
from energon_pack.sources.parquet_bytes import ColumnChunk, PageBytes, SnappyPage, content_of, read_struct, read_varint

#: the step of a path that leads into each element of a list
EACH_ELEMENT: Final = object()

#: the path to the values of a column: field names, and `EACH_ELEMENT`
LeafPath = tuple[Any, ...]


_CODEC_NAMES = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd"}  # CompressionCodec → pyarrow's name
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3  # PageType
_PLAIN, _INDEXES, _LEVELS = 0, (2, 8), (3, 4)  # Encoding
_MAX_HEADER_BYTES = 1 << 16  # bytes of a page header at most; statistics in it are cut at 4 KB each


class _Page(NamedTuple):
    offset: int  # offset of its content
    size: int
    plain_size: int
    header: dict[int, Any]


@dataclass(frozen=True)
class BytesColumn:
    """The place of each value of a bytes column in one row group."""

    pages: list[PageBytes]
    first_values: np.ndarray  # for each row the number of its first value; and the number of all values
    page_of: np.ndarray  # for each value the index of its page in `pages`
    starts: np.ndarray  # for each value its first byte in the page's content
    lens: np.ndarray  # for each value its bytes; -1: null

    @property
    def memory_bytes(self) -> int:
        """Return approximately how many bytes of memory this object takes."""
        elements = sum(page.starts.nbytes + page.offsets.nbytes for page in self.pages if isinstance(page, SnappyPage))
        return elements + self.first_values.nbytes + self.page_of.nbytes + self.starts.nbytes + self.lens.nbytes

    def value_place(self, row: int, index: int) -> "ValuePlace | None":
        """Return the place of the value `index` in the list of a row; None: it is null, or the list is shorter."""
        number = int(self.first_values[row]) + index
        if not 0 <= index < self.first_values[row + 1] - self.first_values[row] or self.lens[number] < 0:
            return None
        return ValuePlace(self.pages[self.page_of[number]], int(self.starts[number]), int(self.lens[number]))

    def are_not_null(self, row: int) -> list[bool]:
        """Tell for each value in the list of a row whether it is not null; a row without a list has one value."""
        return [length >= 0 for length in self.lens[self.first_values[row] : self.first_values[row + 1]].tolist()]


class ValuePlace(NamedTuple):
    """Where the bytes of a value lie: `size` bytes of a page's content, from `start` on."""

    page: PageBytes
    start: int
    size: int

    def read(self, file: Bytes, offset: int, size: int) -> bytes:
        """Read `size` bytes of the value from its `offset` on; fewer at its end. Raises as `CompressedPage.read`."""
        return self.page.read(file, self.start + offset, max(0, min(size, self.size - offset)))


def is_readable_without_pyarrow(chunk: ColumnChunk) -> bool:
    """Tell by its codec and encodings whether the values of a column of bytes can be found without pyarrow."""
    return chunk.codec in _CODEC_NAMES and {_PLAIN, *_INDEXES, *_LEVELS}.issuperset(chunk.encodings)


def read_bytes_column(file: Bytes, file_id: tuple[str, str], chunk: ColumnChunk, leaf: Any) -> BytesColumn | None:
    """Find the values of a bytes column in a row group; None: it has an encoding that only pyarrow reads.

    `file_id`: path and version of the file; `leaf`: pyarrow's ColumnSchema of the column.
    """
    if chunk.codec not in _CODEC_NAMES:
        return None
    codec = _CODEC_NAMES[chunk.codec]
    pages: list[PageBytes] = []
    starts: list[np.ndarray] = []  # numbers of the entries at which rows begin
    all_entries: list[np.ndarray] = []  # for each page: page, start and length of its entries
    dictionary = np.zeros((0, 2), np.int64)
    num_entries = 0
    for page in _pages_of_chunk(file, chunk):
        kind, version_2 = page.header[1], page.header.get(8)
        about = page.header.get(7) if kind == _DICTIONARY_PAGE else version_2 or page.header.get(5)
        if about is None or kind not in (_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2):
            continue
        if about[1] > chunk.num_values:
            raise ValueError(f"a page of {about[1]} values in a column of {chunk.num_values}")
        encoding = about[4] if kind == _DATA_PAGE_V2 else about[2]
        levels = about[6] + about[5] if kind == _DATA_PAGE_V2 else 0  # bytes of levels, which are never compressed
        is_plain = kind == _DATA_PAGE_V2 and about.get(7) is False
        coding = None if is_plain else codec
        content = content_of(file, file_id, coding, page.offset + levels, page.size - levels, page.plain_size - levels)
        pages.append(content)
        if kind == _DICTIONARY_PAGE:
            if encoding not in (_PLAIN, _INDEXES[0]):
                return None
            dictionary = _places(file, content, 0, about[1])
            in_dictionary = len(pages) - 1
            continue
        if kind == _DATA_PAGE_V2:
            raw = file.read(page.offset, levels)
            repeated = _decode_levels(raw[: about[6]], leaf.max_repetition_level, about[1])
            defined = _decode_levels(raw[about[6] :], leaf.max_definition_level, about[1])
            begin = 0
        else:
            repeated, begin = _decode_levels_v1(file, content, 0, leaf.max_repetition_level, about[1])
            defined, begin = _decode_levels_v1(file, content, begin, leaf.max_definition_level, about[1])
        is_there = defined == leaf.max_definition_level
        num_values = int(is_there.sum())
        entries = np.full((about[1], 3), -1, np.int64)
        if encoding == _PLAIN:
            entries[is_there, 0], entries[is_there, 1:] = len(pages) - 1, _places(file, content, begin, num_values)
        elif encoding in _INDEXES and num_values:
            packed = content.read(file, begin, content.size - begin)
            entries[is_there, 0] = in_dictionary
            entries[is_there, 1:] = dictionary[_decode_hybrid(packed[1:], packed[0], num_values)]
        elif num_values:
            return None
        starts.append(np.flatnonzero(repeated == 0) + num_entries)
        all_entries.append(entries)
        num_entries += about[1]
    every = np.concatenate(all_entries) if all_entries else np.zeros((0, 3), np.int64)
    first = np.concatenate([*starts, [num_entries]])
    return BytesColumn(pages, first, *every.astype(np.int32).T)


def _pages_of_chunk(file: Bytes, chunk: ColumnChunk) -> Iterator[_Page]:
    begin = min(chunk.data_offset, chunk.dictionary_offset or chunk.data_offset)
    end = begin + chunk.size
    while begin < end:
        header, size = read_struct(file.read(begin, min(_MAX_HEADER_BYTES, end - begin)), 0)
        yield _Page(begin + size, header[3], header[2], header)
        begin += size + header[3]


def _places(file: Bytes, content: PageBytes, begin: int, number: int) -> np.ndarray:
    """Return int64[number, 2], start and length of byte arrays in plain encoding: 4 bytes of length before each."""
    places = np.empty((number, 2), np.int64)
    for index in range(number):
        size = int.from_bytes(content.read(file, begin, 4), "little")
        places[index] = begin + 4, size
        begin += 4 + size
    if begin > content.size:
        raise ValueError(f"values of {begin} bytes in a page of {content.size}")
    return places


def _decode_levels_v1(file: Bytes, content: PageBytes, begin: int, most: int, number: int) -> tuple[np.ndarray, int]:
    """Return the levels (`number`, each at most `most`) of a page of version 1, and the offset after them."""
    if most == 0:
        return np.zeros(number, np.int64), begin
    size = int.from_bytes(content.read(file, begin, 4), "little")
    return _decode_levels(content.read(file, begin + 4, size), most, number), begin + 4 + size


def _decode_levels(data: bytes, most: int, number: int) -> np.ndarray:
    return _decode_hybrid(data, most.bit_length(), number) if most else np.zeros(number, np.int64)


def _decode_hybrid(data: bytes, width: int, number: int) -> np.ndarray:
    """Decode `number` values of `width` bits each from Parquet's RLE/bit-packing hybrid."""
    runs: list[np.ndarray] = []
    position = have = 0
    while have < number and width:
        header, position = read_varint(data, position)
        if header & 1:
            size = (header >> 1) * width
            bits = np.unpackbits(np.frombuffer(data[position : position + size], np.uint8), bitorder="little")
            runs.append(bits.reshape(-1, width).astype(np.int64) @ (1 << np.arange(width)))
        else:
            size = (width + 7) // 8
            runs.append(
                np.full(
                    min(header >> 1, number - have),
                    int.from_bytes(data[position : position + size], "little"),
                    np.int64,
                )
            )
        position += size
        have += len(runs[-1])
    return np.concatenate(runs)[:number] if runs else np.zeros(number, np.int64)


_LIST_CHECKS = (
    *(pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    *(pa.types.is_list_view, pa.types.is_large_list_view),
)


def leaf_paths(schema: pa.Schema) -> Iterator[LeafPath]:
    """Yield the path to the values of each column, in the file's order: `("images", EACH_ELEMENT, "bytes")`."""
    for field in schema:
        yield from _paths_inside(field.type, (field.name,))


def _paths_inside(kind: pa.DataType, way: LeafPath) -> Iterator[LeafPath]:
    if isinstance(kind, pa.BaseExtensionType):
        yield from _paths_inside(kind.storage_type, way)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _paths_inside(field.type, (*way, field.name))
    elif pa.types.is_map(kind):
        yield from _paths_inside(kind.key_type, (*way, EACH_ELEMENT, "key"))
        yield from _paths_inside(kind.item_type, (*way, EACH_ELEMENT, "value"))
    elif any(is_list(kind) for is_list in _LIST_CHECKS):
        yield from _paths_inside(kind.value_type, (*way, EACH_ELEMENT))
    else:
        yield way


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values without dictionaries and nanoseconds, which Python lacks, at any depth."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)))
    return kind


def put_empty_bytes(row: dict[str, Any], leaf_path: LeafPath, are_not_null: Sequence[bool]) -> None:
    """Put b"" into a row for each value of a column that was not read, or None for a value that is null.

    Args:
        row: a row without this column, and without structs that hold only this column.
        leaf_path: the path to the values, as of `leaf_paths`, with at most one `EACH_ELEMENT`.
        are_not_null: as of `BytesColumn.are_not_null`; for an empty or missing list, a single False.
    """
    values = [b"" if is_there else None for is_there in are_not_null]
    if EACH_ELEMENT not in leaf_path:
        if values[0] is not None or len(leaf_path) == 1 or _value_at(row, leaf_path[:-1]) is not None:
            _put_value(row, leaf_path, values[0])
        return
    place = leaf_path.index(EACH_ELEMENT)
    before, after = leaf_path[:place], leaf_path[place + 1 :]
    elements = _value_at(row, before)
    if elements is None:
        if not any(are_not_null) and len(values) == 1:
            return
        elements = [{} if after else None for _ in values]
        _put_value(row, before, elements)
    for number, value in enumerate(values[: len(elements)]):
        if not after:
            elements[number] = value
        elif elements[number] is not None:
            _put_value(elements[number], after, value)


def _value_at(value: Any, way: LeafPath) -> Any:
    for step in way:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _put_value(value: dict[str, Any], way: LeafPath, item: Any) -> None:
    for step in way[:-1]:
        if value.get(step) is None:
            value[step] = {}
        value = value[step]
    value[way[-1]] = item
