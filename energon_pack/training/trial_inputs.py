"""Find members in the inputs of a forward; name what its inputs are."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from itertools import pairwise
from typing import Any

from torch import Tensor

from energon_pack.training.batch import PackedBatch
from energon_pack.training.encoded import Encoded
from energon_pack.training.forward_inputs import MEDIA_KEYS, MixingError
from energon_pack.training.model_wrappers import configs_in

#: inputs that make a model compute a loss; and logits of only some tokens, or no logits (TRL's `fused_lm_head`)
_LOSS_INPUTS = ("labels", "shift_labels", "num_items_in_batch")
_LOGIT_INPUTS = ("logits_to_keep", "num_logits_to_keep", "fused_lm_head")
_ID_NAMES = re.compile(r"\w*token_(id|ids|index)")
TYPE_INPUTS = ("mm_token_type_ids", "token_type_ids")
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


def without_loss(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs without labels and others that make a model compute a loss, or leave out logits."""
    return {name: value for name, value in with_all_logits(inputs).items() if name not in _LOSS_INPUTS}


def with_all_logits(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs without those that make a model leave out logits."""
    return {name: value for name, value in inputs.items() if name not in _LOGIT_INPUTS}


def detached_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs; computed ones are cut from what computed them, whose only backward is the training's."""
    return {
        name: value.detach().requires_grad_() if isinstance(value, Tensor) and value.grad_fn is not None else value
        for name, value in inputs.items()
    }


def flag_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a batch that are bools or strings."""
    return {name: value for name, value in inputs.items() if isinstance(value, (bool, str))}


def is_pixels_or_sound(input_name: str) -> bool:
    """Say whether an input of floats holds pixels or sounds, not sizes, rates or masks.

    Inputs for kinds of media that plugins add may have any name.
    """
    return input_name.startswith(_CONTENT_INPUTS) or (input_name not in MEDIA_KEYS and _are_kinds_added())


def differentiable_copies(media: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return by name copies of pixels and sounds that require gradients, without sizes, masks and the like."""
    return {
        name: value.detach().clone().requires_grad_()
        for name, value in media.items()
        if value.is_floating_point() and is_pixels_or_sound(name)
    }


@cache
def _are_kinds_added() -> bool:
    """Say whether plugins add kinds of media; asking looks at every installed package, which takes 30 ms."""
    return bool(entry_points(group="energon_pack.kinds"))


def spans_of(tokens: Tensor, is_start: Tensor, is_real: Tensor) -> list[MemberSpan]:
    """Return the spans of `is_real` tokens between `is_start` ones, all [B, S], without spans of one repeated token."""
    spans = []
    for row in range(len(tokens)):
        starts = is_start[row].nonzero().flatten().tolist()
        for start, end in pairwise([*starts, tokens.shape[1]]):
            places = (start + is_real[row, start:end].nonzero().flatten()).tolist() or [start]
            span = MemberSpan(row, places[0], places[-1] + 1)
            own = tokens[row, span.start : span.end]
            if bool((own == own[:1]).all()):
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
