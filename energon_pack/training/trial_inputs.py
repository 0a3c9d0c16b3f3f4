"""Find members in the inputs of a forward; make inputs with one member changed, and inputs with one member alone."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from energon_pack.samples.media.kinds import ADDED, AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.training.inputs import forks_of, mask_of, text_row
from energon_pack.training.pixels import MEDIA_KEYS
from energon_pack.training.sizes import parts

#: inputs that are left out: they make a model compute a loss, or logits of only some tokens, or no logits (TRL's
#: `fused_lm_head`)
_NOT_TRIED = (
    "labels", "shift_labels", "num_items_in_batch", "logits_to_keep", "num_logits_to_keep", "fused_lm_head",
)  # fmt: skip
_TOKEN = re.compile(r"\w*token_(id|ids|index)")
_MEDIUM = re.compile("|".join((*map(re.escape, KINDS), "vision", "media", "img", "patch")))
_TYPES = ("mm_token_type_ids", "token_type_ids")
#: inputs whose names begin like this hold features of sounds
SOUNDS = ("input_features", "input_values", "audio_input_features")
#: as `SOUNDS`, or pixels
_VALUES = ("pixel_values", *SOUNDS)


@dataclass(frozen=True)
class Span:
    """The place of a member: its row, and its tokens from `start` to `end` in the row."""

    row: int
    start: int
    end: int

    def of(self, values: Tensor) -> Tensor:
        """Return the member's values [L, …] from values [B, S, …]."""
        return values[self.row, self.start : self.end]


@dataclass(frozen=True)
class TrialInputs:
    """The inputs of the test runs with one batch."""

    as_is: dict[str, Any]
    members: list[Span]
    #: the members to change, one in each row that has two
    changed: list[Span]
    #: inputs in which the words of `changed` are replaced
    other_words: dict[str, Any]
    #: inputs in which the pixels of the first medium are changed; None: there is no medium
    other_pixels: dict[str, Any] | None
    #: a member of text, and the inputs for it alone; None: every member has media
    alone: tuple[Span, dict[str, Any]] | None


