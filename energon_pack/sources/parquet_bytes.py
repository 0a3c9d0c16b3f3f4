"""Find the column chunks of a Parquet file by its footer, and read parts of its pages, if possible without the rest.

pyarrow can read the footer, too, but a damaged one ends the process, without an error that could be caught: it throws
across C. The layout is Parquet's own (apache/parquet-format: parquet.thrift).

A page that is not compressed is read in place. Snappy stores bytes that it can't compress, such as a JPEG, unchanged:
its elements are found by jumping from one to the next, and a part is put together from them. Any other page is
decompressed whole. The format of snappy is described in google/snappy's format_description.txt.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from energon_pack.run.bounded_memory import LruCache
from energon_pack.run.untrusted_input import BoundExceeded, bounded_memory_and_time
from energon_pack.samples.bytes import Bytes

#: types of values in Thrift's compact protocol
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


def read_column_chunks(parquet_file: Bytes) -> list[list[ColumnChunk]]:
    """Read the column chunks of each row group, in the order of the columns; ValueError: the footer is damaged."""
    size = int.from_bytes(parquet_file.read(parquet_file.size - _TAIL_BYTES, 4), "little")
    footer = parquet_file.read(parquet_file.size - _TAIL_BYTES - size, size)
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


# ------------------------------------------------------------------------------------------------ the content of pages


_MAX_PAGE_BYTES = 1 << 30  # bytes of a page, beside what it takes in the file
_WINDOW_BYTES = 256  # bytes that are read at once to find elements
_MIN_ELEMENTS, _MIN_ELEMENT_BYTES = 4096, 1024  # with more, and smaller elements, a page is decompressed whole
_MAX_VISITED_ELEMENTS = 512  # elements for one part: with more (copies of copies of copies) the page is decompressed


class PageBytes(Protocol):
    """The content of a Parquet page: its bytes without compression, `size` in all."""

    @property
    def size(self) -> int: ...

    def read(self, file: Bytes, start: int, length: int) -> bytes:
        """Read `length` bytes of the content from its byte `start` on; fewer at its end. `file`: the Parquet file."""


@dataclass(frozen=True)
class UncompressedPage:
    """A page that is not compressed."""

    offset: int
    size: int

    def read(self, file: Bytes, start: int, length: int) -> bytes:
        return file.read(self.offset + start, max(0, min(length, self.size - start)))


#: the pages that were decompressed last: values of one page are mostly read one after another
_decompressed_pages: LruCache[tuple[str, str, int], bytes] = LruCache(64 << 20, len)


@dataclass(frozen=True)
class CompressedPage:
    """A page that can only be decompressed as a whole."""

    codec: str
    offset: int
    packed_size: int
    size: int
    #: path and version of its file
    file_id: tuple[str, str]

    def read(self, file: Bytes, start: int, length: int) -> bytes:
        """Read bytes of the content; raises pyarrow's ArrowException or OSError if the page is damaged or too large."""
        key = (*self.file_id, self.offset)
        data = _decompressed_pages.get(key)
        if data is None:
            packed = file.read(self.offset, self.packed_size)
            try:
                with bounded_memory_and_time(_MAX_PAGE_BYTES + 4 * len(packed)):
                    data = pa.Codec(self.codec).decompress(packed, self.size, asbytes=True) if self.size else b""
            except BoundExceeded as error:
                raise OSError(None, f"a page of {self.size:,} bytes in {len(packed):,}: {error}") from None
            _decompressed_pages.put(key, data)
        return data[start : start + length]


