"""Lay members out in one sequence: tensors in, tensors out; nothing here knows of samples, files or Energon.

Three members of 3, 2 and 4 tokens in a row 12 wide (`neat`), x = pad, · = not trained on (-100):

    input_ids     a0 a1 a2 b0 b1 c0 c1 c2 c3  x  x  x
    labels         · a1 a2  · b1  · c1 c2 c3  ·  ·  ·      the model shifts; the next member is never predicted
    position_ids   0  1  2  0  1  0  1  2  3  0  1  2      starting again is what keeps members apart
    doc_ids        1  1  1  2  2  3  3  3  3  0  0  0
    cu_seq_lens    0        3     5           9       12   the pad tail is a document of its own

The same with each member rounded up to 4 (`thd`), shifted labels, _ = gap:

    input_ids     a0 a1 a2  _ b0 b1  _  _ c0 c1 c2 c3
    labels        a1 a2  ·  · b1  ·  ·  · c1 c2 c3  ·
    position_ids   0  1  2  3  0  1  2  3  0  1  2  3
    cu_seqlens     0 3 5 9        cu_seqlens_padded  0 4 8 12

Rows are built by `repeat_interleave` over the members' lengths; Python loops over members, never over tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_tensor

#: label of a token that is not trained on
IGNORE = -100

Batch = dict[str, Any]


@dataclass(frozen=True)
class Member:
    """One sample of L tokens as tensors, as the model would see it alone."""

    ids: Tensor  # [L] int64
    labels: Tensor  # [L] int64, not shifted, -100 where not trained on and on the first token
    types: Tensor  # [L] int64: 0 text, 1 image, 2 video
    rope: Tensor | None = None  # [3, L] int64: M-RoPE rows, in models that have them
    rows: Mapping[str, Tensor] = field(default_factory=dict)  # [L] int64 each: a model's further inputs by token
    weights: Tensor | None = None  # [L] float32: how much each token counts, by its turn; None: all 1
    factor: float = 1.0  # weight of the whole sample
    shared_len: int = 0  # how many first tokens it shares with the member before it in the pack

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_weighted(self) -> bool:
        """Whether the sample or one of its turns has a weight."""
        return self.weights is not None or self.factor != 1


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


def loss_weights(member: Member, kind: str) -> Tensor:
    """Return the weight of each token of a member, from the sample's factor s and the weight w of each trained token.

    Args:
        kind: `token`: s·w, `sample`: s·w/Σw, `sqrt`: s·w/√Σw; n trained tokens of weight 1 have a Σw of n.

    Returns:
        [L] float32, 0 for tokens that are not trained on.
    """
    weights = (member.labels != IGNORE).float()
    if member.weights is not None:
        weights *= member.weights
    if kind != "token" and (total := weights.sum()) > 0:
        weights /= total ** {"sample": 1.0, "sqrt": 0.5}[kind]
    return weights * member.factor if member.factor != 1 else weights


# -------------------------------------------------------------------------------------------------------------- neat


def neat(rows: Sequence[Sequence[Member]], form: RowForm) -> Batch:
    """Lay members out in rows for transformers and libraries that follow its conventions.

    Returns:
        input_ids, labels, doc_ids, mm_token_type_ids [B, S]; position_ids [4, B, S] where `form.rope` (text, then
        time, height, width), else [B, S]; cu_seq_lens_q/k int32 [documents + 1] over the flattened B·S;
        max_length_q/k; use_cache False; loss_weight [B, S] with `form.weights`, or if a member has weights;
        is_weighted: whether a trained token's weight is not 1; `_packed_seq_ids` [B, S] if labels are shifted; each
        entry of the members' `rows` [B, S].
    """
    lengths = [[len(member) for member in row] for row in rows]
    width = form.width or max(map(sum, lengths))
    for row_lengths in lengths:
        if sum(row_lengths) > width:
            raise ValueError(f"a pack of {sum(row_lengths)} tokens in a row {width} wide")
    tails = [width - sum(row_lengths) for row_lengths in lengths]
    documents = [[*row, tail] if tail else row for row, tail in zip(lengths, tails, strict=True)]
    every = torch.tensor([length for row in documents for length in row])
    positions = _restarting_counts(every).view(len(rows), width)
    doc_ids = torch.stack([_padded_to(_member_numbers(row), width, 0) for row in lengths])
    labels = [[_shifted_labels(m.labels) if form.shifted else m.labels for m in row] for row in rows]
    batch: Batch = {
        "input_ids": _padded_rows([[m.ids for m in row] for row in rows], width, form.pad_id),
        "labels": _padded_rows(labels, width, IGNORE),
        "position_ids": positions,
        "mm_token_type_ids": _padded_rows([[m.types for m in row] for row in rows], width, 0),
        "doc_ids": doc_ids,
        "use_cache": False,
    }
    for name in rows[0][0].rows:
        batch[name] = _padded_rows([[m.rows[name] for m in row] for row in rows], width, 0)
    if form.rope:
        batch["position_ids"] = torch.stack([positions, *_rope_rows(rows, positions)])
    if form.weights or any(member.is_weighted for row in rows for member in row):
        weights = [[_member_weights(member, form.weights, form.shifted) for member in row] for row in rows]
        batch["loss_weight"] = _padded_rows(weights, width, 0.0)
        batch["is_weighted"] = not torch.equal(batch["loss_weight"], (batch["labels"] != IGNORE).float())
    if form.shifted:
        batch["_packed_seq_ids"] = doc_ids
    boundaries, longest = boundaries_of(every), int(every.max())
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


# --------------------------------------------------------------------------------------------------------------- thd


def thd(members: Sequence[Member], form: RowForm) -> Batch:
    """Lay members out in one physical row of T tokens for Megatron and Transformer Engine.

    Returns:
        input_ids, labels, loss_mask, padding_mask [1, T], position_ids [1, T], or [3, 1, T] where `form.rope`;
        attention_mask None; cu_seqlens_q/kv int32 [n + 1] of real lengths, with `_padded` ones beside them if
        anything is padded; max_seqlen_q/kv int32 0-d; total_tokens; seq_lens, seq_lens_padded int32 [n]; each
        entry of the members' `rows` [1, T].
    """
    lengths = torch.tensor([len(member) for member in members])
    slots = -(-lengths // form.multiple) * form.multiple
    if form.width is not None:
        if slots.sum() > form.width:
            raise ValueError(
                f"a pack of {int(slots.sum())} tokens, members rounded up to {form.multiple}, in {form.width}"
            )
        slots[-1] += form.width - slots.sum()
    gaps = (slots - lengths).tolist()
    positions = _restarting_counts(slots)
    is_gap = positions >= torch.repeat_interleave(lengths, slots)
    batch: Batch = {
        "input_ids": _concat_with_gaps([m.ids for m in members], gaps, form.pad_id),
        "labels": _concat_with_gaps([_shifted_labels(m.labels) for m in members], gaps, IGNORE),
        "loss_mask": _concat_with_gaps([_member_weights(m, form.weights, True) for m in members], gaps, 0.0),
        "position_ids": positions.unsqueeze(0),
        "padding_mask": is_gap.unsqueeze(0),
        "mm_token_type_ids": _concat_with_gaps([m.types for m in members], gaps, 0),
        "attention_mask": None,
        "total_tokens": int(slots.sum()),
        "seq_lens": lengths.int(),
        "seq_lens_padded": slots.int(),
    }
    batch |= {name: _concat_with_gaps([m.rows[name] for m in members], gaps, 0) for name in members[0].rows}
    if form.rope:
        rope = [_rope_with_gap(m_rope_rows(member), gap) for member, gap in zip(members, gaps, strict=True)]
        batch["position_ids"] = torch.cat(rope, dim=1).unsqueeze(1)
    boundaries, longest = boundaries_of(lengths), slots.max().int()
    batch |= {"cu_seqlens_q": boundaries, "cu_seqlens_kv": boundaries}
    if any(gaps):
        padded = boundaries_of(slots)
        batch |= {"cu_seqlens_q_padded": padded, "cu_seqlens_kv_padded": padded}
    return batch | {"max_seqlen_q": longest, "max_seqlen_kv": longest}


def member_rows(members: Sequence[Member], form: RowForm) -> Batch:
    """Lay each member out in a row of its own, padded on the right: Megatron-Bridge up to 0.5 packs the rows itself.

    It takes the last token other than 0 for the end of a row, so gaps are filled with 0 whatever the pad id is.

    Returns:
        input_ids, labels, loss_mask, position_ids [n, longest]; attention_mask None.
    """
    if any(int(member.ids[-1]) == 0 for member in members):
        raise ValueError("a member ends with token 0, which Megatron-Bridge up to 0.5 takes for padding")
    width = max(map(len, members))
    return {
        "input_ids": _padded_rows([[m.ids] for m in members], width, 0),
        "labels": _padded_rows([[_shifted_labels(m.labels)] for m in members], width, IGNORE),
        "loss_mask": _padded_rows([[_member_weights(m, form.weights, True)] for m in members], width, 0.0),
        "position_ids": torch.arange(width).expand(len(members), width).contiguous(),
        "attention_mask": None,
    }


def mlm(members: Sequence[Member], form: RowForm) -> Batch:
    """Lay members out in one row with the keys of the data loaders of Megatron-LM's multimodal example and of AIAK.

    Their training step shifts the labels itself, so labels are one longer than the tokens. Boundaries include the gaps.
    The step makes its loss mask from the labels, so weights have no place.

    Returns:
        tokens [1, T], labels [1, T + 1], cu_lengths int32 [1, n + 1], max_lengths int32 [1].
    """
    packed = thd(members, form)
    gaps = (packed["seq_lens_padded"] - packed["seq_lens"]).tolist()
    padded = "_padded" if any(gaps) else ""
    return {
        "tokens": packed["input_ids"],
        "labels": pad_tensor(_concat_with_gaps([m.labels for m in members], gaps, IGNORE), (0, 1), value=IGNORE),
        "cu_lengths": packed[f"cu_seqlens_q{padded}"].unsqueeze(0),
        "max_lengths": packed["max_seqlen_q"].view(1),
    }


# -------------------------------------------------------------------------------------------------------------- parts


def _shifted_labels(labels: Tensor) -> Tensor:
    return _padded_to(labels[1:], len(labels), IGNORE)


def _member_weights(member: Member, kind: str | None, shifted: bool) -> Tensor:
    weights = loss_weights(member, kind or "token")
    return _padded_to(weights[1:], len(weights), 0.0) if shifted else weights


def m_rope_rows(member: Member) -> Tensor:
    """Return the M-RoPE rows [3, L] of a member; in models without any, each row counts its tokens from 0."""
    return torch.arange(len(member)).expand(3, -1) if member.rope is None else member.rope


def _rope_rows(rows: Sequence[Sequence[Member]], positions: Tensor) -> Tensor:
    """Return M-RoPE rows [3, B, S]; the pad tail keeps the plain positions."""
    result = positions.repeat(3, 1, 1)
    for index, row in enumerate(rows):
        rope = torch.cat([m_rope_rows(member) for member in row], dim=1)
        result[:, index, : rope.shape[1]] = rope
    return result


def _padded_rows(rows: Sequence[Sequence[Tensor]], width: int, value: float) -> Tensor:
    return torch.stack([_padded_to(torch.cat(list(row)), width, value) for row in rows])


def _concat_with_gaps(parts: Sequence[Tensor], gaps: Sequence[int], value: float) -> Tensor:
    filled = [_padded_to(part, len(part) + gap, value) for part, gap in zip(parts, gaps, strict=True)]
    return torch.cat(filled).unsqueeze(0)


def _rope_with_gap(rope: Tensor, gap: int) -> Tensor:
    return torch.cat([rope, (rope.max() + 1 + torch.arange(gap)).expand(3, -1)], dim=1)


def _padded_to(values: Tensor, width: int, value: float) -> Tensor:
    return pad_tensor(values, (0, width - len(values)), value=value)


def _restarting_counts(lengths: Tensor) -> Tensor:
    """Return 0, 1, … length - 1 for each length, concatenated."""
    starts = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum())) - torch.repeat_interleave(starts, lengths)


def _member_numbers(lengths: Sequence[int]) -> Tensor:
    return torch.repeat_interleave(torch.arange(1, len(lengths) + 1, dtype=torch.int32), torch.tensor(lengths))


def boundaries_of(lengths: Tensor) -> Tensor:
    """Return the boundaries of consecutive segments of these lengths, from 0: int32 [n + 1]."""
    ends: Tensor = pad_tensor(lengths.cumsum(0), (1, 0))
    return ends.int()


def has_trees(rows: Sequence[Sequence[Member]]) -> bool:
    """Say whether any member shares its first tokens with the member before it in the row."""
    return any(member.shared_len for row in rows for member in row)
