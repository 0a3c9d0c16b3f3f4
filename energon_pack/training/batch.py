"""A batch of packs: its tensors, the inputs it gives a model, and its weighted loss."""

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from energon_pack.training.encoded import BatchWithMediaLens
from energon_pack.training.forward_inputs import MEDIA_KEYS, NOT_GUARDED_ERROR, MixingError
from energon_pack.training.layout import IGNORE, seq_idx
from energon_pack.training.masks import (
    BOUNDARY_MARK,
    TOWER_PREFIX,
    ModelOutline,
    TowerInputsProof,
    layer_masks_of_packs,
    outline_of,
    prefix_attention_mask,
    tower_inputs_in,
)
from energon_pack.training.model_wrappers import unwrapped

_log = logging.getLogger(__name__)
#: Megatron's kernels read these on the host
_HOST_KEYS = frozenset(("max_seqlen_q", "max_seqlen_kv"))
_TEXT_KEYS = (
    "input_ids", "labels", "position_ids", "attention_mask", "use_cache", "seq_idx",
    "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k",
)  # fmt: skip
#: inputs left out for a batch of trees: attention gets a plan or other masks, and classes would read these as a pack's
_PACK_BOUNDARIES = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


class VisualInputs(SimpleNamespace):
    """Media of a `thd` batch in the form Megatron-Bridge's steps take: attributes that are tensors or None."""

    def normalized_for_model(self) -> dict[str, Tensor]:
        """Return the attributes that are not None."""
        return {name: value for name, value in vars(self).items() if value is not None}


