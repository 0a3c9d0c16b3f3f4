"""Write the plan as pack_plan.parquet, with a row group for each output shard, and count what its rows hold.

`write_plan` sorts rows from the files of lengths into the output shards through one file on disk. So memory holds only
some source shards or one output shard at a time, however many samples there are.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from energon_pack.dataset.files import (
    MEASURED_COLUMNS,
    OPTIONAL_COLUMNS,
    SHARED_SCHEMA,
    SOUNDS_SCHEMA,
    WRITTEN_SCHEMA,
    PlanFile,
)
from energon_pack.dataset.manifest import PackTotals
from energon_pack.plan.items import Items, Lengths
from energon_pack.plan.packs import PackPlan, ShardPlan, flops_of_packs, plan_packs_of_sizes
from energon_pack.plan.trees import subtract_shared_counts
from energon_pack.run.bounded_memory import split_into_blocks
from energon_pack.run.seeded_random import Ints
from energon_pack.samples.cut import schema_with_cut_type
from energon_pack.samples.media.kinds import AUDIO, IMAGE, MEDIA_TYPES
from energon_pack.steps.cost import CostModel

_COUNTED_COLUMNS = ("pack", "media_type", "token_len", "num_supervised", "num_visual_tokens", "parts")


def read_columns_for_items(plan: PlanFile, *more_columns: str) -> Iterator[pa.Table]:
    """Yield each row group of a plan, with the columns that `items_from_table` needs and those in `more_columns`."""
    with plan.open_parquet() as file:
        optional = [name for name in OPTIONAL_COLUMNS if name in file.schema_arrow.names]
    yield from plan.tables(*_COUNTED_COLUMNS, *optional, *more_columns)


def totals_of_written_plan(plan: PlanFile, cost: CostModel) -> PackTotals:
    """Return the costs and tokens of each pack, from pack_plan.parquet."""
    sums = [
        totals_of_plan(items_from_table(table), plan_packs_of_sizes(num_members(table)), cost)
        for table in read_columns_for_items(plan)
    ]
    return PackTotals(*map(np.concatenate, zip(*sums, strict=True)))


def totals_of_plan(items: Items, packs: PackPlan, cost: CostModel) -> PackTotals:
    """Return the costs and tokens of each pack, from a plan in memory."""
    lm, vision = flops_of_packs(items, packs, cost)
    return PackTotals(lm, vision, packs.sum_per_pack(items.lens), packs.sum_per_pack(items.num_supervised))


def num_members(plan_table: pa.Table) -> Ints:
    """Return int64[packs], the number of members of each pack; the rows of a pack must stand together."""
    packs = plan_table["pack"].combine_chunks().dictionary_encode().indices.to_numpy()
    starts = np.concatenate(([0], np.flatnonzero(np.diff(packs)) + 1, [len(packs)]))
    sizes: Ints = np.diff(starts)
    return sizes


def items_from_table(table: pa.Table) -> Items:
    """Return rows of a plan as `Items`; tokens that two members share are counted for the first of them only."""
    parts = table["parts"].combine_chunks()
    kinds, member = pc.struct_field(pc.list_flatten(parts), "kind"), pc.list_parent_indices(parts).to_numpy()

    def number_of(kind: str) -> Ints:
        is_one = pc.equal(kinds, kind).to_numpy(zero_copy_only=False)
        return np.bincount(member[is_one], minlength=len(parts))

    def column(name: str) -> npt.NDArray[Any]:
        has_it = name in table.column_names
        return pc.fill_null(table[name], 0).to_numpy() if has_it else np.zeros(table.num_rows, np.int64)

    counts = {name: column(name) for name in ("token_len", "num_visual_tokens", "num_audio_tokens")}
    counts |= {medium.column: number_of(medium.kind) for medium in (IMAGE, AUDIO)}
    media = pc.fill_null(pc.index_in(table["media_type"], pa.array(MEDIA_TYPES)), 0).to_numpy().astype(np.int8)
    zeros = np.zeros(table.num_rows, np.int8)
    items = Items(counts, media, zeros, zeros, zeros, column("num_supervised"))
    if "shared_len" not in table.column_names:
        return items
    shared = {"token_len": "shared_len", "num_images": "num_shared_images"}
    shared |= {"num_visual_tokens": "num_shared_visual_tokens"}
    return subtract_shared_counts(items, {name: column(shared_column) for name, shared_column in shared.items()})


_ROWS_AT_ONCE = 200_000  # rows to sort at a time
_IPC_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")  # for the file of sorted rows; without it, a row has 145 bytes


def write_plan(path: Path, lengths: Lengths, plan: PackPlan, shards: ShardPlan, names: Sequence[str]) -> None:
    """Write pack_plan.parquet: a row for each member, a row group for each output shard, whose names are `names`."""
    temporary, schema = path.with_suffix(".tmp"), schema_with_cut_type(WRITTEN_SCHEMA, lengths.cut_type)
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
                table = pa.concat_tables([_read_sorted_rows(file, *place) for place in pieces])
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
    for block in split_into_blocks(len(plan.items)):
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


def _read_sorted_rows(file: BinaryIO, offset: int, size: int) -> pa.Table:
    file.seek(offset)
    return pa.ipc.open_stream(file.read(size)).read_all()
