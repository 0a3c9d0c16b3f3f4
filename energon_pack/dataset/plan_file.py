"""Write the plan as files: pack_plan.parquet, with a row group for each output shard, and skipped.jsonl.

Rows are sorted from the files of lengths into the output shards through one file on disk. So memory holds only some
source shards or one output shard at a time, however many samples there are.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from energon_pack.dataset.plan_schema import MEASURED_COLUMNS, SHARED_SCHEMA, SOUNDS_SCHEMA, WRITTEN_SCHEMA
from energon_pack.errors import amount
from energon_pack.plan import caps
from energon_pack.plan.items import Lengths
from energon_pack.plan.packs import LEFT_OUT, PackPlan
from energon_pack.plan.settings import Overlong, PackingConfig
from energon_pack.plan.shard_plan import ShardPlan
from energon_pack.run.scratch_arrays import blocks
from energon_pack.run.seeded_random import Ints
from energon_pack.samples.cut import with_cut_type
from energon_pack.samples.skip import NOTHING_TRAINED_DETAIL, Reason

_ROWS_AT_ONCE = 200_000  # rows to sort at a time
_IPC_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")  # for the file of sorted rows; without it, a row has 145 bytes


def ledger_entries(lengths: Lengths, plan: PackPlan, packing: PackingConfig) -> Iterator[dict[str, Any]]:
    """Yield the entries of skipped.jsonl in source order: samples in no pack, and samples that lost some tokens."""
    columns = ["key", *lengths.reason_columns, "detail", "media_type", *caps.COLUMNS]
    refused = {row["sample"]: (row["reason"], row["detail"]) for row in lengths.refused.to_pylist()}
    for start, numbers, table in lengths.tables(columns, with_parts=False):
        end = start + table.num_rows
        left_out = plan.left_out[start:end]
        table = table.set_column(1, "reason", lengths.reason(table))
        is_refused = np.zeros(table.num_rows, np.bool_)
        is_refused[[number - start for number in refused if start <= number < end]] = True
        lost = lengths.lost_tokens(slice(start, end), left_out)
        is_out = (left_out > 0) | pc.is_valid(table["reason"]).to_numpy() | is_refused | (lost > 0)
        rows = table.filter(pa.array(is_out))
        ids = lengths.sample_ids(numbers[is_out], rows)
        items = start + np.flatnonzero(is_out)
        most = lengths.largest_counts(items) if lengths.is_cut[items].any() else {}
        for place, (sample_id, row, code) in enumerate(zip(ids, rows.to_pylist(), left_out[is_out], strict=True)):
            item = int(items[place])
            reason, detail = refused.get(item, (row["reason"], row["detail"]))
            if num_lost := int(lost[item - start]):
                reason, detail = Reason.CUT_OFF.value, _cut_off_detail(num_lost, row["token_len"], packing)
            elif reason == Reason.NOTHING_TRAINED:
                detail = detail or NOTHING_TRAINED_DETAIL
            elif reason == Reason.NOT_IN_FLAVOR:
                flavor = lengths.flavor
                misfit = detail if item in refused else flavor.unfit(row["does_not_fit"])
                detail = f"{flavor.holder} has no place for it: {misfit}"
            elif reason is None:
                is_cut = lengths.is_cut[item]
                counts = {name: int(values[place]) for name, values in most.items()} if is_cut else row
                reason, detail = _reason_and_detail(counts, LEFT_OUT[code], packing)
                detail = f"of what it becomes, the most: {detail}" if is_cut else detail
            yield {
                "sample_id": sample_id,
                "reason": reason,
                "detail": detail,
                "media_type": row["media_type"],
                "token_len": row["token_len"] or None,
            }


def write_ledger(path: Path, lengths: Lengths, plan: PackPlan, packing: PackingConfig) -> None:
    """Write skipped.jsonl: each entry of `ledger_entries` as a line of JSON."""
    with open(path, "w", encoding="utf-8") as file:
        for entry in ledger_entries(lengths, plan, packing):
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a file that `write_ledger` wrote."""
    with open(path, encoding="utf-8") as file:
        yield from map(json.loads, file)


def _cut_off_detail(number: int, token_len: int, packing: PackingConfig) -> str:
    """Return the detail of a sample that lost `number` of its tokens because it was cut."""
    lost = f"{number:,} of its {amount(token_len, 'token')}"
    if packing.overlong == Overlong.truncate_text:
        return f"{lost}: packing.overlong=truncate_text keeps the beginning"
    return f"{lost}: nothing is trained in the parts that hold them"


