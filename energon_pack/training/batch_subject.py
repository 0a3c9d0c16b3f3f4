"""Try a model with batches of any collator: their own members take the place of made samples.

batch ─read_members─► where members lie ─► their words changed ; each of them alone, in transformers' plain way
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energon_pack.training.batch import PackedBatch
from energon_pack.training.batch_members import (
    MemberSizes,
    ReadMembers,
    is_layout_input,
    read_members,
)
from energon_pack.training.encoded import Encoded
from energon_pack.training.forward_inputs import MixingError, attention_of, check_inputs
from energon_pack.training.layout import IGNORE, Member
from energon_pack.training.model_trial import PendingForward, Subject
from energon_pack.training.model_wrappers import class_of
from energon_pack.training.recording import InputCheck
from energon_pack.training.trial_inputs import (
    MemberSpan,
    PlacedSample,
    Probe,
    TrialInputs,
    differentiable_copies,
    flag_inputs,
    inputs_with_changes,
    without_loss,
)

_log = logging.getLogger(__name__)
#: inputs of each token that are made anew for a member alone
_REMADE = ("input_ids", "labels", "shift_labels")
#: an additive mask hides a token by a value at or below this
_MASKED_SCORE = -1e4


@dataclass
class BatchSubject(Subject):
    """A guarded model that is tried with batches of any collator."""

    model: Any
    #: sizes of the members of the next batch; None: its inputs tell them
    next_sizes: MemberSizes | None = None
    name: str = "a batch"
    #: whether each batch is tried, or one batch of each kind
    tries_every_batch: bool = False
    media: frozenset[str] = frozenset()

    def try_all(
        self,
        check: InputCheck,
        batches: Sequence[Mapping[str, Any]],
        members: Sequence[MemberSizes] | None,
    ) -> bool:
        """Call `check` on the model with each batch; return whether later ones can be tried, too: `members` is None."""
        if isinstance(batches, Mapping) or not all(isinstance(one, Mapping) for one in batches):
            raise ValueError("batches= is a list of batches, each a mapping of inputs by name: batches=[batch]")
        if not batches or (members is not None and len(members) != len(batches)):
            raise ValueError(f"{len(batches)} batches, and members= of {len(members or ())}: give each batch its rows")
        self.tries_every_batch, are_packed = True, False
        for number, batch in enumerate(batches):
            self.next_sizes, self.name = None if members is None else members[number], f"batch {number}"
            if arrays := sorted(name for name, value in batch.items() if isinstance(value, (np.ndarray, list))):
                raise ValueError(f"{self.name}: {', '.join(arrays)}: no tensors; give all as the trainer passes it on")
            inputs = {k: v.to(self.model.device) if isinstance(v, Tensor) else v for k, v in batch.items()}
            are_packed |= (read := self.read(inputs)).has_packed_row
            check(self.model, inputs)
        if not are_packed:
            raise MixingError(
                f"no row of these batches has two members, by {read.sources}: nothing shows whether they mix"
            )
        if members is not None:
            name = class_of(self.model).__name__
            _log.warning("%s is tried with these batches alone: members= is of no later one", name)
        self.next_sizes, self.name, self.tries_every_batch = None, "a batch", False
        return members is None

    def read(self, inputs: Mapping[str, Any]) -> ReadMembers:
        """Return a batch's members; MixingError: its labels train a token in no member, or a member's first token."""
        members = read_members(inputs, self.next_sizes)
        _refuse_labels(inputs, members)
        return members

    def max_member_len(self, inputs: Mapping[str, Any]) -> int:
        """Return the number of tokens of the longest member."""
        return max((one.end - one.start for one in self.read(inputs).spans), default=0)

    def has_open_mask(self, inputs: Mapping[str, Any]) -> bool:
        """Say whether a 4-D mask, of bools or additive, lets tokens see those of another member."""
        mask = inputs.get("attention_mask")
        all_masks = mask.values() if isinstance(mask, Mapping) else [mask]
        masks = [one for one in all_masks if isinstance(one, Tensor) and one.dim() == 4]
        members = self.read(inputs) if masks else None
        return members is not None and any(_lets_members_mix(one, members) for one in masks)

    def changed_inputs(self, inputs: Mapping[str, Any]) -> TrialInputs | None:
        """Return the batch with other words in every second member; None: no member can change while another stays."""
        spans = self.read(inputs).spans
        media = frozenset(name for name, _ in _media_inputs(inputs))
        return inputs_with_changes(inputs, self.model.config, media, spans, spans)

    def probe(self, pending: PendingForward) -> Probe:
        """Return the members of the batch as samples, each to be compared with its run alone."""
        inputs = without_loss(pending.inputs) | flag_inputs(pending.inputs)
        placed = _placed_samples(pending.inputs, self.read(pending.inputs).spans, self.next_sizes)
        if not any(one.in_loss for one in placed):
            raise MixingError("no label of this batch trains a member: nothing shows what its loss is of")
        for name in {name for one in placed for name in one.leaves}:
            inputs[name] = torch.cat([one.leaves[name] for one in placed if name in one.leaves])
        return Probe(_batch_of_labels(pending.inputs, placed), placed, inputs, _inputs_alone)

    def remedy(self, inputs: Mapping[str, Any]) -> str:
        """Return the advice for an error: which inputs tell members apart, and what `check_inputs` has against them."""
        by, attention = self.read(inputs).sources, attention_of(self.model)
        told = f"Members are told by {by}, which the model, or its attention ({attention}), does not heed"
        return "; ".join([told, *dict.fromkeys(self._reasons(inputs))])

    def _reasons(self, inputs: Mapping[str, Any]) -> Iterator[str]:
        for tried in (inputs, {**inputs, "use_cache": False}):
            try:
                check_inputs(tried, attention_of(self.model))
            except MixingError as error:
                yield str(error)


def _lets_members_mix(mask: Tensor, members: ReadMembers) -> bool:
    sees = mask if mask.dtype == torch.bool else mask > _MASKED_SCORE
    num_rows = max((one.row + 1 for one in members.spans), default=1)
    numbers = torch.zeros(max(num_rows, len(mask)), mask.shape[-1], dtype=torch.long, device=mask.device)
    for number, one in enumerate(members.spans, 1):
        numbers[one.row, one.start : one.end] = number
    pairs = (numbers[:, :, None] != numbers[:, None, :]) & (numbers[:, :, None] > 0) & (numbers[:, None, :] > 0)
    return bool((sees & pairs[:, None]).any())


def _refuse_labels(inputs: Mapping[str, Any], members: ReadMembers) -> None:
    """Raise MixingError if labels train a token outside of members, or a first token: another member predicts it."""
    is_shifted = inputs.get("shift_labels") is not None
    if (labels := inputs.get("shift_labels" if is_shifted else "labels")) is None:
        return
    if labels.shape != inputs["input_ids"].shape:
        raise MixingError(
            f"labels {list(labels.shape)} for input_ids {list(inputs['input_ids'].shape)}: those of some tokens alone"
            " (logits_to_keep) do not tell whose they are; pass all"
        )
    labels = labels.cpu()
    places = [(one.row, one.end - 1 if is_shifted else one.start) for one in members.spans if is_shifted or one.start]
    if trained := [place for place in places if int(labels[place]) != IGNORE]:
        row, place = trained[0]
        raise MixingError(
            f"labels train the first token of {len(trained)} of {len(members.spans)} members (row {row}, token"
            f" {place}): the member before it predicts it; its label has to be {IGNORE}"
        )
    rest = labels != IGNORE
    for one in members.spans:
        rest[one.row, one.start : one.end] = False
    if rest.any():
        row, place = rest.nonzero()[0].tolist()
        raise MixingError(
            f"labels train {int(rest.sum())} tokens that are in no member by {members.sources} (row {row},"
            f" token {place})"
        )


def _placed_samples(
    inputs: Mapping[str, Any], spans: Sequence[MemberSpan], members: MemberSizes | None
) -> list[PlacedSample]:
    """Make a sample of each member; the loss covers every second trained one, counted from the last."""
    labels, shape = _unshifted_labels(inputs, spans), inputs["input_ids"].shape
    rows = {
        name: value
        for name, value in inputs.items()
        if isinstance(value, Tensor) and value.shape[:2] == shape and name not in _REMADE and not is_layout_input(name)
    }
    placed = []
    for number, (span, media) in enumerate(zip(spans, _media_by_member(inputs, spans, members), strict=True)):
        ids = span.cut(inputs["input_ids"])
        tokens = Member(ids, span.cut(labels), torch.zeros_like(ids), None, {k: span.cut(v) for k, v in rows.items()})
        sample, places = Encoded(f"member {number}", tokens, media), torch.arange(span.start, span.end)
        placed.append(PlacedSample(sample, span.row, places, False, differentiable_copies(media)))
    trained = [number for number, one in enumerate(placed) if (one.sample.tokens.labels[1:] != IGNORE).any()]
    return [replace(one, in_loss=number in trained[::-1][::2]) for number, one in enumerate(placed)]


def _unshifted_labels(inputs: Mapping[str, Any], spans: Sequence[MemberSpan]) -> Tensor:
    """Return labels [B, S], not shifted; in a batch without labels every token but a member's first is trained."""
    if (shifted := inputs.get("shift_labels")) is not None:
        return torch.nn.functional.pad(shifted[:, :-1].long(), (1, 0), value=IGNORE)
    labels: Tensor = (inputs["input_ids"] if inputs.get("labels") is None else inputs["labels"]).clone().long()
    for span in spans:
        labels[span.row, span.start] = IGNORE
    return labels


