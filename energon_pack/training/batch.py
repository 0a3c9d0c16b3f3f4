"""A batch of packs: what of it goes to the model, and what is said about it."""

import inspect
import logging
from collections.abc import Iterator, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from energon_pack.training.inputs import MixingError, has_rope_rows, proven_mask
from energon_pack.training.layout import IGNORE, seq_idx
from energon_pack.training.masks import additive_masks, prefix_mask, sight_of
from energon_pack.training.pixels import MEDIA_KEYS
from energon_pack.training.wrapped import unwrapped

_log = logging.getLogger(__name__)
#: read on the host by Megatron's kernels
_ON_HOST = frozenset(("max_seqlen_q", "max_seqlen_kv"))
_TEXT_KEYS = (
    "input_ids", "labels", "position_ids", "attention_mask", "use_cache", "seq_idx",
    "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k",
)  # fmt: skip


class VisualInputs(SimpleNamespace):
    """Media of a `thd` batch as Megatron-Bridge's steps take them: attributes that are tensors or None."""

    def normalized_for_model(self) -> dict[str, Tensor]:
        """Those that are there."""
        return {name: value for name, value in vars(self).items() if value is not None}


class PackedBatch(dict[str, Any]):
    """The tensors of a batch by name, and their names' meaning.

    Trainers rebuild mappings with `type(batch)({...})`: all there is to say of a batch is therefore an item of it.

    Raises:
        ValueError: made of a batch that was cut to some of its rows.
    """

    def __init__(self, *args: Any, **items: Any):
        super().__init__(*args, **items)
        _refuse_cut(self)

    @property
    def mask(self) -> str:
        """What keeps members apart in the model: `positions`, `dict4d`, `prefix4d`, `hybrid`, `indexed`, or `auto`:
        what was found for the model by `guard`.
        """
        mask: str = self.get("mask", "positions")
        return mask

    @mask.setter
    def mask(self, value: str) -> None:
        self["mask"] = value

    @property
    def media_keys(self) -> frozenset[str]:
        """Names of media inputs, whether they are there or not."""
        return MEDIA_KEYS.union(self.get("media_keys", ()))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "PackedBatch":
        """The batch on a device; what kernels read on the host stays there."""

        def moved(name: str, value: Any) -> Any:
            if isinstance(value, Tensor) and name not in _ON_HOST:
                return value.to(device, non_blocking=non_blocking)
            if isinstance(value, VisualInputs):
                return VisualInputs(**{key: moved(key, item) for key, item in vars(value).items()})
            return value

        return PackedBatch({name: moved(name, value) for name, value in self.items()})

    def model_inputs(self, model: Any = None, labels: bool = True) -> dict[str, Any]:
        """What goes to `model.forward` of a `neat` batch; masks, where the model needs some, are made here.

        Args:
            model: needed where `mask` is `dict4d`, `prefix4d` or `auto`, and for packs of text in a model with M-RoPE:
                its window, dtype and device make the masks.
            labels: with which the model makes a loss of its own. A batch in which a token counts other than 1 has
                none: that loss knows of no weights, `weighted_loss` does.

        Raises:
            ValueError: the inputs can't be made without the model; the batch is no `neat` one.
            MixingError: the model takes M-RoPE rows, and this batch has images without them.
        """
        if "input_ids" not in self or "cu_seqlens_q" in self or "doc_ids" not in self:
            raise ValueError("model_inputs is for layout=neat; Megatron's layouts are the batch itself")
        model = unwrapped(model)
        inputs = PackedBatch({name: self[name] for name in (*_TEXT_KEYS, *sorted(self.media_keys)) if name in self})
        if model is not None and has_rope_rows(model):
            inputs["position_ids"] = self._rope_rows(model)
        if inputs["position_ids"].dim() == 3:
            inputs["mm_token_type_ids"] = self["mm_token_type_ids"]
        if not labels or self.get("is_weighted"):
            del inputs["labels"]
            if labels:
                _warn_of_weights()
        elif "_packed_seq_ids" in self:  # labels are shifted already
            inputs["shift_labels"] = self["labels"]
        mask = self.mask if self.mask != "auto" else proven_mask(model)
        if mask == "hybrid":
            inputs["seq_idx"] = seq_idx(self["cu_seq_lens_q"])
        if mask in ("dict4d", "prefix4d") and model is None:
            raise ValueError("this model needs masks of its own, made on its device: model_inputs(model)")
        if mask == "dict4d":
            inputs["attention_mask"] = self._masks(model)
        if mask == "prefix4d":
            inputs["attention_mask"] = self._prefix_mask(model)
        return inputs

    def _rope_rows(self, model: Any) -> Tensor:
        """[4, B, S]; in a text the three rows of M-RoPE are those of the text."""
        positions: Tensor = self["position_ids"]
        if positions.dim() == 3:
            return positions
        if self.media_keys & self.keys():
            raise MixingError(
                f"{type(model).__name__} takes M-RoPE rows, and this batch has plain positions for its media: pack with"
                " model.rope=… of this model, and its own processor"
            )
        return positions.expand(4, *positions.shape)

    def _masks(self, model: Any) -> dict[str, Tensor]:
        config = model.config.get_text_config()
        return additive_masks(
            self["doc_ids"].to(model.device),
            self["mm_token_type_ids"].to(model.device),
            getattr(config, "sliding_window", None),
            getattr(config, "attention_chunk_size", None),
            sight_of(model),
            model.dtype,
        )

    def _prefix_mask(self, model: Any) -> Tensor:
        labels = self["labels"]
        if "_packed_seq_ids" in self:  # shifted already
            labels = torch.nn.functional.pad(labels[:, :-1], (1, 0), value=IGNORE)
        return prefix_mask(self["doc_ids"].to(model.device), labels.to(model.device), model.dtype)


