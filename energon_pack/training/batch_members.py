"""Find the members in batches of any collator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from energon_pack.training.forward_inputs import MixingError, branch_starts, ids_or_embeddings, text_positions
from energon_pack.training.trial_inputs import MemberSpan, spans_of

#: a member as its user gives it: its number of tokens, or its `tokens` and its rows of each media input
MemberSize = int | Mapping[str, int]
#: the members of a batch, row by row
MemberSizes = Sequence[Sequence[MemberSize]]

_BOUNDARY_PREFIXES = ("cu_seq_lens", "cu_seqlens")
#: inputs that say where members lie; a member alone needs none of them
LAYOUT_INPUTS = frozenset(("position_ids", "attention_mask", "seq_idx"))


def is_layout_input(name: str) -> bool:
    """Say whether an input of this name tells where members begin in a row, or how long the longest member is."""
    return name in LAYOUT_INPUTS or name.startswith((*_BOUNDARY_PREFIXES, "max_length_", "max_seqlen"))


def find_member_boundaries(inputs: Mapping[str, Any], given_sizes: MemberSizes | None = None) -> "FoundMembers":
    """Find where each member of a batch begins and ends in its row, without padding.

    `cu_seq_lens…` are boundaries in the concatenated rows. `position_ids` restart with each member, in all rows of
    M-RoPE. `attention_mask` [B, S] with values above 1, and `seq_idx`, number the members; a mask of ones tells
    nothing. Padding is masked, or repeats one token. `given_sizes`: the user's, checked against the inputs.

    Raises:
        MixingError: no input tells where members begin; two inputs contradict each other, and both are named; tokens
            are in no member; positions jump ahead.
    """
    tokens = inputs.get("inputs_embeds") if inputs.get("input_ids") is None else inputs["input_ids"]
    if not isinstance(tokens, Tensor) or tokens.dim() not in (2, 3):
        raise MixingError("a batch without input_ids [B, S] or inputs_embeds: nothing shows what its members are")
    tokens = tokens.detach().float().sum(-1) if tokens.dim() == 3 else tokens  # a number for each vector
    tokens, mask = tokens.cpu(), inputs.get("attention_mask")
    real = mask.cpu() != 0 if isinstance(mask, Tensor) and mask.shape == tokens.shape else torch.ones_like(tokens) > 0
    begins_by = _starts_by_input(inputs, tokens, real, given_sizes)
    if not begins_by:
        names = ", ".join(sorted(name for name, value in inputs.items() if value is not None))
        raise MixingError(
            f"a batch that says nowhere what its members are ({names}): cu_seq_lens_q, position_ids that start anew or"
            " an attention_mask that numbers members (1 1 2 2 0) do; or give members=[[lengths of a row, …], …] a batch"
        )
    spans = {name: spans_of(tokens, begins, real) for name, begins in begins_by.items()}
    _refuse_contradiction(spans)
    shortest = [min(alike, key=lambda one: one.end) for alike in zip(*spans.values(), strict=True)]
    return FoundMembers(" and ".join(spans), shortest)


@dataclass(frozen=True)
class MemberPlaces:
    """The places of a member's tokens in a batch; in a tree, those from the root to a leaf."""

    row: int
    #: int64 [L], in the order in which they are read
    places: Tensor
    #: those that no other member has
    own: Tensor

    def select(self, values: Tensor) -> Tensor:
        """Return the member's part [L, …] of values [B, S, …]."""
        return values[self.row, self.places.to(values.device)]


def find_member_places(inputs: Mapping[str, Any], given_sizes: MemberSizes | None = None) -> list[MemberPlaces]:
    """Find where members of a batch lie, as `find_member_boundaries` does; in a tree, where paths to leaves do."""
    positions = inputs.get("position_ids")
    if given_sizes is None and isinstance(positions, Tensor) and (positions.dim() == 2 or len(positions) == 4):
        rows = text_positions(inputs, positions)
        if branch_starts(rows):
            ids = ids_or_embeddings(inputs)
            return [one for row, line in enumerate(rows.tolist()) for one in _paths(row, line, ids[row])]
    ranges = [(one.row, torch.arange(one.start, one.end)) for one in find_member_boundaries(inputs, given_sizes).spans]
    return [MemberPlaces(row, places, places) for row, places in ranges]


def _paths(row: int, positions: Sequence[int], tokens: Tensor) -> list[MemberPlaces]:
    """Return the paths from a root to each leaf, by the place of each token of a row in its own sample."""
    path: list[int] = []
    paths: list[list[int]] = []
    for place, position in enumerate(positions):
        if position != len(path):  # a leaf ended
            paths.append([*path])
            del path[position:]
        path.append(place)
    made = [torch.tensor(one) for one in (*paths, path)]
    made = [one for one in made if not bool((tokens[one] == tokens[one[:1]]).all())]  # padding repeats a token
    uses = torch.zeros(len(positions), dtype=torch.long)
    for one in made:
        uses[one] += 1
    return [MemberPlaces(row, one, one[uses[one] == 1]) for one in made]


