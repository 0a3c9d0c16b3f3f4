"""Rename a batch of packs to the keys that NeMo Automodel's own batches have: tensors in, tensors out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_tensor

from energon_pack.training.batch import PackedBatch

#: `mask`: how a neat batch tells attention where its members are
MASKS = {
    "flash_varlen": "flash_attention_2, _3 and _4 of transformers: cu_seq_lens, no mask",
    "positions": "sdpa and eager of transformers: positions with a row that starts again, no mask",
    "block_causal": "sdpa of Automodel's own models: bool [B, 1, S, S]",
    "document_ids": "fa4, and models that make their masks themselves: [B, S]",
    "metadata": "te of Qwen3.5: lengths and indices alone",
}


def neat(batch: PackedBatch, lengths: Sequence[Sequence[int]], mask: str, metadata: bool) -> dict[str, Any]:
    """Return the text inputs of a `neat` batch with shifted labels; `automodel.collate` lists them.

    Args:
        lengths: tokens of each row's members.
        mask: a key of `MASKS`.
    """
    documents, positions = batch["doc_ids"].long(), batch["position_ids"]
    names = ("input_ids", "labels", "position_ids", "mm_token_type_ids")
    made = {**{name: batch[name] for name in names}, "_packed_seq_ids": documents}
    if positions.dim() == 3 and mask != "positions":
        made["position_ids"] = positions[1:]
    if mask == "flash_varlen":
        made |= {name: batch[name] for name in ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")}
    elif mask == "positions":
        made["use_cache"] = False
    elif mask == "document_ids":
        made["attention_mask"] = documents
    elif mask == "block_causal":
        same = (documents[:, :, None] == documents[:, None, :]) & (documents > 0)[:, :, None]
        made["attention_mask"] = same.tril()[:, None]
    return made | (_metadata(documents, lengths) if metadata or mask == "metadata" else {})


def _metadata(documents: Tensor, lengths: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the index of each token and the starts of members; each row counts from 0."""
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


def thd(batch: PackedBatch) -> dict[str, Any]:
    """Return the text inputs of a `thd` batch; Automodel itself makes one row and the boundaries from the lengths."""
    made = {name: batch[name] for name in ("input_ids", "labels", "position_ids")}
    lengths = {name: batch[name].long()[None] for name in ("seq_lens", "seq_lens_padded")}
    return {**made, **lengths, "qkv_format": "thd"}


def media(batch: PackedBatch, pixels: str | None, num_rows: int) -> dict[str, Tensor]:
    """Return the processor's media, and how many images and videos each row has if any row has some.

    Args:
        pixels: dtype for inputs named `…pixel_values…`; None: unchanged.
    """
    found: dict[str, Tensor] = {name: batch[name] for name in batch["media_keys"]}
    if pixels is not None:
        found |= {name: value.to(getattr(torch, pixels)) for name, value in found.items() if "pixel_values" in name}
    counts = {name: batch[name].view(num_rows, -1).sum(1) for name in ("n_images_per_sample", "n_videos_per_sample")}
    return found | {name: count for name, count in counts.items() if count.any()}
