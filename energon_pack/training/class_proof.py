"""Prove by a small model that a model's class trains on packs as on their samples."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from energon_pack.training.encoded import IGNORE, Encoded, Member
from energon_pack.training.finding import MaskTry
from energon_pack.training.forward_inputs import MixingError, attention_implementation_of
from energon_pack.training.model_wrappers import class_of
from energon_pack.training.probe_batches import ProbeSamples
from energon_pack.training.proof import find_remedy_for_mixing, part_kinds_of, try_masks

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


def prove_class_separates_members(model: Any, encoder: EncoderForGuard | None, is_trusted: bool) -> ClassProof:
    """Test with a small model that a model's class keeps members of packs apart; without an encoder, with text only.

    Raises MixingError if the class does not; with `is_trusted`, it only logs that.
    """
    attention, name = attention_implementation_of(model), class_of(model).__name__
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
        out = find_remedy_for_mixing(kind, model.config, samples, attention, longest, proofs)
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