class PackedBatch(BatchWithMediaLens):
    """A batch of packs: a dict of tensors by name, with methods that move it and make a model's inputs from it.

    Trainers rebuild mappings with `type(batch)({...})`, so everything known about a batch is one of its items. A batch
    that a trainer cut to some of its rows is a ValueError.
    """

    def __init__(self, *args: Any, **items: Any):
        super().__init__(*args, **items)
        _refuse_cut_batch(self)

    @property
    def mask(self) -> str:
        """How attention keeps the samples of a pack apart: a value of `model.mask`; `auto`: what `guard` found."""
        mask: str = self.get("mask", "positions")
        return mask

    @mask.setter
    def mask(self, value: str) -> None:
        self["mask"] = value

    @property
    def media_keys(self) -> frozenset[str]:
        """Names that media inputs can have, whether or not this batch has them."""
        return MEDIA_KEYS.union(self.get("media_keys", ()))

    @property
    def num_bytes(self) -> int:
        """Size of all tensors, in bytes; a tensor under two names counts once."""
        return sum({id(value): value.nbytes for _, value in self._tensors()}.values())

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "PackedBatch":
        """Copy the batch to a device, except tensors that kernels read on the host."""
        from energon_pack.training.kept_memory import move_buffers_once

        on_host = _HOST_KEYS.union(name for name in self if name.startswith(TOWER_PREFIX) and BOUNDARY_MARK in name)
        on_device = [value for name, value in self._tensors() if name not in on_host]
        return self._with_tensors(move_buffers_once(on_device, lambda one: one.to(device, non_blocking=non_blocking)))

    def pin_memory(self) -> "PackedBatch":
        """Copy the batch into pinned memory, so that `to(…, non_blocking=True)` copies it while the GPU computes."""
        from energon_pack.training.kept_memory import move_buffers_once

        return self._with_tensors(move_buffers_once((value for _, value in self._tensors()), Tensor.pin_memory))

    def in_one_buffer(self) -> "PackedBatch":
        """Return the batch with its small tensors in one buffer, so that one copy moves them all to a device."""
        from energon_pack.training.kept_memory import copy_into_one_buffer

        return self._with_tensors(copy_into_one_buffer(value for _, value in self._tensors()))

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in self.items():
            inner = vars(value) if isinstance(value, VisualInputs) else {name: value}
            yield from ((key, item) for key, item in inner.items() if isinstance(item, Tensor))

    def _with_tensors(self, tensors: Mapping[int, Tensor]) -> "PackedBatch":
        return PackedBatch({name: _replace_tensors(value, tensors) for name, value in self.items()})._with_lens_of(self)

    def model_inputs(self, model: Any = None, labels: bool = True) -> dict[str, Any]:
        """Return the inputs of `model.forward` for a `neat` batch, with masks if the model needs them.

        Args:
            model: needed if `mask` is `dict4d`, `prefix4d` or `auto`, for batches of trees (packs whose samples share
                tokens), and for packs of text in a model with M-RoPE. Except for trees, its `ModelOutline` is enough.
            labels: pass labels, so that the model computes its own loss. If a token's weight is not 1 they are left
                out: the model's loss ignores weights, `weighted_loss` uses them. So are labels of preference pairs.

        Raises:
            ValueError: the inputs can't be made without the model; the batch is not `neat`.
            MixingError: the model needs M-RoPE rows, and this batch has media without them; or it can't train on trees.
        """
        if "input_ids" not in self or "cu_seqlens_q" in self or "doc_ids" not in self:
            raise ValueError("model_inputs is for layout=neat; Megatron's layouts are the batch itself")
        outline = None if model is None else outline_of(model)
        names = (*_TEXT_KEYS, *sorted(self.media_keys))
        inputs = PackedBatch({name: self[name] for name in names if name in self})._with_lens_of(self)
        if outline is not None and outline.has_rope_rows:
            inputs["position_ids"] = self._rope_rows(outline)
        if inputs["position_ids"].dim() == 3:
            inputs["mm_token_type_ids"] = self["mm_token_type_ids"]
        if not labels or self.get("is_weighted") or "preference_pairs" in self:
            del inputs["labels"]
            if labels and "preference_pairs" not in self:
                _warn_of_missing_loss()
        elif "_packed_seq_ids" in self:  # labels are shifted already
            inputs["shift_labels"] = self["labels"]
        if "tree_end" in self:
            if model is None or model is outline:
                raise ValueError("a batch of trees needs masks or a plan of its own: model_inputs(model) of the model")
            for name in _PACK_BOUNDARIES:
                del inputs[name]
            from energon_pack.training.tree_inputs import tree_attention_inputs

            inputs.update(tree_attention_inputs(self, unwrapped(model)))
            return inputs
        if outline is not None and outline.tower is not None and self.get("tower") == outline.tower.config_hash:
            inputs.update(self._tower_inputs(outline.tower, outline.device))
        mask = self.mask if self.mask != "auto" else outline.proven_mask if outline else None
        if mask is None:
            raise ValueError(NOT_GUARDED_ERROR)
        if mask == "hybrid":
            inputs["seq_idx"] = seq_idx(self["cu_seq_lens_q"])
        if mask in ("dict4d", "prefix4d"):
            if outline is None:
                raise ValueError("this model needs masks of its own, made on its device: model_inputs(model)")
            inputs["attention_mask"] = (self._masks if mask == "dict4d" else self._prefix_mask)(outline)
        return inputs

    def _tower_inputs(self, proof: TowerInputsProof, device: torch.device) -> dict[str, Any]:
        """Return the vision tower's inputs; boundaries go to the device unless its attention reads them on the host."""
        values = {name: value for name, value in tower_inputs_in(self).items() if name in proof.names}
        late = {name: values[name].to(device, non_blocking=True) for name in values if BOUNDARY_MARK in name}
        return values if proof.keeps_boundaries_on_host else values | late

    def _rope_rows(self, outline: ModelOutline) -> Tensor:
        """Return positions [4, B, S]; without media, the three rows of M-RoPE equal the text row."""
        positions: Tensor = self["position_ids"]
        if positions.dim() == 3:
            return positions
        if self.media_keys & self.keys():
            raise MixingError(
                f"{outline.name} takes M-RoPE rows, and this batch has plain positions for its media: pack with"
                " model.rope=… of this model, and its own processor"
            )
        return positions.expand(4, *positions.shape)

    def _masks(self, outline: ModelOutline) -> dict[str, Tensor]:
        device = outline.device
        return layer_masks_of_packs(self["doc_ids"].to(device), self["mm_token_type_ids"].to(device), outline)

    def _prefix_mask(self, outline: ModelOutline) -> Tensor:
        labels = self["labels"]
        if "_packed_seq_ids" in self:  # shifted already
            labels = torch.nn.functional.pad(labels[:, :-1], (1, 0), value=IGNORE)
        return prefix_attention_mask(self["doc_ids"].to(outline.device), labels.to(outline.device), outline.dtype)