@cache
def _warn_of_weights() -> None:
    """Say once why a model's own loss is None."""
    _log.warning(
        "batches with weights: model_inputs leaves labels out, and the model's own loss is None, for it knows of no"
        " weights; take weighted_loss(outputs.logits, batch) (model_inputs(model, labels=False) ends this warning)"
    )


def total_weight(batch: Mapping[str, Any]) -> Tensor:
    """Σ w over a `neat` batch: what its loss counts for among others; without `loss_weight`, its trained tokens.

    Returns:
        0-d float64.
    """
    return _weights(batch).sum(dtype=torch.float64)


def weighted_loss(logits: Tensor, batch: Mapping[str, Any], total: Tensor | None = None) -> Tensor:
    """Cross entropy of a `neat` batch by its `loss_weight`: Σ w·ce / Σ w; without weights, the mean of its tokens.

    Args:
        logits: [B, S, vocabulary].
        total: Σ w of all batches that make one step, of all ranks and accumulated ones (`total_weight`): the losses of
            them all then add up to that of the samples as one unpacked batch. By default this batch's own.
    """
    labels, weights = batch["labels"], _weights(batch)
    if "_packed_seq_ids" not in batch:  # not shifted yet
        logits, labels, weights = logits[:, :-1], labels[:, 1:], weights[:, 1:]
    each = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten().to(logits.device), ignore_index=IGNORE, reduction="none"
    )
    weights = weights.flatten().to(logits.device)
    divisor = (weights.sum() if total is None else total.to(logits.device)).clamp(min=1e-9)  # nothing trained: 0
    loss: Tensor = (each * weights).sum(dtype=divisor.dtype) / divisor
    return loss


def _weights(batch: Mapping[str, Any]) -> Tensor:
    weights: Tensor | None = batch.get("loss_weight")
    return (batch["labels"] != IGNORE).float() if weights is None else weights


def _refuse_cut(batch: Mapping[str, Any]) -> None:
    """Every row has a boundary before and after its members: a batch that was cut to B rows has B of them at most.

    By shapes alone, so that nothing waits for a device.
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
    """0, by way of the vision tower and the batch's dummy image: added to the loss, every rank takes part in its
    gradients, and no token ever sees the dummy.

    Raises:
        ValueError: no part of the model has `get_image_features`.
    """
    dummy = {name.removeprefix("dummy_"): value for name, value in batch.items() if name.startswith("dummy_")}
    if not dummy:
        return torch.zeros((), device=model.device)
    if "pixel_values" not in dummy:  # VideoLLaVA's and Phi-4's `forward` have another name for images
        dummy["pixel_values"] = next(value for name, value in dummy.items() if "pixel_values" in name)
    looks = [part.get_image_features for part in model.modules() if hasattr(part, "get_image_features")]
    known = [dummy.keys() & inspect.signature(look).parameters for look in looks]
    most = max(range(len(looks)), key=lambda i: len(known[i]), default=None)  # outer ones may take the rest unnamed
    if most is None or "pixel_values" not in known[most]:
        raise ValueError(f"{type(model).__name__} has no get_image_features for a dummy image: dummy_image=False")
    features = looks[most](**{name: dummy[name].to(model.device) for name in known[most]}, return_dict=True)
    return torch.stack([part.sum() for part in tensors_in(getattr(features, "pooler_output", features))]).sum() * 0.0


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of a tensor, or of lists of them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
