"""Items made up, and what a plan has of them."""

from typing import Any

import numpy as np

from energon_pack.plan.items import Items
from energon_pack.plan.packs import PackPlan
from energon_pack.plan.settings import CAPPED_COLUMNS


def packs(plan: PackPlan) -> list[list[int]]:
    """The items of each pack."""
    return [plan.items[a:b].tolist() for a, b in zip(plan.starts[:-1], plan.starts[1:], strict=True)]


def items(lens: Any, media: Any = None, **columns: Any) -> Items:
    """Items with these lengths, of one medium and one shard unless given, trained whole unless told otherwise."""
    zeros = np.zeros(len(lens), np.int64)
    columns = {"num_supervised": lens, **columns, "token_len": lens, "media": zeros if media is None else media}
    arrays = {name: np.array(values, np.int64) for name, values in columns.items()}
    counts = {name: arrays.get(name, zeros) for name in CAPPED_COLUMNS}
    return Items(
        counts, **{name: arrays.get(name, zeros) for name in ("media", "shard", "dataset", "split", "num_supervised")}
    )