def _replace_tensors(value: Any, tensors: Mapping[int, Tensor]) -> Any:
    if isinstance(value, VisualInputs):
        return VisualInputs(**{key: _replace_tensors(item, tensors) for key, item in vars(value).items()})
    return tensors.get(id(value), value)


@cache
def _warn_of_missing_loss() -> None:
    """Warn once that the model returns no loss, and why."""
    _log.warning(
        "batches with weights: model_inputs leaves labels out, and the model's own loss is None, for it knows of no"
        " weights; take weighted_loss(outputs.logits, batch) (model_inputs(model, labels=False) ends this warning)"
    )


def total_weight(batch: Mapping[str, Any]) -> Tensor:
    """Return the sum of a `neat` batch's token weights, float64 0-d; without `loss_weight`, its trained tokens."""
    return _token_weights(batch).sum(dtype=torch.float64)


def weighted_loss(logits: Tensor, batch: Mapping[str, Any], total: Tensor | None = None) -> Tensor:
    """Return the cross entropy of a `neat` batch: Σ w·ce / Σ w by `loss_weight`, or the mean over trained tokens.

    Args:
        logits: [B, S, vocabulary].
        total: Σ w over all batches of one step, accumulated and on all ranks (`total_weight`). The losses of these
            batches then add up to the loss of the same samples as one unpacked batch. By default this batch's own.
    """
    each, weights, _ = _token_losses(logits, batch)
    divisor = (weights.sum() if total is None else total.to(logits.device)).clamp(min=1e-9)  # nothing trained: 0
    loss: Tensor = (each * weights).sum(dtype=divisor.dtype) / divisor
    return loss


def source_losses(logits: Tensor, batch: Mapping[str, Any], sources: Sequence[str]) -> Tensor:
    """Return the loss of each source of a mixture in a `neat` batch, as sums that add up over batches and ranks.

    Args:
        logits: [B, S, vocabulary].
        sources: the names of all sources, in one order on all ranks: `PackedTaskEncoder.sources`. Empty: all samples
            count as one source.

    Returns:
        float64 [2, num_sources]: Σ w·ce and Σ w. Their quotient is the loss of each source; the quotient of their sums
        is `weighted_loss`.
    """
    each, weights, members = _token_losses(logits.detach(), batch)
    number = {name: index for index, name in enumerate(sources)}
    width = max(map(len, batch["sample_ids"]), default=0) + 1
    of_member = torch.zeros(len(batch["sample_ids"]), width, dtype=torch.int64)
    for row, ids in enumerate(batch["sample_ids"]):
        for place, sample_id in enumerate(ids if sources else (), 1):
            name = sample_id.partition("/")[0]
            if name not in number:
                raise ValueError(f"{sample_id}: its entry {name!r} is none of {', '.join(sources)}")
            of_member[row, place] = number[name]
    rows = torch.arange(len(of_member), device=logits.device)[:, None].expand(members.shape)
    source = of_member.to(logits.device)[rows, members].flatten()
    sums = torch.zeros(2, max(1, len(sources)), dtype=torch.float64, device=logits.device)
    sums[0].index_add_(0, source, (each * weights).double())
    sums[1].index_add_(0, source, weights.double())
    return sums


