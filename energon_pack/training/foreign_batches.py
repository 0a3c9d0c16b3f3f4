"""Try a model with batches of any collator: what tells where their members are, and what would keep them apart."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energon_pack.training.batch_members import MemberPlaces, MemberSizes, find_member_boundaries, find_member_places
from energon_pack.training.forward_inputs import MixingError, attention_implementation_of, check_inputs, mask_kind_of
from energon_pack.training.guarded_calls import InputCheck
from energon_pack.training.model_wrappers import class_of
from energon_pack.training.trials import BatchHandling, ModelTrials

_log = logging.getLogger(__name__)
#: an additive mask hides a token by a value at or below this
_MASKED_SCORE = -1e4


def make_foreign_batch_handling(model: Any, trials_once_made: list[ModelTrials]) -> BatchHandling:
    """Return how batches of any collator are handled; `trials_once_made` holds the trials as soon as they are made."""

    def remedy(inputs: Mapping[str, Any]) -> str:
        attention = attention_implementation_of(model)
        by = find_member_boundaries(inputs, trials_once_made[0].sizes).input_names
        told = f"Members are told by {by}, which the model, or its attention ({attention}), does not heed"
        return "; ".join([told, *dict.fromkeys(_reasons(inputs, attention))])

    return BatchHandling(_mask_kind_and_mixing, remedy, {}, reads_each=True)


def try_given_batches(
    trials: ModelTrials,
    model: Any,
    check: InputCheck,
    batches: Sequence[Mapping[str, Any]],
    members: Sequence[MemberSizes] | None,
) -> bool:
    """Call `check` on the model with each batch; return whether later ones can be tried, too: `members` is None."""
    if isinstance(batches, Mapping) or not all(isinstance(one, Mapping) for one in batches):
        raise ValueError("batches= is a list of batches, each a mapping of inputs by name: batches=[batch]")
    if not batches or (members is not None and len(members) != len(batches)):
        raise ValueError(f"{len(batches)} batches, and members= of {len(members or ())}: give each batch its rows")
    trials.tries_all, are_packed = True, False
    for number, batch in enumerate(batches):
        trials.sizes, trials.name = None if members is None else members[number], f"batch {number}"
        if arrays := sorted(name for name, value in batch.items() if isinstance(value, (np.ndarray, list))):
            raise ValueError(f"{trials.name}: {', '.join(arrays)}: no tensors; give all as the trainer passes it on")
        inputs = {k: v.to(model.device) if isinstance(v, Tensor) else v for k, v in batch.items()}
        places = find_member_places(inputs, trials.sizes)
        are_packed |= len({one.row for one in places}) < len(places)
        check(model, inputs)
    if not are_packed:
        by = find_member_boundaries(inputs, trials.sizes).input_names
        raise MixingError(f"no row of these batches has two members, by {by}: nothing shows whether they mix")
    if members is not None:
        name = class_of(model).__name__
        _log.warning("%s is tried with these batches alone: members= is of no later one", name)
    trials.sizes, trials.name, trials.tries_all = None, "a batch", False
    return members is None


def _reasons(inputs: Mapping[str, Any], attention: str | None) -> Iterator[str]:
    for tried in (inputs, {**inputs, "use_cache": False}):
        try:
            check_inputs(tried, attention)
        except MixingError as error:
            yield str(error)


def _mask_kind_and_mixing(inputs: Mapping[str, Any], members: Sequence[MemberPlaces] | None) -> tuple[str, bool]:
    """Return the kind of a batch's mask, and whether a 4-D one, of bools or additive, lets members see each other."""
    mask = inputs.get("attention_mask")
    every = mask.values() if isinstance(mask, Mapping) else [mask]
    masks = [one for one in every if isinstance(one, Tensor) and one.dim() == 4]
    return mask_kind_of(inputs), any(_lets_members_mix(one, members or ()) for one in masks)


def _lets_members_mix(mask: Tensor, members: Sequence[MemberPlaces]) -> bool:
    sees = mask if mask.dtype == torch.bool else mask > _MASKED_SCORE
    num_rows = max((one.row + 1 for one in members), default=1)
    numbers = torch.zeros(max(num_rows, len(mask)), mask.shape[-1], dtype=torch.long, device=mask.device)
    for number, one in enumerate(members, 1):
        numbers[one.row, one.places.to(mask.device)] = number
    pairs = (numbers[:, :, None] != numbers[:, None, :]) & (numbers[:, :, None] > 0) & (numbers[:, None, :] > 0)
    return bool((sees & pairs[:, None]).any())
