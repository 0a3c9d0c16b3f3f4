"""Run the samples of two packs alone: `check_trainer` compares a trainer's loss over the packs with theirs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from energon_pack.errors import amount
from energon_pack.trainers.collator import EPOCH_COLUMN, LOSS_KEYS, PACK_COLUMN, Collator
from energon_pack.training.batch import total_weight, weighted_loss
from energon_pack.training.encoded import Pack
from energon_pack.training.host_reads import HostReads
from energon_pack.training.masks import BOUNDARY_MARK, outline_of
from energon_pack.training.model_wrappers import class_of, unwrapped
from energon_pack.training.recording import unchecked

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
    def rank_sums(self) -> list[float]:
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
        with unchecked(model):
            for row in rows:
                of_pack, tokens = 0.0, 0.0
                for pack in _single_sample_packs(collator, row):
                    ce, count = _loss_sums(model, collator, pack)
                    of_pack, tokens, num = of_pack + ce, tokens + count, num + len(pack.members)
                summed.append(of_pack)
                trained.append(tokens)
    finally:
        model.train(training)
    return LossSumsAlone(summed, trained, num)


def _single_sample_packs(collator: Collator, row: Any) -> Iterator[Pack]:
    """Yield each member of a pack as its own pack; for a stream, which keeps no samples, yield the pack itself."""
    if not (isinstance(row, Mapping) and hasattr(collator.packs, "members")):
        yield collator.pack_of_row(row)
        return
    epoch, number = int(row[EPOCH_COLUMN]), int(row[PACK_COLUMN])
    for member in collator.packs.members(epoch, number):
        pack = collator.packs.encoder.encode(f"{epoch}/{number}", [member])
        if pack is not None:
            yield pack


@torch.no_grad()
def _loss_sums(model: Any, collator: Collator, pack: Pack) -> tuple[float, float]:
    """Return Σ w·ce and Σ w of a pack."""
    inputs = collator.batch_of_packs([pack])
    of_loss = collator.packs.encoder.batch([pack])
    arguments = {name: _to_device(value, model.device) for name, value in inputs.items() if name not in _LOSS_KEYS}
    logits = class_of(model).forward(model, **arguments).logits
    return float(weighted_loss(logits, of_loss, torch.ones(()))), float(total_weight(of_loss))


@torch.no_grad()
def describe_host_reads(trainer: Any, collator: Collator, rows: Sequence[Any]) -> str:
    """Return a text: how often the host reads tensors in a forward over the pack with the most reads.

    If batches bring precomputed inputs for a vision tower, it also counts without them.
    """
    model = unwrapped(trainer.model)
    proof = outline_of(model).tower
    media_counts_of = []
    for row in rows:
        inputs = {
            name: _to_device(value, model.device) for name, value in collator([row]).items() if name not in _LOSS_KEYS
        }
        names = inputs.keys() & (proof.names if proof else set())
        kept = [inputs[name] for name in names if proof and proof.keeps_boundaries_on_host and BOUNDARY_MARK in name]
        plain = {name: value for name, value in inputs.items() if name not in names}
        counts = []
        for arguments in (plain, inputs) if names else (plain,):
            with unchecked(model), HostReads(kept, model.device) as reads:
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