def _reason_and_detail(row: dict[str, Any], reason: Reason | None, packing: PackingConfig) -> tuple[str, str]:
    assert reason is not None
    if reason is Reason.NOTHING_TRAINED:
        return reason.value, f"{NOTHING_TRAINED_DETAIL}, nor of those it would share a pack with"
    if reason is not Reason.OVERLONG:
        return reason.value, ", ".join(caps.exceeded_limits(row, packing))
    token_len = row["token_len"]
    padded = caps.padded_len(token_len, packing.pad_to_multiple_of)
    rounded = f" (padded to {padded})" if padded > token_len else ""
    name, limit = packing.longest_sample
    return reason.value, f"{token_len} tokens{rounded}, packing.{name}={limit}"


def write_plan(path: Path, lengths: Lengths, plan: PackPlan, shards: ShardPlan, names: Sequence[str]) -> None:
    """Write pack_plan.parquet: a row for each member, a row group for each output shard, whose names are `names`."""
    temporary, schema = path.with_suffix(".tmp"), with_cut_type(WRITTEN_SCHEMA, lengths.cut_type)
    if lengths.shared is not None:
        schema = pa.unify_schemas([schema, SHARED_SCHEMA])
    if lengths.items.counts["num_audio_tokens"].any():
        schema = pa.unify_schemas([schema, SOUNDS_SCHEMA])
    try:
        with (
            open(temporary, "w+b") as file,
            pq.ParquetWriter(path, schema, compression="zstd") as writer,
        ):
            chunks = _write_rows_by_shard(file, lengths, plan, plan.starts[shards.bounds])
            for (first, end), pieces, name in zip(pairwise(shards.bounds), chunks, names, strict=True):
                table = pa.concat_tables([_read_chunk(file, *place) for place in pieces])
                table = table.take(pc.sort_indices(table["place"])).combine_chunks()
                sizes = np.diff(plan.starts[first : end + 1])
                keys = pa.array([f"{shards.key_prefix}_{pack:08d}" for pack in range(first, end)])
                table = table.drop_columns("place").add_column(
                    0, "pack", keys.take(pa.array(np.repeat(np.arange(end - first), sizes)))
                )
                table = table.append_column("output_shard", pa.repeat(name, table.num_rows))
                table = table.select(schema.names).cast(schema)
                writer.write_table(table, row_group_size=max(1, table.num_rows))
    finally:
        temporary.unlink(missing_ok=True)


def _write_rows_by_shard(file: BinaryIO, lengths: Lengths, plan: PackPlan, edges: Ints) -> list[list[tuple[int, int]]]:
    """Write all rows to a file in pieces sorted by output shard; return offset and size of each shard's pieces."""
    place = lengths.scratch.zeros(len(lengths.items), np.int64)  # index + 1 of each member in the plan; 0: in no pack
    for block in blocks(len(plan.items)):
        place[plan.items[block]] = np.arange(block.start, block.stop) + 1
    chunks: list[list[tuple[int, int]]] = [[] for _ in edges[1:]]
    waiting: list[pa.Table] = []

    def deal() -> None:
        table = pa.concat_tables(waiting)
        table = table.take(pc.sort_indices(table["place"])).combine_chunks()
        cuts = np.searchsorted(table["place"].to_numpy(), edges)
        for number, (first, end) in enumerate(pairwise(cuts)):
            if end > first:
                data = pa.BufferOutputStream()
                with pa.ipc.new_stream(data, table.schema, options=_IPC_OPTIONS) as stream:
                    stream.write_table(table.slice(first, end - first))
                chunks[number].append((file.tell(), file.write(data.getvalue())))
        waiting.clear()

    names = pa.array(lengths.shard_names, pa.string())
    for start, numbers, table in lengths.tables((*MEASURED_COLUMNS, *SOUNDS_SCHEMA.names)):
        places = place[start : start + table.num_rows] - 1
        table = table.add_column(0, "shard", names.take(pa.array(numbers)))
        if lengths.shared is not None:
            here = slice(start, start + table.num_rows)
            for name in SHARED_SCHEMA.names:
                of_items = lengths.shared["token_len" if name == "shared_len" else name.replace("shared_", "")]
                table = table.append_column(name, pa.array(of_items[here]))
        table = table.append_column("place", pa.array(places)).filter(pa.array(places >= 0))
        waiting.append(table)
        if sum(table.num_rows for table in waiting) >= _ROWS_AT_ONCE:
            deal()
    if waiting:
        deal()
    return chunks


def _read_chunk(file: BinaryIO, offset: int, size: int) -> pa.Table:
    file.seek(offset)
    return pa.ipc.open_stream(file.read(size)).read_all()
