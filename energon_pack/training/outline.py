"""The facts about a model by which a batch makes its inputs: a loader's worker holds these, and no weights."""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import Module

from energon_pack.training.inputs import PROVEN, has_rope_rows
from energon_pack.training.masks import Sight, sight_of
from energon_pack.training.wrapped import unwrapped

#: a batch has the values under their names behind this: some models have media of the same names
PREFIX = "tower_"
#: part of the names of boundaries, which attention without variable lengths reads on the host
BOUNDARIES = "_cu_"


@dataclass(frozen=True)
class TowerProof:
    """A tower whose values were shown to change nothing."""

    #: the tower's: see `Tower.mark`
    mark: str
    #: names of the values
    names: frozenset[str]
    #: whether boundaries stay on the host, where this attention reads them
    on_host: bool
    #: host reads of a forward over the packs of the trial, without the values and with them
    reads: tuple[int, int]


#: by guarded model
TOWERS: weakref.WeakKeyDictionary[Module, TowerProof] = weakref.WeakKeyDictionary()


def values_in(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a batch has, by the names under which a model takes them."""
    return {name.removeprefix(PREFIX): value for name, value in batch.items() if name.startswith(PREFIX)}


@dataclass(frozen=True)
class Outline:
    """What `PackedBatch.model_inputs` asks a model for."""

    name: str
    #: whether it takes M-RoPE rows as positions
    rope_rows: bool
    #: the mask that `guard` found; None: it is not guarded
    proven: str | None
    sliding_window: int | None
    attention_chunk_size: int | None
    sight: Sight
    dtype: torch.dtype
    device: torch.device
    #: the values for its tower that were shown to change nothing
    tower: TowerProof | None = None

    def for_worker(self) -> "Outline":
        """Return the outline for a process that may not touch the model's device: it makes masks on the CPU."""
        return replace(self, device=torch.device("cpu"))


def outline_of(model: Any) -> Outline:
    """Return the outline of a model, which may be wrapped; an outline is returned unchanged."""
    if isinstance(model, Outline):
        return model
    model = unwrapped(model)
    text = model.config.get_text_config()
    return Outline(
        name=type(model).__name__,
        rope_rows=has_rope_rows(model),
        proven=PROVEN.get(model),
        sliding_window=getattr(text, "sliding_window", None),
        attention_chunk_size=getattr(text, "attention_chunk_size", None),
        sight=sight_of(model),
        dtype=model.dtype,
        device=model.device,
        tower=TOWERS.get(model),
    )
