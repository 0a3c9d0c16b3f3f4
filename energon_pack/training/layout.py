"""Lay members out in one sequence: tensors in, tensors out; nothing here knows of samples, files or Energon.

Three members of 3, 2 and 4 tokens in a row 12 wide (`neat`), x = pad, · = not trained on (-100):

    input_ids     a0 a1 a2 b0 b1 c0 c1 c2 c3  x  x  x
    labels         · a1 a2  · b1  · c1 c2 c3  ·  ·  ·      the model shifts; the next member is never predicted
    position_ids   0  1  2  0  1  0  1  2  3  0  1  2      starting again is what keeps members apart
    doc_ids        1  1  1  2  2  3  3  3  3  0  0  0
    cu_seq_lens    0        3     5           9       12   the pad tail is a document of its own

The members of a pack are columns, one member behind the other; nothing loops over members, but weights by their sum.
Megatron's layouts are in `megatron_layouts`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad as pad_tensor

from energon_pack.training.encoded import IGNORE as IGNORE
from energon_pack.training.encoded import Member as Member
from energon_pack.training.encoded import Members

Batch = dict[str, Any]


@dataclass(frozen=True)
class RowForm:
    """How members are laid out in rows, the same for a whole run."""

    pad_id: int = 0
    #: tokens of each row; None: as many as the longest row has
    width: int | None = None
    #: each member's length is rounded up to a multiple of this (thd)
    multiple: int = 1
    #: whether labels are shifted within each member (neat; thd's always are)
    shifted: bool = False
    #: None, token, sample or sqrt: see `loss_weights`
    weights: str | None = None
    #: whether position_ids hold M-RoPE rows
    rope: bool = False


def loss_weights(members: Member | Members, kind: str) -> Tensor:
    """Return the weight of each token, from the factor s of its sample and the weight w of each trained token.

    Args:
        kind: `token`: s·w, `sample`: s·w/Σw, `sqrt`: s·w/√Σw; n trained tokens of weight 1 have a Σw of n.

    Returns:
        [T] float32, 0 for tokens that are not trained on.
    """
    pack = Members.of([members]) if isinstance(members, Member) else members
    weights = (pack.labels != IGNORE).float()
    if pack.weights is not None:
        weights *= pack.weights
    if kind != "token":
        sums = torch.stack([own.sum() for own in weights.split(pack.lens.tolist())])
        divisors = torch.where(sums > 0, sums ** {"sample": 1.0, "sqrt": 0.5}[kind], 1.0)
        weights /= divisors.repeat_interleave(pack.lens)
    return weights if pack.factors is None else weights * pack.factors.float().repeat_interleave(pack.lens)


def lay_out_neat_rows(members_by_row: Sequence[Sequence[Member]], form: RowForm) -> Batch:
    """Lay members out in rows for transformers and libraries that follow its conventions.

    Returns:
        input_ids, labels, doc_ids, mm_token_type_ids [B, S]; position_ids [4, B, S] where `form.rope` (text, then
        time, height, width), else [B, S]; cu_seq_lens_q/k int32 [documents + 1] over the flattened B·S;
        max_length_q/k; use_cache False; loss_weight [B, S] with `form.weights`, or if a member has weights;
        is_weighted: whether a trained token's weight is not 1; `_packed_seq_ids` [B, S] if labels are shifted; each
        entry of the members' `rows` [B, S].
    """
    packs = [Members.of(row) for row in members_by_row]
    lengths: list[list[int]] = [pack.lens.tolist() for pack in packs]
    sizes = [len(pack.ids) for pack in packs]
    width = form.width or max(sizes)
    if (most := max(sizes)) > width:
        raise ValueError(f"a pack of {most} tokens in a row {width} wide")
    documents = [[*row, width - size] if size < width else row for row, size in zip(lengths, sizes, strict=True)]
    positions = _padded_rows([pack.counts for pack in packs], width, 0)
    for row, size in zip(positions, sizes, strict=True):
        row[size:] = torch.arange(width - size)
    labels = [next_token_values(pack.labels, pack.lens, IGNORE) if form.shifted else pack.labels for pack in packs]
    batch: Batch = {
        "input_ids": _padded_rows([pack.ids for pack in packs], width, form.pad_id),
        "labels": _padded_rows(labels, width, IGNORE),
        "position_ids": positions,
        "mm_token_type_ids": _padded_rows([pack.types for pack in packs], width, 0),
        "doc_ids": _padded_rows([member_numbers(pack.lens) for pack in packs], width, 0),
        "use_cache": False,
    }
    for name in packs[0].rows:
        batch[name] = _padded_rows([pack.rows[name] for pack in packs], width, 0)
    if form.rope:
        batch["position_ids"] = positions.repeat(4, 1, 1)
        for index, pack in enumerate(packs):
            if pack.rope is not None and pack.rope.stride(0):  # else text, which counts as the pad tail does
                batch["position_ids"][1:, index, : sizes[index]] = pack.rope
    if form.weights or any(pack.is_weighted for pack in packs):
        weights = [weights_aligned_to_labels(pack, form.weights, form.shifted) for pack in packs]
        batch["loss_weight"] = _padded_rows(weights, width, 0.0)
        batch["is_weighted"] = not torch.equal(batch["loss_weight"], (batch["labels"] != IGNORE).float())
    if form.shifted:
        batch["_packed_seq_ids"] = batch["doc_ids"]
    every = np.array([length for row in documents for length in row])
    boundaries, longest = boundaries_of(torch.from_numpy(every)), int(every.max())
    return batch | {
        "cu_seq_lens_q": boundaries,
        "cu_seq_lens_k": boundaries,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def seq_idx(cu_seq_lens: Tensor) -> Tensor:
    """Return the document number of each token of one row, for gated delta nets and Mamba: int32 [1, S], from 0."""
    numbers = torch.arange(len(cu_seq_lens) - 1, dtype=torch.int32, device=cu_seq_lens.device)
    return torch.repeat_interleave(numbers, cu_seq_lens.diff().long()).unsqueeze(0)


def next_token_values(values: Tensor, lens: Tensor, fill: float) -> Tensor:
    """Move each member's values one token forward; its last token gets `fill`."""
    shifted = values.roll(-1)
    shifted[lens.cumsum(0) - 1] = fill
    return shifted


def weights_aligned_to_labels(pack: Members, kind: str | None, shifted: bool = True) -> Tensor:
    """Return `loss_weights` (`token` by default); if `shifted`, as labels are shifted."""
    weights = loss_weights(pack, kind or "token")
    return next_token_values(weights, pack.lens, 0.0) if shifted else weights


def _padded_rows(rows: Sequence[Tensor], width: int, fill: float) -> Tensor:
    return torch.stack([row if len(row) == width else _padded_to(row, width, fill) for row in rows])


def _padded_to(values: Tensor, width: int, fill: float) -> Tensor:
    return pad_tensor(values, (0, width - len(values)), value=fill)


def member_numbers(lens: Tensor) -> Tensor:
    """Return the number of each token's member, from 1: int32 [T]."""
    return torch.from_numpy(np.repeat(np.arange(1, len(lens) + 1, dtype=np.int32), lens.numpy()))


def boundaries_of(lens: Tensor) -> Tensor:
    """Return the boundaries of consecutive segments of these lengths, from 0: int32 [n + 1]."""
    return torch.from_numpy(np.append(0, np.cumsum(lens.numpy())).astype(np.int32))
