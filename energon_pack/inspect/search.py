"""Packs and members by a piece of their names."""

from collections.abc import Iterator
from heapq import nsmallest
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.inspect.dataset import Opened
from energon_pack.sources.jsonl.index import LINE
from energon_pack.sources.shard import JsonlShard, TarShard


class Hit(NamedTuple):
    """A member whose id holds what was searched for, or its pack's key."""

    rank: int  # 0: it is exactly that
    number: int  # of the pack
    member: int
    key: str  # of the pack
    sample_id: str


def search(opened: Opened, text: str, most: int) -> tuple[list[Hit], int]:
    """The first so many hits, exact ones first, and how many there are; by the plan, or, without one, by each pack.

    Raises:
        PackError: the plan can't be read.
    """
    num_hits = 0

    def counted() -> Iterator[Hit]:
        nonlocal num_hits
        for number, hits in _of_packs(opened, text) if opened.plan is None else _of_plan(opened, text, most):
            num_hits += number
            yield from hits

    return nsmallest(most, counted()), num_hits


def _of_plan(opened: Opened, text: str, most: int) -> Iterator[tuple[int, list[Hit]]]:
    """Of each row group how many, and the first of them."""
    assert opened.plan is not None
    first = 0  # pack of this row group
    for table in opened.plan.tables("pack", "shard", "key", "record_part", "cut"):
        packs, keys, ids = table["pack"].combine_chunks(), table["key"], _ids(table)
        is_hit = pc.or_(pc.match_substring(ids, text), pc.match_substring(packs, text))
        rows = np.flatnonzero(_bools(is_hit))
        starts = np.flatnonzero(np.concatenate(([True], _bools(pc.not_equal(packs[1:], packs[:-1])))))
        if len(rows):
            hits = pa.array(rows)
            exact = [_bools(pc.equal(names.take(hits), text)) for names in (ids, keys, packs)]
            ranks = np.where(np.logical_or.reduce(exact), 0, 1)
            best = np.argsort(ranks, kind="stable")[:most]
            chosen = rows[best]
            numbers = np.searchsorted(starts, chosen, side="right") - 1
            sample_ids, cuts = (names.take(pa.array(chosen)).to_pylist() for names in (ids, table["cut"]))
            columns = (
                ranks[best].tolist(),
                (first + numbers).tolist(),
                (chosen - starts[numbers]).tolist(),
                packs.take(pa.array(chosen)).to_pylist(),
                map(
                    _with_part, ids.take(pa.array(chosen)).to_pylist(), table["cut"].take(pa.array(chosen)).to_pylist()
                ),
            )
            yield len(rows), list(map(Hit, *columns))
        first += len(starts)


def _bools(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """As numpy has it; what is null is False."""
    values: npt.NDArray[np.bool_] = np.asarray(pc.fill_null(column, False))
    return values


def _ids(table: pa.Table) -> pa.Array:
    """`<shard>/<key>` of each row, `<file>:<line>` of a line."""
    is_line = pc.fill_null(pc.equal(table["record_part"], LINE), False)
    marks = pc.if_else(is_line, JsonlShard.mark, TarShard.mark)
    columns = [column.cast(pa.large_string()) for column in (table["shard"], marks, table["key"])]
    return pc.binary_join_element_wise(*columns, pa.scalar("", pa.large_string())).combine_chunks()


def _with_part(sample: str | None, cut: dict[str, object] | None) -> str:
    return f"{sample}#{cut['part']}" if cut else str(sample)


def _of_packs(opened: Opened, text: str) -> Iterator[tuple[int, list[Hit]]]:
    """Of each pack."""
    for found in opened.packs.all():
        key, ids = found.pack.files.key, found.pack.ids
        hits = [
            Hit(int(text not in (key, name, name.rpartition("/")[2])), found.number, member, key, name)
            for member, name in enumerate(ids)
            if text in name or text in key
        ]
        yield len(hits), hits
