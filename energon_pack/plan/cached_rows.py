"""Rows of the cache, repeated or left out as samples are drawn."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.lengths.table_cache import Chunk
from energon_pack.run.seeded import Ints
from energon_pack.samples.skip import Reason
from energon_pack.sources.copies import drawn_keys


@dataclass(frozen=True)
class CachedRows:
    """Rows of lengths that are read together, and a choice among them."""

    chunk: Chunk
    rows: Ints | None  # None: all
    start: int  # number of the first row among the items
    num: int
    copies: Ints | None = None  # for each row: how often it came before; -1: it is not drawn. None: all come once

    def take(self, table: pa.Table, numbers: Ints) -> tuple[Ints, pa.Table]:
        """Return the shard and the columns of the chosen rows of a chunk."""
        if self.rows is not None:
            table, numbers = table.take(pa.array(self.rows)), numbers[self.rows]
        return numbers, table if self.copies is None else _as_drawn(table, self.copies)


def _as_drawn(table: pa.Table, copies: Ints) -> pa.Table:
    """Name copies, and give samples that are not drawn the reason why they are in no pack."""
    names = table.column_names
    if "key" in names:
        keys = drawn_keys(table["key"].to_pylist(), np.arange(len(copies)), copies.clip(0))
        table = table.set_column(names.index("key"), "key", pa.array(keys, pa.string()))
    if "reason" in names:
        reasons = pc.if_else(pa.array(copies < 0), Reason.NOT_DRAWN.value, table["reason"])
        table = table.set_column(names.index("reason"), "reason", reasons.cast(pa.string()))
    return table