def _token_losses(logits: Tensor, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Return cross entropy and weight of each label [B·T], and the number of its member in the row [B, T]."""
    labels, weights, members = batch["labels"], _token_weights(batch), batch.get("doc_ids")
    members = torch.zeros_like(labels) if members is None else members
    if "_packed_seq_ids" not in batch:  # not shifted yet
        logits, labels, weights, members = logits[:, :-1], labels[:, 1:], weights[:, 1:], members[:, 1:]
    each = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten().to(logits.device), ignore_index=IGNORE, reduction="none"
    )
    return each, weights.flatten().to(logits.device), members.to(logits.device)


def _token_weights(batch: Mapping[str, Any]) -> Tensor:
    if "preference_pairs" in batch:
        from energon_pack.training.preference import SFT_REFUSED

        raise ValueError(SFT_REFUSED)
    weights: Tensor | None = batch.get("loss_weight")
    return (batch["labels"] != IGNORE).float() if weights is None else weights


def _refuse_cut_batch(batch: Mapping[str, Any]) -> None:
    """Raise ValueError if a trainer cut every tensor to its first B entries.

    B rows have at least B + 1 boundaries; a cut batch has at most B. Only shapes are read: nothing waits for a device.
    """
    ids = batch.get("input_ids")
    for name in ("cu_seq_lens_q", "cu_seqlens_q"):
        boundaries = batch.get(name)
        if isinstance(ids, Tensor) and isinstance(boundaries, Tensor) and len(boundaries) <= max(1, len(ids)):
            raise ValueError(
                f"a batch of packs was cut: {len(ids)} rows and {len(boundaries)} boundaries of members. Accelerate"
                " does so with dispatch_batches, its default for an IterableDataset, and with split_batches: give the"
                " loader to the training loop as it is, without accelerator.prepare, and in a Trainer from"
                " get_train_dataloader (recipes/train_trainer.py)"
            )


def touch_vision(model: Any, batch: Mapping[str, Any]) -> Tensor:
    """Return 0, computed from the batch's dummy image by the vision tower; add it to the loss.

    Each rank then has gradients for this tower. In a model that takes sounds, the other towers have some, too.
    """
    return _touch_vision_tower(model, batch) + _touch_audio_towers(model)


def _touch_audio_towers(model: Any) -> Tensor:
    """Return 0, computed from all parameters outside the language model's layers, if the model takes sounds."""
    nothing = torch.zeros((), device=next(model.parameters()).device)
    if not (hasattr(model, "get_audio_features") or hasattr(getattr(model, "config", None), "audio_config")):
        return nothing
    always = (model.get_decoder().layers, model.get_input_embeddings(), model.get_output_embeddings())
    known = {id(parameter) for part in always if part is not None for parameter in part.parameters()}
    trained = [weight for weight in model.parameters() if weight.requires_grad and id(weight) not in known]
    return sum(((weight * 0.0).sum() for weight in trained), nothing)  # in float16 a sum of weights may be infinite


def _touch_vision_tower(model: Any, batch: Mapping[str, Any]) -> Tensor:
    """Return 0, computed from the batch's dummy image by the vision tower; a constant if there is none."""
    dummy = {name.removeprefix("dummy_"): value for name, value in batch.items() if name.startswith("dummy_")}
    if not dummy:
        return torch.zeros((), device=model.device)
    if "pixel_values" not in dummy:  # VideoLLaVA's and Phi-4's `forward` have another name for images
        dummy["pixel_values"] = next(value for name, value in dummy.items() if "pixel_values" in name)
    methods = [part.get_image_features for part in model.modules() if hasattr(part, "get_image_features")]
    known = [dummy.keys() & inspect.signature(method).parameters for method in methods]
    most = max(range(len(methods)), key=lambda i: len(known[i]), default=None)  # outer ones may take the rest unnamed
    if most is None or "pixel_values" not in known[most]:
        raise ValueError(f"{type(model).__name__} has no get_image_features for a dummy image: dummy_image=False")
    features = methods[most](**{name: dummy[name].to(model.device) for name in known[most]}, return_dict=True)
    return torch.stack([part.sum() for part in tensors_in(getattr(features, "pooler_output", features))]).sum() * 0.0


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield a tensor, or the tensors in nested lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
