"""Read a whole table that another format than Parquet holds, if it does not expand without bound."""

from collections.abc import Iterable

import pyarrow as pa

from energon_pack.errors import sized
from energon_pack.run.bounds import Unbounded

#: bytes of a group of rows that are read at once
LARGEST = 1 << 30
#: the memory that a part of a file may take above that, by its bytes; texts are in it three times
MOST_TIMES = 64


def read_all(batches: Iterable[pa.RecordBatch], schema: pa.Schema, num_bytes: int) -> pa.Table:
    """Read a whole table.

    Args:
        num_bytes: the size of its file.

    Raises:
        Unbounded: it takes more memory than its bytes can need. Where the kernel refuses memory instead, pyarrow may
            end the process.
        ArrowException, OSError: it can't be read.
    """
    before, read, most = pa.total_allocated_bytes(), list[pa.RecordBatch](), LARGEST + MOST_TIMES * num_bytes
    for batch in batches:
        read.append(batch)
        if pa.total_allocated_bytes() - before > most:
            raise Unbounded(f"it takes more than {sized(most)} of memory")
    return pa.Table.from_batches(read, schema)
