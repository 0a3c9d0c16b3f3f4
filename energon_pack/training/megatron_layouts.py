"""Lay members out for Megatron's stacks: tensors in, tensors out.

Three members of 3, 2 and 4 tokens, each rounded up to 4 (`thd`), with shifted labels, _ = gap, · = not trained on:

    input_ids     a0 a1 a2  _ b0 b1  _  _ c0 c1 c2 c3
    labels        a1 a2  ·  · b1  ·  ·  · c1 c2 c3  ·
    position_ids   0  1  2  3  0  1  2  3  0  1  2  3
    cu_seqlens     0 3 5 9        cu_seqlens_padded  0 4 8 12
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_tensor

from energon_pack.training.batch import VisualInputs
from energon_pack.training.encoded import IGNORE, Member, Members, restarting_counts
from energon_pack.training.forward_inputs import MEDIA_KEYS
from energon_pack.training.layout import (
    Batch,
    RowForm,
    boundaries_of,
    member_numbers,
    next_token_values,
    weights_aligned_to_labels,
)


def thd(members: Sequence[Member], form: RowForm) -> Batch:
    """Lay members out in one physical row of T tokens for Megatron and Transformer Engine.

    Returns:
        input_ids, labels, loss_mask, padding_mask [1, T], position_ids [1, T], or [3, 1, T] where `form.rope`;
        attention_mask None; cu_seqlens_q/kv int32 [n + 1] of real lengths, with `_padded` ones beside them if
        anything is padded; max_seqlen_q/kv int32 0-d; total_tokens; seq_lens, seq_lens_padded int32 [n]; each
        entry of the members' `rows` [1, T].
    """
    pack = Members.of(members)
    slots = _slots(pack.lens, form)
    gaps, positions = bool((slots > pack.lens).any()), torch.from_numpy(restarting_counts(slots.numpy()))
    real = positions < pack.lens.repeat_interleave(slots)

    def with_gaps(values: Tensor, fill: float) -> Tensor:
        return (_spread(values, real, fill) if gaps else values.clone()).unsqueeze(0)

    batch: Batch = {
        "input_ids": with_gaps(pack.ids, form.pad_id),
        "labels": with_gaps(next_token_values(pack.labels, pack.lens, IGNORE), IGNORE),
        "loss_mask": with_gaps(weights_aligned_to_labels(pack, form.weights), 0.0),
        "position_ids": positions.unsqueeze(0),
        "padding_mask": ~real.unsqueeze(0),
        "mm_token_type_ids": with_gaps(pack.types, 0),
        "attention_mask": None,
        "total_tokens": len(positions),
        "seq_lens": pack.lens.int(),
        "seq_lens_padded": slots.int(),
    }
    batch |= {name: with_gaps(row, 0) for name, row in pack.rows.items()}
    if form.rope:
        batch["position_ids"] = positions.repeat(3, 1, 1)
        if pack.rope is not None:  # it goes on through a gap
            numbers = member_numbers(slots).long() - 1
            last = torch.zeros(len(pack), dtype=torch.int64).scatter_reduce(0, numbers[real], pack.rope.amax(0), "amax")
            rope = (positions - (pack.lens - last - 1)[numbers]).repeat(3, 1)
            rope[:, real] = pack.rope
            batch["position_ids"] = rope.unsqueeze(1)
    boundaries, longest = boundaries_of(pack.lens), slots.max().int()
    batch |= {"cu_seqlens_q": boundaries, "cu_seqlens_kv": boundaries}
    if gaps:
        padded = boundaries_of(slots)
        batch |= {"cu_seqlens_q_padded": padded, "cu_seqlens_kv_padded": padded}
    return batch | {"max_seqlen_q": longest, "max_seqlen_kv": longest}


def _slots(lens: Tensor, form: RowForm) -> Tensor:
    """Return how many tokens each member takes in a row of `thd`."""
    slots = -(-lens // form.multiple) * form.multiple
    if form.width is not None:
        if slots.sum() > form.width:
            raise ValueError(
                f"a pack of {int(slots.sum())} tokens, members rounded up to {form.multiple}, in {form.width}"
            )
        slots[-1] += form.width - slots.sum()
    return slots


def one_row_per_member(members: Sequence[Member], form: RowForm) -> Batch:
    """Lay each member out in a row of its own, padded on the right: Megatron-Bridge up to 0.5 packs the rows itself.

    It takes the last token other than 0 for the end of a row, so gaps are filled with 0 whatever the pad id is.

    Returns:
        input_ids, labels, loss_mask, position_ids [n, longest]; attention_mask None.
    """
    pack = Members.of(members)
    if bool((pack.ids[pack.lens.cumsum(0) - 1] == 0).any()):
        raise ValueError("a member ends with token 0, which Megatron-Bridge up to 0.5 takes for padding")
    counts = torch.arange(int(pack.lens.max())).repeat(len(pack), 1)
    real = counts < pack.lens.unsqueeze(1)
    return {
        "input_ids": _spread(pack.ids, real, 0),
        "labels": _spread(next_token_values(pack.labels, pack.lens, IGNORE), real, IGNORE),
        "loss_mask": _spread(weights_aligned_to_labels(pack, form.weights), real, 0.0),
        "position_ids": counts,
        "attention_mask": None,
    }


def multimodal(members: Sequence[Member], form: RowForm) -> Batch:
    """Lay members out in one row with the keys of the data loaders of Megatron-LM's multimodal example and of AIAK.

    Their training step shifts the labels itself, so labels are one longer than the tokens. Boundaries include the gaps.
    The step makes its loss mask from the labels, so weights have no place.

    Returns:
        tokens [1, T], labels [1, T + 1], cu_lengths int32 [1, n + 1], max_lengths int32 [1].
    """
    packed = thd(members, form)
    labels = _spread(Members.of(members).labels, ~packed["padding_mask"], IGNORE)
    return {
        "tokens": packed["input_ids"],
        "labels": pad_tensor(labels, (0, 1), value=IGNORE),
        "cu_lengths": packed["cu_seqlens_q_padded" if "cu_seqlens_q_padded" in packed else "cu_seqlens_q"].unsqueeze(0),
        "max_lengths": packed["max_seqlen_q"].view(1),
    }


def _spread(values: Tensor, real: Tensor, fill: float) -> Tensor:
    """Put values where `real` is true, one behind the other; all else is `fill`."""
    return values.new_full(real.shape, fill).masked_scatter_(real, values)


def add_media_for_megatron(
    layout: str, batch_media: dict[str, Any], media: dict[str, Tensor], types: Tensor | None
) -> Batch:
    """Return `batch_media` with the media inputs under the names that Megatron's stacks use.

    Args:
        batch_media: media inputs of a batch, by the processor's names, and what else belongs to them.
        types: `mm_token_type_ids` of a batch of `thd`; None: it has no media.
    """
    if layout == "thd":
        every = dict.fromkeys(sorted(MEDIA_KEYS)) | media
        batch_media["visual_inputs"] = VisualInputs(**every, mm_token_type_ids=types)
        if "pixel_values" in media and media["pixel_values"].dim() == 4:  # InternVL's tiles
            batch_media["image_flags"] = torch.ones(len(media["pixel_values"]), dtype=torch.int64)
        return batch_media
    pixels = batch_media.pop("pixel_values", torch.zeros(1, 1))
    # Megatron broadcasts no empty tensors: [[0]] says that there are no tiles.
    tiles = torch.ones(len(pixels), dtype=torch.int32) if media else torch.zeros(1, 1, dtype=torch.int32)
    return batch_media | {"imgs": pixels, "num_tiles": tiles}


def choose_pad_multiple(requested_multiple: int | None, planned_multiple: int) -> int:
    """Return the multiple to which members are padded: the requested one, or else the packing's planned one."""
    if requested_multiple is not None and (requested_multiple < 1 or planned_multiple % requested_multiple):
        raise ValueError(
            f"pad_to_multiple_of={requested_multiple} does not divide {planned_multiple}, with which it was packed:"
            f" packing.pad_to_multiple_of={math.lcm(max(requested_multiple, 1), planned_multiple)} serves both"
        )
    return requested_multiple or planned_multiple
