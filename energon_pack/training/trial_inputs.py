"""Find members in the inputs of a forward; make inputs in which some words or media are replaced."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from energon_pack.training.batch import PackedBatch
from energon_pack.training.encoded import Encoded
from energon_pack.training.forward_inputs import MEDIA_KEYS, MixingError, branch_starts, text_positions
from energon_pack.training.model_wrappers import configs_in
from energon_pack.training.recording import tokens_of

#: inputs that are left out: they make a model compute a loss, or logits of only some tokens, or no logits (TRL's
#: `fused_lm_head`)
_LOSS_INPUTS = (
    "labels", "shift_labels", "num_items_in_batch", "logits_to_keep", "num_logits_to_keep", "fused_lm_head",
)  # fmt: skip
_ID_NAMES = re.compile(r"\w*token_(id|ids|index)")
_TYPE_INPUTS = ("mm_token_type_ids", "token_type_ids")
#: inputs whose names begin like this hold features of sounds
SOUND_INPUTS = ("input_features", "input_values", "audio_input_features")
#: as `SOUND_INPUTS`, or pixels
_CONTENT_INPUTS = ("pixel_values", *SOUND_INPUTS)


@dataclass(frozen=True)
class MemberSpan:
    """The place of a member in a batch: its row, and its tokens from `start` to `end` in the row."""

    row: int
    start: int
    end: int

    def cut(self, values: Tensor) -> Tensor:
        """Return the member's part [L, …] of values [B, S, …]."""
        return values[self.row, self.start : self.end]


#: inputs of a run, and the members to look at
RunInputs = tuple[Mapping[str, Any], Sequence[MemberSpan]]


@dataclass(frozen=True)
class PlacedSample:
    """A sample and its place in a batch, to be compared with its run alone."""

    sample: Encoded
    row: int
    #: the places of its tokens in the row, int64 [L]
    places: Tensor
    #: whether the batch's loss covers it
    in_loss: bool = True
    #: its pixels and sounds in the batch, which get gradients
    leaves: Mapping[str, Tensor] = field(default_factory=dict)
    #: whether it is compared with its run alone; all that are `in_loss` are
    is_compared: bool = True


@dataclass(frozen=True)
class Probe:
    """A batch of samples to try a model with, and the inputs to run it and each sample alone."""

    batch: PackedBatch
    placed: Sequence[PlacedSample]
    #: the inputs of the batch, without labels
    inputs: Mapping[str, Any]
    #: makes the inputs of a sample alone
    inputs_alone: Callable[[Encoded], dict[str, Any]]
    #: a kind of `loss_weights`
    loss_weight: str = "token"


@dataclass(frozen=True)
class TrialInputs:
    """The inputs of the test runs with one batch: unchanged, with other words, and with other media."""

    unchanged: dict[str, Any]
    members: list[MemberSpan]
    #: the members whose words are replaced: every second one
    changed_members: list[MemberSpan]
    #: inputs with these words replaced
    other_words: dict[str, Any]
    #: inputs in which the first medium is changed, and the last one; empty: there is none
    other_media: list[dict[str, Any]]

    @property
    def runs(self) -> list[tuple[dict[str, Any], list[MemberSpan]]]:
        """The unchanged inputs and those with other words, each with the members that are the same in both."""
        same = [member for member in self.members if member not in self.changed_members]
        return [(self.unchanged, same), (self.other_words, same)]


def trial_inputs(inputs: Mapping[str, Any], config: Any, media: frozenset[str]) -> TrialInputs | None:
    """Make the inputs of test runs from a forward's inputs; None: no member can change while another stays."""
    members, starts = members_of(inputs), text_positions(inputs, inputs["position_ids"])
    media = frozenset() if branch_starts(starts) else media  # branches see the pixels of their root
    return inputs_with_changes(inputs, config, media, members, _ends_of_branches(members, starts))


def inputs_with_changes(
    inputs: Mapping[str, Any], config: Any, media: frozenset[str], members: list[MemberSpan], ends: Sequence[MemberSpan]
) -> TrialInputs | None:
    """Make test inputs as `trial_inputs` does, if members are known; only words of members in `ends` are replaced."""
    as_is = without_loss(inputs)
    is_word = _is_word(as_is, special_ids(config))
    worded = [member for member in ends if is_word is None or member.cut(is_word).any()]
    changed = worded[: max(1, len(worded) - 1) : 2]  # the last one, which may see all others, stays
    other_words = _with_other_words(as_is, changed, is_word)
    if not changed or len(members) == len(changed) or other_words is None:
        return None
    tensors = {name: value for name, value in as_is.items() if name in media and isinstance(value, Tensor)}
    return TrialInputs(as_is, members, changed, other_words, _with_other_media(as_is, tensors))


