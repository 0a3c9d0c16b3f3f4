"""Read from the footer of a Parquet file where the chunks of its columns are.

pyarrow can do the same, but a damaged footer ends the process, without an error that could be caught: it throws across
C. The layout is Parquet's own (apache/parquet-format: parquet.thrift).
"""

from typing import Any, NamedTuple

from energon_pack.samples.bytes import Bytes
from energon_pack.sources.thrift import read_struct

_TAIL = 8  # the size of the footer, and the magic bytes


class Chunk(NamedTuple):
    """A column of a row group."""

    codec: int  # CompressionCodec
    encodings: list[int]
    num_values: int
    plain_size: int  # number of bytes before compression
    size: int
    data_offset: int  # offset of its first data page
    dictionary_offset: int | None


def read_chunks(file: Bytes) -> list[list[Chunk]]:
    """Read the chunks of each row group, in the order of the columns.

    Raises:
        ValueError: the footer is damaged.
    """
    size = int.from_bytes(file.read(file.size - _TAIL, 4), "little")
    footer = file.read(file.size - _TAIL - size, size)
    try:
        about, _ = read_struct(footer, 0)
        return [[_chunk(column[3]) for column in group[1]] for group in about[4]]
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"its footer is damaged: {error!r}") from None


def _chunk(about: dict[int, Any]) -> Chunk:
    chunk = Chunk(about[4], about[2], about[5], about[6], about[7], about[9], about.get(11))
    if not all(isinstance(value, int) and value >= 0 for value in (chunk.codec, *chunk[2:6], chunk[6] or 0)):
        raise ValueError("its footer has a number below zero")
    return chunk
