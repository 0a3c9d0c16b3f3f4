"""Whether two batches are the same."""

from typing import Any

import torch

from energon_pack.training.batch import VisualInputs

#: what only Energon's loader knows of a batch
OF_ENERGON = {"positions", "__restore_key__", "__sources__"}


def same(one: Any, other: Any) -> bool:
    """Bit by bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, VisualInputs):
        return same(vars(one), vars(other))
    if isinstance(one, dict):
        keys = one.keys() - OF_ENERGON
        return keys == other.keys() - OF_ENERGON and all(same(one[key], other[key]) for key in keys)
    return bool(one == other)
