"""Search packs and members by a part of their names."""

import io
import json
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.dataset.files import LEDGER, PlanFile
from energon_pack.inspect.dataset import Opened
from energon_pack.samples.bytes import as_file
from energon_pack.sources.jsonl.index import LINE
from energon_pack.sources.shard import JsonlShard, TarShard


class Hit(NamedTuple):
    """A member whose id, or whose pack's key, contains the searched text."""

    rank: int  # 0: id or key equals the text
    number: int  # of the pack
    member: int
    key: str  # of the pack
    sample_id: str


def search(opened: Opened, text: str, most: int) -> tuple[list[Hit], int]:
    """Return the first `most` hits, exact ones first, and the number of all; by the plan, or by reading each pack."""
    num_hits = 0

    def counted() -> Iterator[Hit]:
        nonlocal num_hits
        for number, hits in _of_packs(opened, text) if opened.plan is None else _of_plan(opened.plan, text, most):
            num_hits += number
            yield from hits

    found = nsmallest(most, counted())
    return found if opened.plan is None else _named(found, opened.plan), num_hits


def skipped(opened: Opened, text: str, most: int) -> Iterator[str]:
    """Yield the first `most` samples in no pack, and why, from the ledger; lines that are no entries are left out."""
    found = (entry for entry in entries(opened) if text in str(entry.get("sample_id", "")))
    for entry in islice(found, most):
        yield f"{entry['sample_id']}: {entry.get('reason')}: {entry.get('detail')}"


def entries(opened: Opened) -> Iterator[dict[str, Any]]:
    """Yield the ledger's entries; {} for a line that is no entry."""
    if not opened.folder.has(LEDGER):
        return
    with opened.folder.open(LEDGER) as file:
        yield from map(_entry, io.TextIOWrapper(as_file(file, 1 << 20), encoding="utf-8", errors="replace"))


def _entry(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _of_plan(plan: PlanFile, text: str, most: int) -> Iterator[tuple[int, list[Hit]]]:
    """Yield, for each row group, how many hits it has and the first of them, without the samples' ids."""
    first = 0  # the first pack of this row group
    spans = any(mark in text for mark in (TarShard.mark, JsonlShard.mark))  # the hit may begin in a shard's name
    for table in plan.tables("pack", "shard", "key", *["record_part"] * spans):
        packs, keys = table["pack"].combine_chunks(), table["key"]
        names = (packs, ids_of(table)) if spans else (packs, keys, table["shard"])
        rows = np.flatnonzero(_any([pc.match_substring(column, text) for column in names]))
        starts = np.flatnonzero(np.concatenate(([True], _any([pc.not_equal(packs[1:], packs[:-1])]))))
        if len(rows):
            is_exact = _any([pc.equal(column.take(pa.array(rows)), text) for column in (*names, keys)])
            best = np.argsort(~is_exact, kind="stable")[:most]
            chosen = rows[best]
            numbers = np.searchsorted(starts, chosen, side="right") - 1
            ranks, places = (~is_exact[best]).astype(int), chosen - starts[numbers]
            pack_keys = packs.take(pa.array(chosen)).to_pylist()
            columns = (ranks.tolist(), (first + numbers).tolist(), places.tolist(), pack_keys)
            yield len(rows), [Hit(*row, "") for row in zip(*columns, strict=True)]
        first += len(starts)


def _named(hits: list[Hit], plan: PlanFile) -> list[Hit]:
    """Return the hits with the ids of their samples."""
    members = plan.members({hit.key for hit in hits})
    ids = {key: [row.sample_id for row in rows] for key, rows in members.items()}
    return [hit._replace(sample_id=(ids.get(hit.key, [])[hit.member :] or ["?"])[0]) for hit in hits]


def _any(columns: Sequence[pa.Array | pa.ChunkedArray]) -> npt.NDArray[np.bool_]:
    """Return where at least one of the columns is true; null is not."""
    values: npt.NDArray[np.bool_] = np.logical_or.reduce(
        [np.asarray(pc.fill_null(column, False)) for column in columns]
    )
    return values


def ids_of(table: pa.Table) -> pa.Array:
    """Return `<shard>/<key>` of each row; of a line, `<file>:<line>`."""
    is_line = pc.fill_null(pc.equal(table["record_part"], LINE), False)
    marks = pc.if_else(is_line, JsonlShard.mark, TarShard.mark)
    columns = [column.cast(pa.large_string()) for column in (table["shard"], marks, table["key"])]
    return pc.binary_join_element_wise(*columns, pa.scalar("", pa.large_string())).combine_chunks()


def _of_packs(opened: Opened, text: str) -> Iterator[tuple[int, list[Hit]]]:
    """Yield, for each pack, how many hits it has and which."""
    for found in opened.packs.all():
        key, ids = found.pack.files.key, found.pack.ids
        hits = [
            Hit(int(text not in (key, name, name.rpartition("/")[2])), found.number, member, key, name)
            for member, name in enumerate(ids)
            if text in name or text in key
        ]
        yield len(hits), hits
