"""Precompute inputs of a model's vision tower in loader workers, if outputs and gradients stay the same."""

import copy
import hashlib
import inspect
import json
import logging
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, ModuleList

from energon_pack.errors import one_line
from energon_pack.training.encoded import Encoded
from energon_pack.training.forward_inputs import attention_implementation_of
from energon_pack.training.host_reads import HostReadCounter
from energon_pack.training.masks import BOUNDARY_MARK, PROVEN_TOWERS, TOWER_PREFIX, TowerInputsProof, tower_inputs_in
from energon_pack.training.model_wrappers import class_of, is_transformers_model
from energon_pack.training.probe_batches import probe_of_rows, put_twins_in_rows
from energon_pack.training.restored_model import without_tf32
from energon_pack.training.small_model import build_small_model

#: input of a tower from which it works out the rest
_GRID_INPUT = "grid_thw"
#: a batch's grid of one kind of media
_GRID_NAMES = re.compile(rf"[a-z]+_{_GRID_INPUT}")


class TowerInputMaker:
    """Precomputes inputs of a vision tower (boundaries, positions) from the grids of images and videos."""

    def __init__(self, make: Any, config: Any):
        self._class_and_config = make, config
        content = [make.__module__, make.__qualname__, config.to_dict()]
        #: identifies the tower's class and config
        self.config_hash = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    def __reduce__(self) -> tuple[type["TowerInputMaker"], tuple[Any, Any]]:
        """Pickle only the class and the config."""
        return TowerInputMaker, self._class_and_config

    def __call__(self, media: Mapping[str, Any]) -> dict[str, Any]:
        """Return the precomputed inputs for the media of a batch.

        Returns:
            `tower`: the mark; for each kind `tower_image_cu_seqlens`, `tower_image_position_ids`,
            `tower_image_max_seqlen` …: whatever the tower has, `tower_` before the name under which a model takes it.
        """
        from transformers.exporters.utils import precompute_export_inputs

        values: dict[str, Any] = {}
        for key in filter(_GRID_NAMES.fullmatch, media):
            inputs = {_GRID_INPUT: media[key]}
            precompute_export_inputs(self._module, inputs)
            kind = key.removesuffix(_GRID_INPUT)  # with its underscore
            values |= {f"{TOWER_PREFIX}{kind}{name}": value for name, value in inputs.items() if name != _GRID_INPUT}
        return {"tower": self.config_hash} | {name: value for name, value in values.items() if value is not None}

    @cached_property
    def _module(self) -> Any:
        make, config = self._class_and_config
        with torch.device("meta"):
            module = make._from_config(copy.deepcopy(config))
        module.config._attn_implementation = "flash_attention_2"  # only flash attention asks for the longest
        for layers in [part for part in module.modules() if isinstance(part, ModuleList)]:
            del layers[1:]  # each call looks through all parts for sizes, which layers have alike
        return module


def tower_input_maker_of(model: Module) -> TowerInputMaker | None:
    """Return the `TowerInputMaker` of a model; None: its vision tower takes no grids, or transformers is too old."""
    try:
        import transformers.exporters.utils  # noqa: F401
    except ImportError:
        return None
    part = tower_module_in(model)
    return None if part is None else TowerInputMaker(class_of(part), part.config)


def tower_module_in(model: Module) -> Any:
    """Return the vision tower of a model that takes `grid_thw`; None: it has none."""
    parts = (part for part in model.modules() if is_transformers_model(part) and part is not model)
    return next((part for part in parts if _GRID_INPUT in inspect.signature(part.forward).parameters), None)


_log = logging.getLogger(__name__)
#: largest difference, relative to the largest value
_TOLERANCE, _SHORT_TOLERANCE = 1e-6, 1e-2


def enable_tower_inputs(model: Any, encoder: Any, samples: Sequence[Encoded], mask: str) -> frozenset[str]:
    """Let an encoder precompute a vision tower's inputs if a small model shows no difference; return their names."""
    PROVEN_TOWERS.pop(model, None)
    tower, device = tower_input_maker_of(model), model.device if model.device.type == "cuda" else torch.device("cpu")
    if tower is None or not hasattr(encoder, "use_tower") or not any(one.media for one in samples):
        return frozenset()
    try:
        with without_tf32():
            proof = try_tower_inputs(model, tower, samples, mask, device)
    except Exception as error:  # foreign code, with inputs it may not be made for
        _log.info("%s takes no values for its tower: %s", class_of(model).__name__, one_line(error, 200))
        return frozenset()
    if proof is None:
        return frozenset()
    PROVEN_TOWERS[model] = proof
    encoder.use_tower(tower)
    _log.info(
        "%s reads tensors on the host %d times in a forward, %d times with the values for its tower, which batches of"
        " this encoder bring from now on",
        class_of(model).__name__,
        *proof.num_host_reads,
    )
    return proof.names


def try_tower_inputs(
    model: Any, tower: TowerInputMaker, samples: Sequence[Encoded], mask: str, device: torch.device
) -> TowerInputsProof | None:
    small = build_small_model(
        class_of(model), copy.deepcopy(model.config), attention_implementation_of(model), device=device
    )
    small_tower, batch = tower_input_maker_of(small), probe_of_rows(small, put_twins_in_rows(samples, mask), mask).batch
    if small_tower is None:
        return None
    prepared = tower_inputs_in(small_tower(batch))
    inputs = batch.to(device).model_inputs(small, labels=False)
    is_flash = "flash" in (getattr(tower_module_in(model).config, "_attn_implementation", None) or "")
    kept = [value for name, value in prepared.items() if BOUNDARY_MARK in name and not is_flash]
    plain = _count_reads(small, inputs, (), device)
    try:
        ours = _count_reads(small, {**inputs, **(placed := _moved_to(prepared, kept, device))}, kept, device)
    except RuntimeError:  # on a GPU, where boundaries on the host meet other tensors
        ours = None
    if ours is None or ours.mixes_devices:
        kept, placed = [], _moved_to(prepared, (), device)
        ours = _count_reads(small, {**inputs, **placed}, (), device)
    results = (logits_and_gradients(small, one) for one in (inputs, {**inputs, **placed}))
    if ours.num_reads >= plain.num_reads or not _are_alike(*results):
        return None
    return TowerInputsProof(tower.config_hash, frozenset(prepared), bool(kept), (plain.num_reads, ours.num_reads))


def _moved_to(prepared: Mapping[str, Any], kept: Sequence[Tensor], device: torch.device) -> dict[str, Any]:
    """Move the inputs to a device, except those that are kept on the host."""
    moves = {
        name for name, value in prepared.items() if isinstance(value, Tensor) and all(value is not k for k in kept)
    }
    return {name: value.to(device) if name in moves else value for name, value in prepared.items()}


@torch.no_grad()
def _count_reads(
    model: Any, inputs: Mapping[str, Any], kept: Sequence[Tensor], device: torch.device
) -> HostReadCounter:
    with HostReadCounter(kept, device) as reads:
        model(**inputs)
    return reads


def logits_and_gradients(model: Any, inputs: Mapping[str, Any]) -> list[Tensor]:
    """Return the logits of a run, and the gradients of their mean square for all parameters."""
    model.zero_grad(set_to_none=True)
    logits = model(**inputs).logits
    logits.float().square().mean().backward()
    return [logits.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)]


def _are_alike(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    same = _TOLERANCE if first[0].dtype == torch.float32 else _SHORT_TOLERANCE
    return len(first) == len(second) and all(
        bool((one - other).abs().max() <= same * one.abs().max()) for one, other in zip(first, second, strict=True)
    )