def _batch_of_labels(inputs: Mapping[str, Any], placed: Sequence[PlacedSample]) -> PackedBatch:
    if (shifted := inputs.get("shift_labels")) is not None:
        return PackedBatch(labels=shifted, _packed_seq_ids=None)
    labels = torch.full_like(inputs["input_ids"], IGNORE, dtype=torch.long)
    for one in placed:
        labels[one.row, one.places] = one.sample.tokens.labels
    return PackedBatch(labels=labels)


def _media_inputs(inputs: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the inputs that have neither a value per token nor the layout of members: pixels and their like."""
    shape = inputs["input_ids"].shape
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.dim() and value.shape[:2] != shape and not is_layout_input(name):
            yield name, value


def _media_by_member(
    inputs: Mapping[str, Any], spans: Sequence[MemberSpan], members_of_rows: MemberSizes | None
) -> list[dict[str, Tensor]]:
    """Split each media input into the rows of each member, by the given numbers of rows."""
    shares: list[dict[str, Tensor]] = [{} for _ in spans]
    members = [member for row in members_of_rows or () for member in row]
    for name, value in _media_inputs(inputs):
        counts = [member.get(name, 0) if isinstance(member, Mapping) else 0 for member in members]
        if len(counts) != len(spans) or sum(counts) != len(value):
            raise MixingError(
                f"{name} has {len(value)} rows, and members= says of {sum(counts)} whose they are: give each member as"
                f" {{'tokens': {spans[0].end - spans[0].start}, {name!r}: its rows, …}}"
            )
        for share, part, count in zip(shares, value.split(counts), counts, strict=True):
            share |= {name: part} if count else {}
    return shares


def _inputs_alone(sample: Encoded) -> dict[str, Any]:
    ids = sample.tokens.ids[None]
    rows = {name: row[None] for name, row in sample.tokens.rows.items()}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **rows, **sample.media, "use_cache": False}
