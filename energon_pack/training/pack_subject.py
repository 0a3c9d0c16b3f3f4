"""Try a model with batches of packs: with samples that were made for it, in rows of the shape of the pending batch.

They lie among random words, with other boundaries.
"""

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from energon_pack.training.encoded import Encoded, text_sample
from energon_pack.training.forward_inputs import PROVEN_MASKS, branch_starts, has_rope_rows, text_positions
from energon_pack.training.layout import RowForm
from energon_pack.training.model_trial import PendingForward, Subject
from energon_pack.training.probe_batches import ProbeTree, new_probe, plain_inputs, probe_of_tree, twins_of
from energon_pack.training.recording import tokens_of
from energon_pack.training.trial_inputs import (
    Probe,
    TrialInputs,
    flag_inputs,
    members_of,
    special_ids,
    trial_inputs,
    without_loss,
)

_MIN_TEXT_LEN = 2  # tokens of a made text
#: inputs of packs that some trainers leave out
_OPTIONAL_INPUTS = frozenset(("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"))


@dataclass(frozen=True)
class PackSubject(Subject):
    """A guarded model that is tried with made samples, in batches like those of packs."""

    model: Any
    media: frozenset[str]
    #: samples with each kind of media
    members: Sequence[Encoded]
    #: samples with shared beginnings; None: packs have no trees
    tree_samples: ProbeTree | None
    #: tokens of a row up to which its class keeps members apart; None: any
    max_row_len: int | None
    name = "its first batch"
    bypass_hint = " (guard(…, first_batch=False) trains it all the same)"

    def max_member_len(self, inputs: Mapping[str, Any]) -> int:
        """Return the number of tokens of the longest member."""
        return int(text_positions(inputs, inputs["position_ids"]).max()) + 1

    def changed_inputs(self, inputs: Mapping[str, Any]) -> TrialInputs | None:
        """Return the batch with other words in every second member; None: no member can change while another stays."""
        return trial_inputs(inputs, self.model.config, self.media)

    def probe(self, pending: PendingForward) -> Probe:
        """Return made samples in rows like those of the pending batch, or trees where it has some."""
        batch, device = pending.inputs, pending.inputs["position_ids"].device
        has_trees = bool(branch_starts(text_positions(batch, batch["position_ids"])))
        if self.tree_samples is not None and pending.on_any_rank(has_trees):
            probe = probe_of_tree(self.model, self.tree_samples, device)
        else:
            probe = probe_like_batch(self.model, batch, _usable_members(self, pending), self.max_row_len)
        named = {k: v for k, v in probe.inputs.items() if k in batch or k not in _OPTIONAL_INPUTS}
        inputs = write_in_place(flag_inputs(batch) | named, batch, self.media)
        probe = replace(probe, inputs=inputs, inputs_alone=partial(plain_inputs, pending.part, device=device))
        loses_ids = has_rope_rows(self.model) and _removes_ids(pending, inputs)
        return replace(probe, inputs_alone=partial(_with_positions, probe)) if loses_ids else probe

    def remedy(self, _: Mapping[str, Any]) -> str:
        """Say that the class keeps members apart, so something added to this model mixes them."""
        return (
            "What was put into this model, hooked to it or patched has to keep members apart, as its class does: leave"
            " that out, or train on unpacked samples"
        )


def _removes_ids(pending: PendingForward, inputs: Mapping[str, Any]) -> bool:
    """Say whether a hook removes `input_ids`, which a model needs to find images: ms-swift's embeds them."""
    kept: list[bool] = []
    if len(pending.part._forward_pre_hooks) < 2:  # the guard's own
        return False
    handle = pending.part.register_forward_pre_hook(
        lambda _, __, keywords: kept.append("input_ids" in keywords), with_kwargs=True
    )
    try:
        with torch.no_grad():
            pending.call(**without_loss(inputs))
    finally:
        handle.remove()
    return "input_ids" in inputs and not all(kept)