@dataclass(frozen=True)
class FoundMembers:
    """The members that `find_member_boundaries` found in a batch, and the inputs that tell where they are."""

    #: names of these inputs, joined by "and"
    input_names: str
    spans: list[MemberSpan]


def _starts_by_input(
    inputs: Mapping[str, Any], tokens: Tensor, real: Tensor, members: MemberSizes | None
) -> dict[str, Tensor]:
    """Return where members begin, bool [B, S], by the name of each input that tells it."""
    begins_by = {} if members is None else {"members=": _starts_by_sizes(members, tokens, real)}
    for name, value in inputs.items():
        if not isinstance(value, Tensor):
            continue
        value = value.detach().cpu()
        if name.startswith(_BOUNDARY_PREFIXES):
            begins_by[name] = _starts_by_boundaries(name, value.flatten().tolist(), tokens, real)
        elif name == "position_ids":
            begins_by[name] = _starts_by_positions(value, tokens, real)
        elif name == "seq_idx" or (name == "attention_mask" and value.dim() == 2 and int(value.max()) > 1):
            begins_by[name] = pad(value.diff() != 0, (1, 0), value=True)
    return begins_by


def _starts_by_sizes(members: MemberSizes, tokens: Tensor, real: Tensor) -> Tensor:
    try:
        rows, width = [[int(num_tokens_of(member)) for member in row] for row in members], tokens.shape[1]
    except (TypeError, KeyError, ValueError):
        raise MixingError(
            f"members={members} of a batch: a list for each row, of lengths or {{'tokens': length}}"
        ) from None
    if len(rows) != len(tokens) or any(sum(row) > width or min(row, default=0) < 1 for row in rows):
        raise MixingError(f"members={rows} for input_ids {list(tokens.shape)}: a list of lengths for each row")
    ends = [number * width + end for number, row in enumerate(rows) for end in accumulate(row, initial=0)]
    covered = torch.stack([torch.arange(width) < sum(row) for row in rows])
    return _starts_at("members=", ends, tokens, real & ~covered)


def num_tokens_of(member: MemberSize) -> int:
    """Return a member's number of tokens: `member` is this number, or a mapping that has it under `tokens`."""
    return member["tokens"] if isinstance(member, Mapping) else member


def _starts_by_boundaries(name: str, ends: list[int], tokens: Tensor, real: Tensor) -> Tensor:
    if ends[:1] != [0] or ends != sorted(ends) or ends[-1] > tokens.numel():
        raise MixingError(f"{name} is {ends} for {tokens.numel()} tokens: boundaries from 0 on")
    return _starts_at(name, ends, tokens, real & (torch.arange(tokens.numel()) >= ends[-1]).view_as(tokens))


def _starts_at(name: str, ends: list[int], tokens: Tensor, rest: Tensor) -> Tensor:
    """Return where members begin, bool [B, S]; tokens in `rest` belong to no member, and have to be padding."""
    for number, (row, in_none) in enumerate(zip(tokens, rest, strict=True)):
        if len(row[in_none].unique()) > 1:
            raise MixingError(f"{name} leaves {int(in_none.sum())} of {len(row)} tokens of row {number} in no member")
    begins = torch.zeros(tokens.numel(), dtype=torch.bool)
    begins[[end for end in ends if end < tokens.numel()]] = True
    begins = begins.view_as(tokens)
    begins[:, 0] = True
    return begins


def _starts_by_positions(positions: Tensor, tokens: Tensor, real: Tensor) -> Tensor:
    width, rows = tokens.shape[1], positions if positions.dim() == 3 else positions.view(1, -1, positions.shape[-1])
    rows = rows.expand(-1, len(tokens), -1) if rows.shape[1] == 1 else rows
    if rows.shape != (len(rows), len(tokens), width):
        raise MixingError(f"position_ids {list(positions.shape)} for input_ids {list(tokens.shape)}")
    if len(rows) == 3:  # M-RoPE without a text row: of a medium some rows stay
        return pad((rows == 0).all(0)[:, 1:], (1, 0), value=True)
    steps = rows[0].diff()
    if (ahead := ((steps > 1) & real[:, 1:] & real[:, :-1]).nonzero()).numel():
        row, place = ahead[0].tolist()
        jump = rows[0, row, place : place + 2].tolist()
        raise MixingError(f"position_ids jump from {jump[0]} to {jump[1]}: they neither go on nor start anew")
    return pad(steps != 1, (1, 0), value=True)


def _refuse_contradiction(spans: Mapping[str, Sequence[MemberSpan]]) -> None:
    (first, expected), *further = spans.items()
    for name, read in further:
        if [(one.row, one.start) for one in read] != [(one.row, one.start) for one in expected]:
            raise MixingError(
                f"{first} and {name} contradict each other: members begin at {_starts_as_text(expected)} by {first}, at"
                f" {_starts_as_text(read)} by {name}"
            )


def _starts_as_text(spans: Sequence[MemberSpan]) -> str:
    begins = [f"{one.row}:{one.start}" if one.row else str(one.start) for one in spans]
    return ", ".join(begins[:8]) + (" …" if len(begins) > 8 else "")