@dataclass(frozen=True)
class SnappyPage:
    """A page compressed by snappy; reads only the elements (literal bytes, or copies of earlier ones) that it needs."""

    #: for each element its first byte in the page; and the size of the page
    starts: np.ndarray
    #: for each element the offset of its bytes in the file; below zero: of a copy, minus the distance to its original
    offsets: np.ndarray
    whole: CompressedPage

    @property
    def size(self) -> int:
        return self.whole.size

    def read(self, file: Bytes, start: int, length: int) -> bytes:
        try:
            return b"".join(self._read_pieces(file, start, min(start + length, self.size), [_MAX_VISITED_ELEMENTS]))
        except _TooManyElements:
            return self.whole.read(file, start, length)

    def _read_pieces(self, file: Bytes, start: int, end: int, num_left: list[int]) -> list[bytes]:
        pieces = []
        number = bisect_right(self.starts, start) - 1
        while start < end:
            num_left[0] -= 1
            if num_left[0] < 0:
                raise _TooManyElements
            begin, until = int(self.starts[number]), min(end, int(self.starts[number + 1]))
            place = int(self.offsets[number])
            if place >= 0:
                pieces.append(file.read(place + start - begin, until - start))
            else:  # a copy may overlap itself: then it repeats
                far = -place
                once = b"".join(self._read_pieces(file, begin - far, min(begin, until - far), num_left))
                times = -(-(until - begin) // max(1, len(once)))
                pieces.append((once * times)[start - begin : until - begin])
            start = until
            number += 1
        return pieces


class _TooManyElements(Exception):
    pass


def content_of(
    file: Bytes, file_id: tuple[str, str], codec: str | None, offset: int, packed_size: int, size: int
) -> PageBytes:
    """Return the content of a page, which can be read with as little decompression as possible.

    Args:
        file_id: path and version of the file.
        codec: the compression, as pyarrow calls it; None: the page is not compressed.
        offset, packed_size: place of the page in the file, in bytes.
        size: bytes of the page after decompression.
    """
    if codec is None:
        return UncompressedPage(offset, size)
    whole = CompressedPage(codec, offset, packed_size, size, file_id)
    return (_find_elements(file, whole) if codec == "snappy" else None) or whole


def _find_elements(file: Bytes, whole: CompressedPage) -> SnappyPage | None:
    """Find the elements of a snappy page; None: there are too many, or the page is damaged."""
    end = whole.offset + whole.packed_size
    window_start, window = whole.offset, file.read(whole.offset, min(_WINDOW_BYTES, whole.packed_size))
    place_of_tag, shift, size = whole.offset, 0, 0
    while True:  # the size of the page comes first
        byte = window[place_of_tag - window_start] if place_of_tag - window_start < len(window) else 0
        size |= (byte & 127) << shift
        place_of_tag, shift = place_of_tag + 1, shift + 7
        if byte < 128:
            break
    if size != whole.size:
        return None
    starts, places, start = [0], [], 0
    most = max(_MIN_ELEMENTS, whole.size // _MIN_ELEMENT_BYTES)
    while place_of_tag < end:
        if place_of_tag - window_start + 5 > len(window) and window_start + len(window) < end:
            window_start, window = place_of_tag, file.read(place_of_tag, min(_WINDOW_BYTES, end - place_of_tag))
        here = place_of_tag - window_start
        tag = window[here]
        kind, length = tag & 3, (tag >> 2) + 1
        if kind == 0:
            num_bytes = max(0, length - 60)  # 60 to 63 say how many bytes the length has
            if num_bytes:
                length = int.from_bytes(window[here + 1 : here + 1 + num_bytes], "little") + 1
            place = place_of_tag + 1 + num_bytes
            place_of_tag = place + length
        else:
            num_bytes = (1, 2, 4)[kind - 1]
            far = int.from_bytes(window[here + 1 : here + 1 + num_bytes], "little")
            if kind == 1:
                far, length = far | (tag >> 5) << 8, 4 + (tag >> 2 & 7)
            place = -far
            place_of_tag += 1 + num_bytes
            if not 0 < far <= start:
                return None
        start += length
        places.append(place)
        starts.append(start)
        if len(places) > most:
            return None
    return SnappyPage(np.array(starts), np.array(places), whole) if start == size and place_of_tag == end else None