def _with_positions(probe: Probe, sample: Encoded) -> dict[str, Any]:
    """Return the inputs of a sample alone with its own positions, as a trainer that embeds its ids passes them."""
    place = next(one for one in probe.placed if one.sample.tokens is sample.tokens)
    positions = probe.inputs["position_ids"][1:, place.row, None, place.places]
    return {**probe.inputs_alone(sample), "position_ids": positions}


def _usable_members(subject: PackSubject, pending: PendingForward) -> list[Encoded]:
    """Return the samples whose media some rank's batch has and the called part takes; all, if fewer than two are."""
    taken = None if pending.part is subject.model else inspect.signature(pending.part.forward).parameters
    fitting = []
    for member in subject.members:
        is_taken = taken is None or member.media.keys() <= taken.keys()
        if pending.on_any_rank(is_taken and member.media.keys() <= pending.inputs.keys()):
            fitting.append(member)
    return fitting if len(fitting) > 1 else [*subject.members]


def probe_like_batch(model: Any, inputs: Mapping[str, Any], members: Sequence[Encoded], longest: int | None) -> Probe:
    """Lay samples and their twins out at the end of the first row; random texts fill the rest of the batch.

    Texts are as long as the batch's members; the first is compared, too. Twins are left out beyond `longest` tokens.
    """
    num_rows, width = tokens_of(inputs).shape[:2]
    spans = members_of(inputs)
    end = max((span.end for span in spans), default=width)
    compared = [*members, *twins_of(members)]
    compared = compared if longest is None or _row_len(compared) + _MIN_TEXT_LEN <= longest else [*members]
    lengths = sorted(span.end - span.start for span in spans) or [width]
    texts = _RandomTexts(model, members)
    # all ranks of FSDP need as many runs alone
    first = texts.to_fill(lengths, max(_MIN_TEXT_LEN, end - _row_len(compared)))
    rows = [[*first, *compared], *(texts.to_fill(lengths[::-1], end) for _ in range(1, num_rows))]
    form = RowForm(width=max(width, _row_len(rows[0])), shifted=inputs.get("shift_labels") is not None)
    return new_probe(model, rows, PROVEN_MASKS[model], [*first[:1], *compared], form, inputs["position_ids"].device)


def _row_len(row: Sequence[Encoded]) -> int:
    return sum(len(one.tokens) for one in row)


class _RandomTexts:
    """Makes samples of random words, from the words of some members."""

    def __init__(self, model: Any, members: Sequence[Encoded]):
        ids = torch.cat([one.tokens.ids[one.tokens.types == 0] for one in members]).unique()
        self._words = ids[~torch.isin(ids, torch.tensor(special_ids(model.config)))]
        self._rows = members[0].tokens.rows
        self._random = torch.Generator().manual_seed(0)

    def to_fill(self, lengths: Sequence[int], space: int) -> list[Encoded]:
        """Return texts of these lengths, repeated until they fill `space` tokens; the last one is cut."""
        texts: list[Encoded] = []
        for length in cycle(lengths):
            if space < _MIN_TEXT_LEN:
                return texts
            texts.append(self._text(min(max(length, _MIN_TEXT_LEN), space)))
            space -= len(texts[-1].tokens)
        return texts

    def _text(self, length: int) -> Encoded:
        ids = self._words[torch.randint(len(self._words), (length,), generator=self._random)]
        return text_sample(ids, self._rows)


def write_in_place(inputs: dict[str, Any], before: Mapping[str, Any], media: Collection[str]) -> dict[str, Any]:
    """Write inputs into the tensors of a batch that ran already: models may cache results by a tensor's identity.

    Args:
        before: copies of the batch's tensors; of its media, the tensors themselves.
        media: names of media inputs, which are never written: the user's forward still needs them.
    """

    def written(value: Any, old: Any) -> Any:
        are_alike = isinstance(value, Tensor) and isinstance(old, Tensor) and not value.requires_grad
        if are_alike and (value.shape, value.dtype) == (old.shape, old.dtype):
            return old.copy_(value)
        return value

    return {name: value if name in media else written(value, before.get(name)) for name, value in inputs.items()}
