"""Use packs in NeMo Automodel (0.7): a dataset and a collate function for `_target_` in its YAML, no patches.

    dataset:
      _target_: energon_pack.automodel.dataset
      pack: [+model=qwen3_vl, source.path=/data/wds, packing.max_token_len=8192]
      mask: flash_varlen
    dataloader:
      collate_fn: {_target_: energon_pack.automodel.collate}

`validation_dataset` and `validation_dataloader` are written alike. Leave out `packed_sequence`: it would pack the packs
again. Batches have the keys of Automodel's own packs; labels are shifted within each member. Only the built model shows
which mask keeps members apart, and no data loader sees it: call `check_automodel(recipe)`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_tensor

from energon_pack.errors import PackError
from energon_pack.online.lazy import LazyPackedDataset
from energon_pack.training.batch import PackedBatch
from energon_pack.training.encoded import TrainingPack
from energon_pack.training.refusals import refuse_trees, refuse_weights

#: `mask`: how a neat batch tells attention where its members are
MASKS = {
    "flash_varlen": "flash_attention_2, _3 and _4 of transformers: cu_seq_lens, no mask",
    "positions": "sdpa and eager of transformers: positions with a row that starts again, no mask",
    "block_causal": "sdpa of Automodel's own models: bool [B, 1, S, S]",
    "document_ids": "fa4, and models that make their masks themselves: [B, S]",
    "metadata": "te of Qwen3.5: lengths and indices alone",
}


def neat_inputs(batch: PackedBatch, lengths: Sequence[Sequence[int]], mask: str, metadata: bool) -> dict[str, Any]:
    """Return a `neat` batch's text inputs, as `collate` lists them; `lengths`: tokens of the members of each row."""
    documents, positions = batch["doc_ids"].long(), batch["position_ids"]
    names = ("input_ids", "labels", "position_ids", "mm_token_type_ids")
    inputs = {**{name: batch[name] for name in names}, "_packed_seq_ids": documents}
    if positions.dim() == 3 and mask != "positions":
        inputs["position_ids"] = positions[1:]
    if mask == "flash_varlen":
        inputs |= {name: batch[name] for name in ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")}
    elif mask == "positions":
        inputs["use_cache"] = False
    elif mask == "document_ids":
        inputs["attention_mask"] = documents
    elif mask == "block_causal":
        same = (documents[:, :, None] == documents[:, None, :]) & (documents > 0)[:, :, None]
        inputs["attention_mask"] = same.tril()[:, None]
    return inputs | (_boundary_metadata(documents, lengths) if metadata or mask == "metadata" else {})


def _boundary_metadata(documents: Tensor, lengths: Sequence[Sequence[int]]) -> dict[str, Any]:
    most = max(map(len, lengths))
    ends = [pad_tensor(torch.tensor(row).cumsum(0), (1, most - len(row)), value=-1) for row in lengths]
    starts = torch.stack(ends).int()
    starts[:, 0] = 0
    indices = torch.arange(documents.shape[1]).expand_as(documents)
    return {
        "packed_token_indices": indices.masked_fill(documents == 0, -1),
        "cu_seqlens": starts,
        "max_seqlen": max(map(max, lengths)),
    }


def build_thd_text_inputs(batch: PackedBatch) -> dict[str, Any]:
    """Return the text inputs of a `thd` batch; Automodel itself makes one row and the boundaries from the lengths."""
    inputs = {name: batch[name] for name in ("input_ids", "labels", "position_ids")}
    lengths = {name: batch[name].long()[None] for name in ("seq_lens", "seq_lens_padded")}
    return {**inputs, **lengths, "qkv_format": "thd"}


def build_media_inputs(batch: PackedBatch, pixel_dtype: str | None, num_rows: int) -> dict[str, Tensor]:
    """Return media inputs, pixels as dtype `pixel_dtype` (None: unchanged), and the images and videos of each row."""
    inputs: dict[str, Tensor] = {name: batch[name] for name in batch["media_keys"]}
    if pixel_dtype is not None:
        inputs |= {
            name: value.to(getattr(torch, pixel_dtype)) for name, value in inputs.items() if "pixel_values" in name
        }
    counts = {name: batch[name].view(num_rows, -1).sum(1) for name in ("n_images_per_sample", "n_videos_per_sample")}
    return inputs | {name: count for name, count in counts.items() if count.any()}


__all__ = ["PackRows", "check_automodel", "collate", "dataset"]


def dataset(
    pack: Sequence[str],
    *,
    mask: str | None = None,
    metadata: bool = False,
    pixels: str | None = "bfloat16",
    **settings: Any,
) -> "PackRows":
    """Return a dataset of packs for `dataset` or `validation_dataset` of a YAML.

    Args:
        pack: overrides as on the command line.
        mask: a key of `MASKS`, chosen by the model's attention; none with `packing=thd`.
        metadata: add `packed_token_indices`, `cu_seqlens` and `max_seqlen` to another mask, as Qwen3.5 needs.
        pixels: floating dtype of pixels in a batch; null: the processor's.
        settings: arguments of LazyPackedDataset: `split`, `max_packs`, `pad_to`, `on_bad_member` …
    """
    if mask not in (None, *MASKS):
        raise PackError(f"mask={mask}: one of {', '.join(MASKS)}")
    dtype = None if pixels is None else getattr(torch, str(pixels), None)
    if pixels is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise PackError(f"pixels={pixels}: a dtype of torch for numbers with a fraction, such as bfloat16, or null")
    for name in ("loss_weight", "dummy_image", "labels"):
        if name in settings:
            raise PackError(f"{name}={settings[name]}: Automodel's training step has no place for it; leave it out")
    return PackRows(
        partial(LazyPackedDataset, pack, labels="shifted", rope_rows=True, **settings), mask, metadata, pixels
    )


@dataclass(frozen=True)
class PackRows(torch.utils.data.Dataset["PackRow"]):
    """A map-style dataset of packs, with the settings of Automodel's batches.

    They are planned at the first `len()`, which all ranks call together. Planning earlier would hang: while Automodel
    makes a dataset, the other ranks wait for the first one.
    """

    make: Callable[[], LazyPackedDataset]
    mask: str | None = None
    metadata: bool = False
    pixels: str | None = "bfloat16"

    @cached_property
    def packs(self) -> LazyPackedDataset:
        packs = self.make()
        layout = packs.encoder.layout
        if (self.mask is None) == (layout == "neat"):
            told = f"one of {', '.join(MASKS)}, by the attention of the model" if self.mask is None else "leave it out"
            raise PackError(f"mask={self.mask} with layout={layout}: {told}")
        return packs

    def __len__(self) -> int:
        return len(self.packs)

    def __getitem__(self, index: int) -> "PackRow":
        return PackRow(self.packs[index], self)

    def robust_collate(self, collate_fn: Callable[[Any], Any]) -> "EpochCollate":
        """Return the collate function for Automodel's loader, by which Automodel also sets epochs."""
        return EpochCollate(collate_fn, self)


@dataclass(frozen=True)
class EpochCollate:
    """A collate function whose `set_epoch` Automodel's scheduler calls: each epoch has its own plan."""

    collate_fn: Callable[[Any], Any]
    dataset: PackRows

    def __call__(self, rows: Sequence["PackRow"]) -> Any:
        return self.collate_fn(rows)

    def set_epoch(self, epoch: int) -> None:
        self.dataset.packs.set_epoch(epoch)


class PackRow(NamedTuple):
    """An item of `PackRows`: a pack, and the dataset with the settings of its batch."""

    pack: TrainingPack
    dataset: PackRows


def collate(rows: Sequence[PackRow], processor: Any = None) -> dict[str, Any]:
    """Make a batch in the form of Automodel's `neat_packed_vlm_collater` or `packed_sequence_thd_vlm_collater`.

    Args:
        rows: B packs; one in `thd` (`step_scheduler.local_batch_size: 1`).
        processor: Automodel passes it to every collate function; not used.

    Returns:
        neat: input_ids, labels, mm_token_type_ids, _packed_seq_ids [B, S]; position_ids [B, S], or [3, B, S] of M-RoPE;
        and by `mask`: cu_seq_lens_q/k and max_length_q/k; or position_ids [4, B, S] and use_cache; or attention_mask
        [B, 1, S, S] or [B, S]; with metadata packed_token_indices [B, S], cu_seqlens int32 [B, members + 1], -1 on what
        is not there, and max_seqlen. thd: input_ids, labels [1, T], position_ids [1, T] or [3, 1, T], seq_lens,
        seq_lens_padded [1, members], qkv_format. Both: the processor's media, n_images_per_sample and
        n_videos_per_sample [B] where there are any.
    """
    refuse_weights([row.pack for row in rows], "Automodel's loss", "take such samples out, or train without Automodel")
    refuse_trees([row.pack for row in rows], "Automodel")
    dataset = rows[0].dataset
    encoder = dataset.packs.encoder
    batch = encoder.batch([row.pack for row in rows])
    if dataset.mask is None:
        text = build_thd_text_inputs(batch)
    else:
        lengths = [[len(member.tokens) for member in row.pack.members] for row in rows]
        text = neat_inputs(batch, lengths, dataset.mask, dataset.metadata)
    return {**text, **build_media_inputs(batch, dataset.pixels, len(rows))}


def check_automodel(recipe: Any) -> None:
    """Raise PackError if the model that Automodel built does not keep the members of its packs apart."""
    for name in ("cp_size", "pp_size"):
        if (size := getattr(recipe.mesh_context, name)) > 1:
            raise PackError(f"distributed.{name}={size}: packs were not tried with it; set 1")
    for loader in filter(None, (recipe.dataloader, recipe.val_dataloader)):
        if isinstance(loader.dataset, PackRows):
            check_members_kept_apart(recipe.model_parts, loader.dataset)


def check_members_kept_apart(models: Sequence[Any], rows: PackRows) -> None:
    """Raise PackError if Automodel's models (`model_parts`) do not keep the members of this dataset's packs apart."""
    packing = import_module("nemo_automodel.components.models.common.packing")
    if not hasattr(packing, "configure_packing_for_models"):
        raise PackError("this nemo_automodel packs by functions of transformers that it replaces: take 0.7 or newer")
    model, encoder = getattr(models[0], "module", models[0]), rows.packs.encoder
    attention = packing.get_model_attn_implementation(model)
    name = f"{type(model).__name__} with attention {attention}"
    has_thd = getattr(getattr(model, "ModelCapabilities", None), "supports_thd", False)
    if encoder.layout == "thd":
        if not has_thd or attention != "te":
            raise PackError(f"packing=thd: {name} has no place for it; te has in a model with THD, others take neat")
        return
    contract = packing.configure_packing_for_models(models)
    is_own = hasattr(model, "backend")  # else its attention is transformers'
    told = contract.packed_mask_type
    exact = {told}
    if not is_own and encoder.mask != "positions":
        raise PackError(f"model.mask={encoder.mask}: Automodel has one mask for all layers of {name}; positions goes")
    if told == "block_causal" and not is_own:
        exact = {"sdpa": {"positions", "block_causal"}, "eager": {"positions"}}.get(attention, set())
    elif told == "block_causal" and not contract.requires_packed_sequence_metadata and has_thd:
        exact = set()
    elif told == "block_causal" and attention == "te":
        exact = {"metadata"} if contract.requires_packed_sequence_metadata else set()
    if rows.mask not in exact:
        knob = f"mask: {' or '.join(sorted(exact))}" if exact else f"packing={'thd and te' if has_thd else 'off'}"
        raise PackError(f"mask={rows.mask}: members would see each other in {name}; {knob}")
    if contract.requires_packed_sequence_metadata and not (rows.metadata or rows.mask == "metadata"):
        raise PackError(f"metadata=false: members would see each other in {name}; metadata: true")
