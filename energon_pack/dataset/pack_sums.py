"""Sum up the members of each pack, so that training can deal packs without their plan: `.nv-meta/packs.npy`."""

import io

import numpy as np
import numpy.typing as npt

from energon_pack.dataset.files import PlanFile
from energon_pack.dataset.plan_counts import items_of, sizes_of, tables_with_counts
from energon_pack.plan.made import packs_of
from energon_pack.plan.packs import costs_of_packs
from energon_pack.steps.cost import CostModel


def pack_sums(plan: PlanFile, cost: CostModel) -> npt.NDArray[np.float64]:
    """Return sums over the members of each pack, in the order of the plan.

    Returns:
        float64[num_packs, 4]: cost in the language model and in the vision encoder, tokens, trained tokens.
    """
    found = []
    for table in tables_with_counts(plan):
        items, packs = items_of(table), packs_of(sizes_of(table))
        lm, vision = costs_of_packs(items, packs, cost)
        columns = lm, vision, packs.per_pack(items.lens), packs.per_pack(items.num_supervised)
        found.append(np.stack([column.astype(np.float64) for column in columns], axis=1))
    return np.concatenate([np.zeros((0, 4)), *found])


def to_bytes(sums: npt.NDArray[np.float64]) -> bytes:
    """Return the file."""
    file = io.BytesIO()
    np.save(file, sums, allow_pickle=False)
    return file.getvalue()
