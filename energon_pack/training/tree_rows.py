"""Lay the members of message trees out in rows: shared tokens are there once. Tensors in, tensors out.

Members stand in depth-first order, and each says how many first tokens it shares with the member before it
(`shared_len`). Three samples that begin alike in a row 12 wide, x = pad, · = not trained on (-100):

    a = r0 r1 r2 a3 a4    b = r0 r1 r2 b3 b4 b5 (shared 3)    c = r0 r1 r2 b3 c4 (shared 4)

    input_ids     r0 r1 r2 a3 a4 b3 b4 b5 c4  x  x  x
    labels         ·  ·  ·  · a4  · b4 b5  ·  ·  ·  ·      a branch begins untrained, so the ordinary shift stays right
    position_ids   0  1  2  3  4  3  4  5  4  0  1  2      a token's place in its sample: `tree_index`
    tree_end       9  9  9  5  5  9  8  8  9 12 12 12      row q sees row k if k <= q < tree_end[k]
    doc_ids        1  1  1  1  1  2  2  2  3  0  0  0      the member that brings the token
    cu_seq_lens_q  0              5        8  9       12   the tokens that each member brings
    cu_seq_lens_k  0              5        11 16      19   whole members
    k_index        0 1 2 3 4   0 1 2 5 6 7   0 1 2 5 8   9 10 11

A segment of queries is what one member brings, and its keys are the whole member: causal attention of the last queries
to all keys, as flash attention's kernels do it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from energon_pack.training.encoded import IGNORE, Member, m_rope_rows
from energon_pack.training.layout import Batch, RowForm, boundaries_of, lay_out_neat_rows, loss_weights


def token_places(lengths: Sequence[int], shared_lens: Sequence[int]) -> list[Tensor]:
    """Return for each member the indices of its tokens, shared ones included, in the row: int64 [L], ascending."""
    places: list[Tensor] = []
    begin, before = 0, torch.zeros(0, dtype=torch.int64)
    for length, shared in zip(lengths, shared_lens, strict=True):
        num_own = length - shared
        before = torch.cat([before[:shared], torch.arange(begin, begin + num_own)])
        places.append(before)
        begin += num_own
    return places


def refuse_invalid_trees(members: Sequence[Member], names: Sequence[str]) -> None:
    """Raise ValueError if shared tokens differ in ids or other inputs, or the first token of a branch is trained on."""
    if not any(member.shared_len for member in members):
        return
    for (before, name_before), (member, name) in pairwise(zip(members, names, strict=True)):
        shared = member.shared_len
        if shared > min(len(before), len(member)):
            raise ValueError(f"{name} shares {shared} tokens with {name_before}, of {len(before)} and {len(member)}")
        if unlike := _first_unlike_input(before, member):
            raise ValueError(f"the {shared} tokens that {name} shares with {name_before} differ in their {unlike}")
    if members[0].shared_len:
        raise ValueError(f"{names[0]} shares {members[0].shared_len} tokens with a member before it, and is the first")
    places = token_places([len(member) for member in members], [member.shared_len for member in members])
    pairs = zip(members, places, strict=True)
    begins = {int(place[member.shared_len]) for member, place in pairs if len(member) > member.shared_len}
    for member, place, name in zip(members, places, names, strict=True):
        trained = place[member.labels != IGNORE].tolist()
        if wrong := begins.intersection(trained):
            token = int((place == min(wrong)).nonzero())
            raise ValueError(
                f"{name} trains its token {token}, with which a branch begins: no row before it predicts it"
            )


def _first_unlike_input(before: Member, member: Member) -> str:
    """Return the name of the first input in which the shared tokens of two members differ; empty: none."""
    shared = member.shared_len

    def parts(one: Member) -> dict[str, Tensor]:
        positions = m_rope_rows(one)[:, :shared]
        rows = {name: row[:shared] for name, row in one.rows.items()}
        return {"ids": one.ids[:shared], "types": one.types[:shared], "positions": positions, **rows}

    first, other = parts(before), parts(member)
    if first.keys() != other.keys():
        return ", ".join(sorted(first.keys() ^ other.keys()))
    return next((name for name, value in first.items() if not torch.equal(value, other[name])), "")


@dataclass(frozen=True)
class MergedRow:
    """The members of one pack as one row of T tokens, shared tokens once."""

    #: labels where any member trains a token; weights: the sum of its members' weights
    tokens: Member
    #: [T]: each token's place in its sample
    tree_index: Tensor
    #: [T]: the index of the first later token that does not see it
    tree_end: Tensor
    #: [T] int32: the number, from 1, of the member that brings it
    doc_ids: Tensor
    #: of each member that brings tokens: how many it brings, and where in the row its tokens are
    segments: list[tuple[int, Tensor]]


def merge_members(members: Sequence[Member], weight_kind: str = "token") -> MergedRow:
    """Merge the members of a pack into one row; call `refuse_invalid_trees` before.

    Args:
        weight_kind: of `loss_weights`: each member's weights are by its own trained tokens, not by the tree's.
    """
    num_own = [len(member) - member.shared_len for member in members]
    total = sum(num_own)
    places = token_places([len(member) for member in members], [member.shared_len for member in members])
    labels = torch.full((total,), IGNORE)
    weights = torch.zeros(total)
    index, end = torch.zeros(total, dtype=torch.int64), torch.zeros(total, dtype=torch.int64)
    ends = torch.tensor(num_own).cumsum(0).tolist()
    for member, place, last in zip(members, places, ends, strict=True):
        labels[place] = torch.where(member.labels != IGNORE, member.labels, labels[place])
        weights[place] += loss_weights(member, weight_kind)
        index[place] = torch.arange(len(member))
        end[place] = last  # members that hold a token stand side by side: the last one tells
    row = Member(
        torch.cat([member.ids[member.shared_len :] for member in members]),
        labels,
        torch.cat([member.types[member.shared_len :] for member in members]),
        torch.cat([m_rope_rows(member)[:, member.shared_len :] for member in members], dim=1),
        {name: torch.cat([one.rows[name][one.shared_len :] for one in members]) for name in members[0].rows},
        weights,
    )
    numbers = torch.arange(1, len(members) + 1, dtype=torch.int32)
    segments = [(num, place) for num, place in zip(num_own, places, strict=True) if num]
    return MergedRow(row, index, end, torch.repeat_interleave(numbers, torch.tensor(num_own)), segments)


def lay_out_neat_trees(rows: Sequence[Sequence[Member]], form: RowForm) -> Batch:
    """Lay packs whose members share tokens out in rows, shared tokens once.

    Returns:
        The keys of `neat`, with `loss_weight` always; doc_ids is the number of the member that brings a token;
        cu_seq_lens_q int32 [segments + 1] over the flattened B·S: what each member brings, then a pad tail;
        cu_seq_lens_k int32 [segments + 1]: whole members; k_index int64 [keys]: where in the flattened B·S each
        segment's keys are; tree_index [B, S]: each token's place in its sample; tree_end [B, S]: the index in
        the row of the first later token that does not see it.
    """
    merged = [merge_members([*row], form.weights or "token") for row in rows]
    batch = lay_out_neat_rows([[one.tokens] for one in merged], replace(form, weights="token"))
    width = batch["input_ids"].shape[1]
    positions = batch["position_ids"]
    text_row = positions[0] if form.rope else positions  # the pad tail starts again already
    ends = torch.full((len(rows), width), width)
    batch["doc_ids"] = torch.zeros(len(rows), width, dtype=torch.int32)
    num_own: list[int] = []
    keys: list[Tensor] = []
    for number, one in enumerate(merged):
        length = len(one.tokens)
        text_row[number, :length] = one.tree_index
        ends[number, :length] = one.tree_end
        batch["doc_ids"][number, :length] = one.doc_ids
        segments = [*one.segments, *([(width - length, torch.arange(length, width))] if length < width else [])]
        num_own += [num for num, _ in segments]
        keys += [place + number * width for _, place in segments]
    whole = [len(places) for places in keys]
    if form.shifted:
        batch["_packed_seq_ids"] = batch["doc_ids"]
    return batch | {
        "tree_index": text_row.clone(),
        "tree_end": ends,
        "cu_seq_lens_q": boundaries_of(torch.tensor(num_own)),
        "cu_seq_lens_k": boundaries_of(torch.tensor(whole)),
        "k_index": torch.cat(keys),
        "max_length_q": max(num_own),
        "max_length_k": max(whole),
    }
