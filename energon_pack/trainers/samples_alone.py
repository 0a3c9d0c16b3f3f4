"""Run the samples of two packs alone: `check_trainer` compares a trainer's loss over the packs with theirs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from energon_pack.errors import amount
from energon_pack.samples.media.prepared import prepare_media_for_processor
from energon_pack.samples.member import media_in_order
from energon_pack.trainers.collator import EPOCH_COLUMN, LOSS_KEYS, PACK_COLUMN, Collator
from energon_pack.training.batch import total_weight, weighted_loss
from energon_pack.training.encoded import Encoded, Members
from energon_pack.training.guarded_calls import run_without_guard_checks
from energon_pack.training.host_reads import HostReadCounter
from energon_pack.training.layout import weights_aligned_to_labels
from energon_pack.training.masks import BOUNDARY_MARK, outline_of
from energon_pack.training.model_wrappers import class_of, unwrapped
from energon_pack.training.probe_batches import plain_inputs
from energon_pack.training.processor_calls import MediaProcessorCaller

#: keys of a batch from which a forward would compute a loss
_LOSS_KEYS = {*LOSS_KEYS, "shift_labels"}


@dataclass(frozen=True)
class LossSumsAlone:
    """The losses of the samples of two packs, each sample run alone, on one rank."""

    #: of each pack Σ w·ce, and Σ w: without weights, its trained tokens
    loss_sums: list[float]
    weight_sums: list[float]
    num_samples: int

    @property
    def sums_to_add_over_ranks(self) -> list[float]:
        """The numbers to add up over ranks: Σ w·ce, Σ w, the sum of the packs' mean losses, num packs, num samples."""
        means = [each / num for each, num in zip(self.loss_sums, self.weight_sums, strict=True)]
        return [sum(self.loss_sums), sum(self.weight_sums), sum(means), len(means), self.num_samples]


def run_samples_alone(trainer: Any, collator: Collator, rows: Sequence[Any]) -> LossSumsAlone:
    """Run each sample of two packs alone, by the forward of the model's class even if a trainer replaced it."""
    model = unwrapped(trainer.model)
    training = model.training
    summed, trained, num = [], [], 0
    try:
        model.eval()
        with run_without_guard_checks(model), torch.no_grad():
            for row in rows:
                each = [*_loss_sums(model, collator, row)]
                summed.append(sum(one[0] for one in each))
                trained.append(sum(one[1] for one in each))
                num += sum(one[2] for one in each)
    finally:
        model.train(training)
    return LossSumsAlone(summed, trained, num)


def _loss_sums(model: Any, collator: Collator, row: Any) -> Iterator[tuple[float, float, int]]:
    """Yield Σ w·ce, Σ w and the number of samples of each forward: of each sample alone, in transformers' plain way.

    Only ids, labels and weights are the pack's; a stream keeps no samples, so its pack is one forward.
    """
    packs, kind = collator.packs, class_of(model)
    if not (isinstance(row, Mapping) and hasattr(packs, "members")):
        pack = collator.pack_of_row(row)
        output = kind.forward(model, **_forward_inputs(collator.batch_of_packs([pack]), model))
        yield *_loss_and_weight_sums(output, packs.encoder.batch([pack])), len(pack.members)
        return
    process = MediaProcessorCaller(packs.encoder.rules)
    for sample in _samples_of(packs, int(row[EPOCH_COLUMN]), int(row[PACK_COLUMN]), process):
        tokens = sample.tokens
        weights = weights_aligned_to_labels(Members.of([tokens]), packs.encoder.loss_weight, shifted=False)
        output = kind.forward(model, **plain_inputs(kind, sample, model.config, model.device))
        yield *_loss_and_weight_sums(output, {"labels": tokens.labels[None], "loss_weight": weights[None]}), 1


def _samples_of(packs: Any, epoch: int, number: int, process: MediaProcessorCaller) -> Iterator[Encoded]:
    """Yield the samples of a pack, each with the media inputs of a call of the processor for this sample alone."""
    for member in packs.members(epoch, number):
        pack = packs.encoder.encode(f"{epoch}/{number}", [member])
        if pack is None:  # left out of its pack, too
            continue
        seen = packs.encoder.members.stored_or_new_tokens(member).media
        prepared = prepare_media_for_processor(packs.encoder.rules, seen, media_in_order(member, seen))
        yield replace(pack.members[0], media=process([prepared]) if prepared.order else {})


def _loss_and_weight_sums(output: Any, batch: Mapping[str, Any]) -> tuple[float, float]:
    return float(weighted_loss(output.logits, batch, torch.ones(()))), float(total_weight(batch))


def _forward_inputs(batch: Mapping[str, Any], model: Any) -> dict[str, Any]:
    return {name: _to_device(value, model.device) for name, value in batch.items() if name not in _LOSS_KEYS}


@torch.no_grad()
def describe_host_reads(trainer: Any, collator: Collator, rows: Sequence[Any]) -> str:
    """Return a text: how often the host reads tensors in a forward over the pack with the most reads.

    If batches bring precomputed inputs for a vision tower, it also counts without them.
    """
    model = unwrapped(trainer.model)
    proof = outline_of(model).tower
    media_counts_of = []
    for row in rows:
        inputs = _forward_inputs(collator([row]), model)
        names = inputs.keys() & (proof.names if proof else set())
        kept = [inputs[name] for name in names if proof and proof.keeps_boundaries_on_host and BOUNDARY_MARK in name]
        plain = {name: value for name, value in inputs.items() if name not in names}
        counts = []
        for arguments in (plain, inputs) if names else (plain,):
            with run_without_guard_checks(model), HostReadCounter(kept, model.device) as reads:
                class_of(model).forward(model, **arguments)
            counts.append(reads.num_reads)
        media_counts_of.append(counts)
    before, *after = max(media_counts_of)
    told = amount(before, "host read") + " in a forward"
    return f"{told}, {after[0]:,} with the values for its vision tower" if after else told


def _to_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return {name: _to_device(item, device) for name, item in value.items()} if isinstance(value, Mapping) else value