def trial_inputs(inputs: Mapping[str, Any], config: Any, media: frozenset[str]) -> TrialInputs | None:
    """Make the inputs of the test runs from the inputs of one forward.

    Args:
        config: the model's config, which names special tokens.
        media: names of inputs that are media.

    Returns:
        None if no row has two members with words.
    """
    as_is = {name: value for name, value in inputs.items() if name not in _NOT_TRIED}
    members = members_of(as_is)
    rows = {row: [member for member in members if member.row == row] for row in {member.row for member in members}}
    starts = text_row(as_is, as_is["position_ids"])
    has_trees = bool(forks_of(starts))
    ends = [_ends_of_branches(row, starts) for row in rows.values() if len(row) > 1]
    middle = [row[(len(row) - 1) // 2] for row in ends]
    is_word = _is_word(as_is, special_ids(config))
    changed = [member for member in middle if is_word is None or member.of(is_word).any()]
    other_words = _with_other_words(as_is, changed, is_word)
    if not changed or other_words is None:
        return None
    given = {name: value for name, value in as_is.items() if name in media and isinstance(value, Tensor)}
    later = [
        member
        for row in rows.values()
        for member in row[1:]
        if int(starts[member.row % len(starts), member.start]) == 0
    ]
    alone = next((member for member in later if _is_text(as_is, member, config, bool(given))), None)
    return TrialInputs(
        as_is,
        members,
        changed,
        other_words,
        None if has_trees else _with_other_pixels(as_is, given),  # branches see the pixels of their root
        (alone, _alone(as_is, alone, media)) if alone else None,
    )


def _ends_of_branches(row: Sequence[Span], starts: Tensor) -> list[Span]:
    """Return the members of a row on which no other member builds; in a row without trees, return all members.

    Args:
        starts: [B, S], the positions, which start again with each member.
    """
    begins = [int(starts[member.row % len(starts), member.start]) for member in row]
    is_end = [later <= own for own, later in pairwise(begins)]
    return [member for member, ends in zip(row, [*is_end, True], strict=True) if ends]


def is_content(name: str) -> bool:
    """Say whether an input of floats holds pixels, or what else a model sees or hears: not sizes, rates or masks.

    Inputs for kinds that packages add may have any name.
    """
    return name.startswith(_VALUES) or (bool(ADDED) and name not in MEDIA_KEYS)


def tokens_of(inputs: Mapping[str, Any]) -> Tensor:
    """Return the ids [B, S], or the embeddings [B, S, width]."""
    tokens: Tensor = inputs["inputs_embeds"] if inputs.get("input_ids") is None else inputs["input_ids"]
    return tokens


def members_of(inputs: Mapping[str, Any]) -> list[Span]:
    """Return the places of members; a stretch that repeats one token is padding, not a member."""
    tokens, positions = tokens_of(inputs), text_row(inputs, inputs["position_ids"])
    positions = positions.expand(tokens.shape[:2])
    begins = torch.nn.functional.pad(positions.diff() != 1, (1, 0), value=True)
    real, found = inputs.get("attention_mask"), []
    for row in range(len(tokens)):
        starts = begins[row].nonzero().flatten().tolist()
        for start, end in zip(starts, [*starts[1:], tokens.shape[1]], strict=True):
            span = Span(row, start, end)
            is_padding = bool((span.of(tokens) == span.of(tokens)[:1]).all())
            is_masked = isinstance(real, Tensor) and real.dim() == 2 and not bool(span.of(real).any())
            if not is_padding and not is_masked:
                found.append(span)
    return found


def special_ids(config: Any, of_media: bool = False) -> list[int]:
    """Return the ids of tokens that a config names."""
    values = [
        value
        for part in parts(config)
        for name, value in vars(part).items()
        if _TOKEN.fullmatch(name) and (_MEDIUM.search(name) or not of_media)
    ]
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
    for name in _TYPES:
        if isinstance(types := inputs.get(name), Tensor):
            is_word &= types == 0
    return is_word


def _with_other_words(inputs: dict[str, Any], changed: Sequence[Span], is_word: Tensor | None) -> dict[str, Any] | None:
    """Replace the words of `changed` by other words of the batch; None: the batch has no other words."""
    tokens = tokens_of(inputs).clone()
    if is_word is None:
        for member in changed:
            tokens[member.row, member.start : member.end] = member.of(tokens).roll(1, 0) * 1.5
        return {**inputs, "inputs_embeds": tokens}
    words = tokens[is_word].unique()
    if len(words) < 2:
        return None
    for member in changed:
        own = member.of(tokens)
        other = words[(torch.searchsorted(words, own) + len(words) // 2) % len(words)]
        tokens[member.row, member.start : member.end] = torch.where(member.of(is_word), other, own)
    return {**inputs, "input_ids": tokens}


def _with_other_pixels(inputs: dict[str, Any], media: Mapping[str, Tensor]) -> dict[str, Any] | None:
    """Change the first image, clip or sound, which belongs to one member; None: there is none."""
    for name, value in media.items():
        if value.is_floating_point() and value.numel() and ("pixel" in name or is_content(name)):
            kind = VIDEO.kind if VIDEO.kind in name else IMAGE.kind if "pixel" in name else AUDIO.kind
            grid = media.get(f"{kind}_grid_thw")
            rows = 1 if grid is None or value.dim() > 2 else int(grid[0].prod())
            first = (0, slice(1)) if value.dim() > 4 else slice(rows)  # [rows, images, channels, height, width]
            other = value.clone()
            other[first] = value[first].flip(-1) + 0.5
            return {**inputs, name: other}
    return None


def _is_text(inputs: Mapping[str, Any], member: Span, config: Any, has_media: bool) -> bool:
    """Say whether a member certainly has no medium."""
    if not has_media:
        return True
    known: list[Tensor] = [inputs[name] for name in _TYPES if isinstance(inputs.get(name), Tensor)]
    media_ids = special_ids(config, of_media=True)
    if (ids := inputs.get("input_ids")) is not None and media_ids:
        known.append(torch.isin(ids, torch.tensor(media_ids).to(ids)))
    return bool(known) and not any(bool(member.of(one).any()) for one in known)


def _alone(inputs: Mapping[str, Any], member: Span, media: frozenset[str]) -> dict[str, Any]:
    """Return the inputs of a member alone, as users of transformers give them: a mask of ones, no positions."""
    tokens = tokens_of(inputs)
    cut = {
        name: member.of(value)[None]
        for name, value in inputs.items()
        if isinstance(value, Tensor) and value.shape[:2] == tokens.shape[:2] and name not in media
    }
    for name in ("position_ids", "seq_idx"):
        cut.pop(name, None)
    ones = torch.ones(1, member.end - member.start, dtype=torch.int64, device=tokens.device)
    if mask_of(inputs) == "prefix4d":  # the first token sees the whole prefix, and nothing of the answer
        mask: Tensor = inputs["attention_mask"]
        seen = mask[member.row % len(mask), 0, member.start, member.start : member.end]
        cut["token_type_ids"] = (seen < -1e4).long()[None]
    switches = {name: value for name, value in inputs.items() if isinstance(value, (bool, str))}
    return {**switches, **cut, "attention_mask": ones, "use_cache": False}
