"""Make the runs of a trial from the members of a batch: each alone, and the batch with a random half replaced."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from energon_pack.training.batch import PackedBatch
from energon_pack.training.batch_members import MemberPlaces, is_layout_input
from energon_pack.training.encoded import Encoded
from energon_pack.training.forward_inputs import MixingError, ids_or_embeddings
from energon_pack.training.layout import IGNORE, Member
from energon_pack.training.media_shares import MediaShares
from energon_pack.training.probe_batches import plain_inputs
from energon_pack.training.trial_inputs import (
    PlacedSample,
    Probe,
    differentiable_copies,
    flag_inputs,
    is_pixels_or_sound,
    special_ids,
    without_loss,
)

#: inputs of each token that are made anew for a member alone
_REMADE = ("input_ids", "inputs_embeds", "labels", "shift_labels")


@dataclass(frozen=True)
class ReplacedInputs:
    """Other words and media of some members of a batch."""

    #: the inputs that hold these
    inputs: dict[str, Any]
    #: the members that are replaced, and those that stay
    replaced: Sequence[MemberPlaces]
    same: Sequence[MemberPlaces]
    #: `words`, or `words and media`
    kind: str


@dataclass(frozen=True)
class TriedBatch:
    """A batch with which a model is tried: where its members lie, and whose its media are."""

    config: Any
    part: Module
    inputs: Mapping[str, Any]
    members: Sequence[MemberPlaces]
    shares: MediaShares
    #: [B, S]: see `token_types`
    types: Tensor | None
    random: Random

    @property
    def _has_trees(self) -> bool:
        return any(len(one.own) < len(one.places) for one in self.members)

    @property
    def comparable_members(self) -> list[int]:
        """Numbers of members whose inputs alone are known: all, or if nobody knows whose media are, those without."""
        every = range(len(self.members))
        if not self.shares.open_names or self.types is None:
            return [] if self.shares.open_names else [*every]
        return [number for number in every if not bool(self.members[number].select(self.types).any())]

    def probe(self, max_members: int, keeps_positions: bool, compares_gradients: bool) -> Probe:
        """Return at most so many members as samples, each to be compared with its run alone; a random half is trained.

        Args:
            keeps_positions: samples alone keep their M-RoPE rows, since something takes the ids away.
            compares_gradients: gradients are compared.
        """
        labels = [self._labels(one) for one in self.members]
        drawn = self._draw_members(max_members)
        trained = [number for number in drawn if bool((labels[number] != IGNORE).any())]
        in_loss = self._draw_in_loss(trained) if compares_gradients else []
        inputs = without_loss(self.inputs) | flag_inputs(self.inputs)
        parts = [self.shares.inputs_of_member(number, self.inputs) for number in range(len(self.members))]
        leaves = [differentiable_copies(part) if compares_gradients and not self._has_trees else {} for part in parts]
        for name in sorted({name for part in leaves for name in part}):
            inputs[name] = torch.cat([part[name] for part in leaves if name in part], self.shares.ends[name][0])
        placed = [
            PlacedSample(
                self._sample(number, labels[number], parts[number]), one.row, one.places, number in in_loss,
                leaves[number], number in drawn,
            )
            for number, one in enumerate(self.members)
        ]  # fmt: skip

        def inputs_alone(sample: Encoded) -> dict[str, Any]:
            return self._inputs_alone(sample, keeps_positions)

        return Probe(self._batch_of_labels(placed), placed, inputs, inputs_alone)

    def _draw_members(self, most: int) -> list[int]:
        """Draw members: of each row the last, the first and one between; one with each kind of media; the shortest."""
        usable = self.comparable_members
        if len(usable) <= most:
            return usable
        self.random.shuffle(usable)
        if most < 2 * len({self.members[number].row for number in usable}):
            return usable[:most]
        rows: dict[int, list[int]] = {}
        for number in sorted(usable):
            rows.setdefault(self.members[number].row, []).append(number)
        shortest = min(usable, key=lambda number: len(self.members[number].places))
        kinds = {frozenset(self.shares.inputs_of_member(number, self.inputs)): number for number in usable}
        places = [[row[-1] for row in rows.values()], [row[0] for row in rows.values()], [shortest], kinds.values()]
        places.append([self.random.choice(row[1:-1]) for row in rows.values() if len(row) > 2])
        return [*dict.fromkeys([number for some in places for number in some] + usable)][:most]

    def _draw_in_loss(self, trained: list[int]) -> list[int]:
        """Draw the members that have a part in the loss: half of them, of two rows if there are two; in trees one."""
        if len(trained) < 2 or self._has_trees:  # tokens of several samples have several losses
            return trained[:1]
        order = self.random.sample(trained, len(trained))
        half = order[: len(order) // 2]
        rows = {self.members[number].row for number in half}
        other = next((number for number in order if self.members[number].row not in rows), None)
        return half if len(rows) > 1 or other is None or len(order) < 3 else [*half, other]

    def _labels(self, member: MemberPlaces) -> Tensor:
        """Return a member's labels [L], not shifted; in a batch without labels all of its tokens but the first."""
        shifted, labels = self.inputs.get("shift_labels"), self.inputs.get("labels")
        if shifted is not None:
            own = torch.nn.functional.pad(member.select(shifted)[:-1].long(), (1, 0), value=IGNORE)
        elif labels is not None:
            own = member.select(labels).long()
        else:
            own = self._ids(member)
        begins = torch.nn.functional.pad(member.places.diff() != 1, (1, 0), value=True).to(own.device)
        return own.masked_fill(begins, IGNORE)

    def _ids(self, member: MemberPlaces) -> Tensor:
        ids = self.inputs.get("input_ids")
        return member.places + 1 if ids is None else member.select(ids).long()

    def _sample(self, number: int, labels: Tensor, media: dict[str, Tensor]) -> Encoded:
        member, shape = self.members[number], ids_or_embeddings(self.inputs).shape[:2]
        rows = {
            name: member.select(value)
            for name, value in self.inputs.items()
            if isinstance(value, Tensor)
            and value.shape[:2] == shape
            and name not in _REMADE
            and not is_layout_input(name)
        }
        ids = self._ids(member)
        types = torch.zeros_like(ids) if self.types is None else member.select(self.types)
        return Encoded(f"member {number}", Member(ids, labels, types, None, rows), media)

    def _batch_of_labels(self, placed: Sequence[PlacedSample]) -> PackedBatch:
        if (shifted := self.inputs.get("shift_labels")) is not None:
            return PackedBatch(labels=shifted, _packed_seq_ids=None)
        tokens = ids_or_embeddings(self.inputs)
        labels = torch.full(tokens.shape[:2], IGNORE, device=tokens.device)
        for one in placed:
            labels[one.row, one.places] = one.sample.tokens.labels.to(labels.device)
        return PackedBatch(labels=labels)

    def _inputs_alone(self, sample: Encoded, keeps_positions: bool) -> dict[str, Any]:
        """Return the inputs of a member alone, as a processor gives them: a mask of ones, no positions of ours."""
        member = self.members[int(sample.sample_id.rpartition(" ")[2])]
        inputs = plain_inputs(self.part, sample, self.config, ids_or_embeddings(self.inputs).device)
        if self.inputs.get("input_ids") is None:
            inputs["inputs_embeds"] = member.select(self.inputs["inputs_embeds"])[None]
            del inputs["input_ids"]
        positions = self.inputs.get("position_ids")
        if keeps_positions and isinstance(positions, Tensor) and positions.dim() == 3:
            rope = positions[-3:, member.row].index_select(-1, member.places.to(positions.device))
            inputs["position_ids"] = rope[:, None]
        return {**inputs, **{name: row[None] for name, row in sample.tokens.rows.items()}}

    def replace_some_inputs(self) -> ReplacedInputs | None:
        """Replace words and media of a random half of the members; None: none can change while another stays."""
        is_word = self._is_word()
        changeable = [n for n, one in enumerate(self.members) if is_word is None or is_word[one.row, one.own].any()]
        replaced = self.random.sample(changeable, min((len(changeable) + 1) // 2, len(self.members) - 1))
        tokens = self._other_words(replaced, is_word) if replaced else None
        if tokens is None:
            return None
        name = "inputs_embeds" if is_word is None else "input_ids"
        media = {} if self._has_trees else self._other_media(replaced)
        same = [one for number, one in enumerate(self.members) if number not in replaced]
        kind = "words and media" if media else "words"
        return ReplacedInputs({name: tokens, **media}, [self.members[number] for number in replaced], same, kind)

    def _is_word(self) -> Tensor | None:
        """Return bool [B, S], the tokens that can be replaced: not special, not of a medium, not equal to a neighbour.

        None: there are no ids.
        """
        ids = self.inputs.get("input_ids")
        if ids is None:
            return None
        pad, same = torch.nn.functional.pad, ids[:, 1:] == ids[:, :-1]
        special = torch.tensor(special_ids(self.config)).to(ids)
        is_word: Tensor = ~(pad(same, (1, 0)) | pad(same, (0, 1)) | torch.isin(ids, special))
        return is_word if self.types is None else is_word & (self.types == 0)

    def _other_words(self, numbers: Sequence[int], is_word: Tensor | None) -> Tensor | None:
        """Return tokens in which words of these members are other words of the batch; None: it has one word."""
        tokens = ids_or_embeddings(self.inputs).clone()
        words = None if is_word is None else tokens[is_word].unique()
        if words is not None and len(words) < 2:
            return None
        for number in numbers:
            row, own = self.members[number].row, self.members[number].own.to(tokens.device)
            old = tokens[row, own]
            if words is None or is_word is None:
                tokens[row, own] = old.roll(1, 0) * 1.5
                continue
            steps = [self.random.randrange(1, len(words)) for _ in range(len(old))]
            other = words[(torch.searchsorted(words, old) + torch.tensor(steps, device=old.device)) % len(words)]
            tokens[row, own] = torch.where(is_word[row, own], other, old)
        return tokens

    def _other_media(self, numbers: Sequence[int]) -> dict[str, Tensor]:
        """Return the pixels and sounds of the batch in which those of these members are others."""
        made: dict[str, Tensor] = {}
        for name in self.shares.ends:
            value = self.inputs[name]
            if not value.is_floating_point() or not is_pixels_or_sound(name):
                continue
            other = value.clone()
            for part in (self.shares.cut(name, number, other) for number in numbers):
                part.copy_(part.flip(-1) * 0.7 + 0.5)
            if not torch.equal(other, value):
                made[name] = other
        return made


def refuse_misplaced_labels(inputs: Mapping[str, Any], members: Sequence[MemberPlaces]) -> None:
    """Raise MixingError if labels train a token outside of members, or a first token: another member predicts it."""
    is_shifted = inputs.get("shift_labels") is not None
    if (labels := inputs.get("shift_labels" if is_shifted else "labels")) is None:
        return
    shape = ids_or_embeddings(inputs).shape[:2]
    if labels.shape != shape:
        raise MixingError(
            f"labels {list(labels.shape)} for input_ids {list(shape)}: those of some tokens alone"
            " (logits_to_keep) do not tell whose they are; pass all"
        )
    rest = labels.cpu() != IGNORE
    places = [(one.row, int(one.places[-1 if is_shifted else 0])) for one in members]
    if trained := [(row, place) for row, place in places if bool(rest[row, place]) and (is_shifted or place)]:
        row, place = trained[0]
        raise MixingError(
            f"labels train the first token of {len(trained)} of {len(members)} members (row {row}, token"
            f" {place}): the member before it predicts it; its label has to be {IGNORE}"
        )
    for one in members:
        rest[one.row, one.places] = False
        rest[one.row, 0] = False  # no token predicts the first one
    if rest.any():
        row, place = rest.nonzero()[0].tolist()
        raise MixingError(f"labels train {int(rest.sum())} tokens that are in no member (row {row}, token {place})")
