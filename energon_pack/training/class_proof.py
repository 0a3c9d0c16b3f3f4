"""Prove by a small model that a model's class trains on packs as on their samples, and try batches of any collator."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from energon_pack.training.batch_members import MemberPlaces, MemberSizes, find_members, member_places
from energon_pack.training.encoded import IGNORE, Encoded, Member
from energon_pack.training.finding import MaskTry
from energon_pack.training.forward_inputs import MixingError, attention_of, check_inputs, mask_kind_of
from energon_pack.training.guarded_calls import InputCheck
from energon_pack.training.model_wrappers import class_of
from energon_pack.training.probe_batches import ProbeSamples
from energon_pack.training.proof import find_remedy, part_kinds_of, try_masks
from energon_pack.training.trials import BatchHandling, Trials

_log = logging.getLogger(__name__)


class EncoderForGuard(Protocol):
    """The methods of a `PackedTaskEncoder` that the guard uses."""

    @property
    def mask(self) -> str:
        """How its batches keep members apart: a value of `model.mask`, as `positions`; `auto`: the guard finds it."""

    @property
    def max_token_len(self) -> int | None:
        """Number of tokens of the longest pack; None: not known."""

    def probe_members(self) -> list[Encoded]:
        """Return short samples to try a model with: one of text, and one or more of each kind of media."""


@dataclass(frozen=True)
class ClassProof:
    """The tests of a model's class, and the samples that they used."""

    #: every test of the class; the last one counts
    proofs: Sequence[MaskTry]
    samples: Sequence[Encoded]
    #: the test with trees; None: the encoder's packs have none
    tree_proof: MaskTry | None = None

    @property
    def max_row_len(self) -> int | None:
        """The longest row, in tokens, in which the class keeps members apart; None: any row."""
        limits = (one.max_pack_len for one in (self.proofs[-1], self.tree_proof) if one)
        return min(filter(None, limits), default=None)


def prove_class(model: Any, encoder: EncoderForGuard | None, is_trusted: bool) -> ClassProof:
    """Test with a small model that a model's class keeps members of packs apart; without an encoder, with text only.

    Raises MixingError if the class does not; with `is_trusted`, it only logs that.
    """
    attention, name = attention_of(model), class_of(model).__name__
    mask, longest = (encoder.mask, encoder.max_token_len) if encoder else ("auto", None)
    samples = encoder.probe_members() if encoder else _random_texts(model.config.get_text_config().vocab_size)
    device = model.device if model.device.type == "cuda" else torch.device("cpu")

    def proved(samples: ProbeSamples, mask: str) -> list[MaskTry]:
        return try_masks(class_of(model), model.config, samples, mask, attention, longest, device, part_kinds_of(model))

    proofs = proved(samples, mask)
    images = [member for member in samples if not member.num_videos]
    if all(proof.finding is None for proof in proofs) and len(images) < len(samples):  # GLM-4.1V takes one or the other
        fewer = proved(images, mask)
        if fewer[-1].is_exact:
            _log.warning("%s is shown without videos: with them, %s", name, proofs[-1].error)
            proofs, samples = fewer, images
    _refuse_unproven(
        model, "is not shown to keep members of packs apart", proofs, samples, attention, longest, is_trusted
    )
    tree = getattr(encoder, "probe_tree", lambda _: None)(samples)
    if tree is None:
        return ClassProof(proofs, samples)
    from energon_pack.training.tree_inputs import refuse_model_for_trees

    refuse_model_for_trees(model)
    of_trees = proved(tree, "")
    lacks = "is not shown to train on trees as on their samples alone"
    _refuse_unproven(model, lacks, of_trees, tree, attention, longest, is_trusted)
    return ClassProof(proofs, samples, of_trees[-1])


def _refuse_unproven(
    model: Any,
    lacks: str,
    proofs: Sequence[MaskTry],
    samples: ProbeSamples,
    attention: str | None,
    longest: int | None,
    is_trusted: bool,
) -> None:
    if proofs[-1].is_exact:
        return
    kind = class_of(model)
    finding = f"{kind.__name__} {lacks}: {'; '.join(map(str, proofs))}"
    if not is_trusted:
        out = find_remedy(kind, model.config, samples, attention, longest, proofs)
        raise MixingError(f"{finding}. {out} (trust={kind.__name__!r} trains it all the same)")
    _log.warning("%s; trained all the same: trust=%s", finding, kind.__name__)


def _random_texts(vocabulary: int) -> list[Encoded]:
    generator = torch.Generator().manual_seed(0)
    texts = []
    for length in (19, 24, 16):
        ids = torch.randint(min(10, vocabulary // 2), vocabulary, (length,), generator=generator)
        labels = torch.cat([torch.full((1,), IGNORE), ids[1:]])
        texts.append(Encoded("text", Member(ids, labels, torch.zeros_like(ids))))
    return texts


#: an additive mask hides a token by a value at or below this
_MASKED_SCORE = -1e4


def foreign_batch_handling(model: Any, trials_of: list[Trials]) -> BatchHandling:
    """Return how batches of any collator are handled; `trials_of` holds the trials as soon as they are made."""

    def remedy(inputs: Mapping[str, Any]) -> str:
        attention = attention_of(model)
        by = find_members(inputs, trials_of[0].sizes).input_names
        told = f"Members are told by {by}, which the model, or its attention ({attention}), does not heed"
        return "; ".join([told, *dict.fromkeys(_reasons(inputs, attention))])

    return BatchHandling(_mask_kind_and_mixing, remedy, {}, reads_each=True)


def try_given_batches(
    trials: Trials,
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
        places = member_places(inputs, trials.sizes)
        are_packed |= len({one.row for one in places}) < len(places)
        check(model, inputs)
    if not are_packed:
        by = find_members(inputs, trials.sizes).input_names
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