def without_loss(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs without labels and others that make a model compute a loss, or leave out logits."""
    return {name: value for name, value in inputs.items() if name not in _LOSS_INPUTS}


def flag_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a batch that are bools or strings."""
    return {name: value for name, value in inputs.items() if isinstance(value, (bool, str))}


def _ends_of_branches(members: Sequence[MemberSpan], starts: Tensor) -> list[MemberSpan]:
    """Return the members with which no other member of their row shares tokens; without trees, all members."""
    begins = [(one.row, int(starts[one.row % len(starts), one.start])) for one in members]
    is_built_on = [row == next_row and later > begin for (row, begin), (next_row, later) in pairwise(begins)]
    return [member for member, goes_on in zip(members, [*is_built_on, False], strict=False) if not goes_on]


def is_media_content(name: str) -> bool:
    """Say whether an input of floats holds pixels or sounds, not sizes, rates or masks.

    Inputs for kinds of media that plugins add may have any name.
    """
    return name.startswith(_CONTENT_INPUTS) or (name not in MEDIA_KEYS and _are_kinds_added())


def differentiable_copies(media: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return by name copies of pixels and sounds that require gradients, without sizes, masks and the like."""
    return {
        name: value.detach().clone().requires_grad_()
        for name, value in media.items()
        if value.is_floating_point() and is_media_content(name)
    }


@cache
def _are_kinds_added() -> bool:
    """Say whether plugins add kinds of media; asking looks at every installed package, which takes 30 ms."""
    return bool(entry_points(group="energon_pack.kinds"))


def members_of(inputs: Mapping[str, Any]) -> list[MemberSpan]:
    """Return where the members of packs lie in a batch: each begins where positions restart."""
    tokens, mask = tokens_of(inputs), inputs.get("attention_mask")
    positions = text_positions(inputs, inputs["position_ids"]).expand(tokens.shape[:2])
    begins = torch.nn.functional.pad(positions.diff() != 1, (1, 0), value=True)
    is_real = mask != 0 if isinstance(mask, Tensor) and mask.dim() == 2 else torch.ones_like(begins)
    return spans_of(tokens, begins, is_real)


def spans_of(tokens: Tensor, begins: Tensor, real: Tensor) -> list[MemberSpan]:
    """Return the spans of `real` tokens between starts (`begins`), all [B, S]; without spans of one repeated token."""
    spans = []
    for row in range(len(tokens)):
        starts = begins[row].nonzero().flatten().tolist()
        for start, end in pairwise([*starts, tokens.shape[1]]):
            places = (start + real[row, start:end].nonzero().flatten()).tolist() or [start]
            span = MemberSpan(row, places[0], places[-1] + 1)
            if bool((span.cut(tokens) == span.cut(tokens)[:1]).all()):
                continue
            if span.end - span.start != len(places):
                raise MixingError(f"attention_mask has holes in the member from token {span.start} of row {row} on")
            spans.append(span)
    return spans


def special_ids(config: Any) -> list[int]:
    """Return the token ids that a config names, such as `image_token_id`, sorted."""
    values = [value for part in configs_in(config) for name, value in vars(part).items() if _ID_NAMES.fullmatch(name)]
    flat = [item for value in values for item in (value if isinstance(value, (list, tuple)) else [value])]
    return sorted({item for item in flat if isinstance(item, int)})


def _is_word(inputs: Mapping[str, Any], special: Sequence[int]) -> Tensor | None:
    """Return bool [B, S], the tokens that can be replaced: not special, not of a medium, not equal to a neighbour.

    None: there are no ids.
    """
    ids = inputs.get("input_ids")
    if ids is None:
        return None
    same = ids[:, 1:] == ids[:, :-1]
    pad = torch.nn.functional.pad
    is_word: Tensor = ~(pad(same, (1, 0)) | pad(same, (0, 1)) | torch.isin(ids, torch.tensor(special).to(ids)))
    for name in _TYPE_INPUTS:
        if isinstance(types := inputs.get(name), Tensor):
            is_word &= types == 0
    return is_word


def _with_other_words(
    inputs: dict[str, Any], changed: Sequence[MemberSpan], is_word: Tensor | None
) -> dict[str, Any] | None:
    """Replace the words of `changed` by other words of the batch; None: the batch has only one word."""
    tokens = tokens_of(inputs).clone()
    if is_word is None:
        for member in changed:
            tokens[member.row, member.start : member.end] = member.cut(tokens).roll(1, 0) * 1.5
        return {**inputs, "inputs_embeds": tokens}
    words = tokens[is_word].unique()
    if len(words) < 2:
        return None
    for member in changed:
        ids = member.cut(tokens)
        other = words[(torch.searchsorted(words, ids) + len(words) // 2) % len(words)]
        tokens[member.row, member.start : member.end] = torch.where(member.cut(is_word), other, ids)
    return {**inputs, "input_ids": tokens}


def _with_other_media(inputs: dict[str, Any], media: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Return inputs with another first medium, and with another last one if there are two; each is one member's."""
    seen = {name: value for name, value in media.items() if value.is_floating_point() and value.numel()}
    names = [name for name in seen if "pixel" in name or is_media_content(name)]
    ends = [(name, bool(number)) for number, name in enumerate((*names[:1], *names[-1:]))]
    changed = [(name, _altered(seen[name], _place_of(name, seen[name], media, is_last))) for name, is_last in ends]
    if names[:1] == names[-1:] and changed and torch.equal(changed[0][1], changed[1][1]):
        del changed[-1]
    return [{**inputs, name: value} for name, value in changed]


def _place_of(name: str, value: Tensor, media: Mapping[str, Tensor], is_last: bool) -> Any:
    if value.dim() > 4:  # [rows, images, channels, height, width]
        return (-1, slice(-1, None)) if is_last else (0, slice(1))
    grid = media.get("video_grid_thw" if "_videos" in name else "image_grid_thw" if "pixel" in name else "")
    num = 1 if grid is None or value.dim() > 2 else int(grid[-1 if is_last else 0].prod())
    return slice(len(value) - num, None) if is_last else slice(num)


def _altered(value: Tensor, place: Any) -> Tensor:
    other = value.clone()
    other[place] = value[place].flip(-1) + 0.5
    return other
