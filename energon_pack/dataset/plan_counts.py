"""Count tokens, images and sounds of each member in the rows of a plan: costs depend on them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.dataset.files import PlanFile
from energon_pack.dataset.manifest import PackTotals
from energon_pack.dataset.plan_schema import OPTIONAL_COLUMNS
from energon_pack.plan.existing_packs import packs_of_sizes
from energon_pack.plan.items import Items
from energon_pack.plan.packs import PackPlan, flops_of_packs
from energon_pack.plan.trees import with_own_counts
from energon_pack.run.seeded_random import Ints
from energon_pack.samples.media.kinds import AUDIO, IMAGE, MEDIA_TYPES
from energon_pack.steps.cost import CostModel

_COUNTED_COLUMNS = ("pack", "media_type", "token_len", "num_supervised", "num_visual_tokens", "parts")


def read_counted_columns(plan: PlanFile, *more: str) -> Iterator[pa.Table]:
    """Yield each row group of a plan, with the columns that `items_from_table` needs and those in `more`."""
    with plan.open_parquet() as file:
        optional = [name for name in OPTIONAL_COLUMNS if name in file.schema_arrow.names]
    yield from plan.tables(*_COUNTED_COLUMNS, *optional, *more)


def totals_of_written_plan(plan: PlanFile, cost: CostModel) -> PackTotals:
    """Return the costs and tokens of each pack, from pack_plan.parquet."""
    sums = [
        totals_of_plan(items_from_table(table), packs_of_sizes(num_members(table)), cost)
        for table in read_counted_columns(plan)
    ]
    return PackTotals(*map(np.concatenate, zip(*sums, strict=True)))


def totals_of_plan(items: Items, packs: PackPlan, cost: CostModel) -> PackTotals:
    """Return the costs and tokens of each pack, from a plan in memory."""
    lm, vision = flops_of_packs(items, packs, cost)
    return PackTotals(lm, vision, packs.per_pack(items.lens), packs.per_pack(items.num_supervised))


def num_members(table: pa.Table) -> Ints:
    """Return int64[packs], the number of members of each pack; the rows of a pack must stand together."""
    packs = table["pack"].combine_chunks().dictionary_encode().indices.to_numpy()
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
    return with_own_counts(items, {name: column(shared_column) for name, shared_column in shared.items()})
