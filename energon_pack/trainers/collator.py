"""Build a trainer's batches from rows of `as_dataset`, and put the weights of tokens into its loss."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from zlib import crc32

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from energon_pack.errors import PackError
from energon_pack.training.batch import PackedBatch, total_weight, weighted_loss
from energon_pack.training.encoded import BadPack, TrainingPack
from energon_pack.training.layout import IGNORE
from energon_pack.training.masks import ModelOutline, outline_of
from energon_pack.training.refusals import refuse_trees

#: the columns by which a row names its pack
PACK_COLUMN, EPOCH_COLUMN = "pack", "epoch"
#: the column that says of which dataset a row's pack is: `dataset_hash`
DATASET_COLUMN = "packs_of"
#: keys of a batch with weights that make its loss; no model takes them
LOSS_KEYS = ("labels", "loss_weight", "_packed_seq_ids")


def refuse_pair_dataset(dataset: Any) -> None:
    """Raise PackError if a dataset's packs hold preference pairs: a trainer's SFT loss would train rejected answers."""
    if dataset.encoder.pairs is not None:
        from energon_pack.training.preference import SFT_REFUSED

        raise PackError(SFT_REFUSED)


def _refuse_other_forms(packs: Any) -> None:
    """Raise PackError if batches of a dataset are for no trainer's own loss: preference pairs, a layout of Megatron."""
    refuse_pair_dataset(packs)
    if packs.encoder.layout != "neat":
        raise PackError(
            f"layout={packs.encoder.layout}: models of transformers, and trainers with a loss of their own, take"
            " layout=neat"
        )


def dataset_hash(fingerprint: str) -> int:
    """Return a number that a dataset, or a split, of another fingerprint does not have."""
    return crc32(fingerprint.encode())


def plain_batch(dataset: Any, packs: Sequence[TrainingPack], trainer: str, weights: bool = False) -> PackedBatch:
    """Lay packs out in a batch for a trainer with a loss of its own; `weights`: the loss has a place for them.

    Raises:
        PackError: the dataset has preference pairs, or a layout other than `neat`.
        BadPack: members share tokens, or tokens have weights, for which the trainer has no place.
    """
    _refuse_other_forms(dataset)
    refuse_trees(packs, trainer)
    batch: PackedBatch = dataset.encoder.batch(packs)
    if batch.get("is_weighted") and not weights:
        raise BadPack(
            f"{', '.join(pack.key for pack in packs)}: tokens have weights other than 1, which {trainer} ignores:"
            " packs.collator(model, weights=True), and weighted(trainer), in trainers of transformers; else leave"
            " loss_weight out"
        )
    return batch


class Collator:
    """Builds batches from rows, each of which names or holds a pack. It has no weights: a loader's workers can have it.

    Args:
        model: a model of transformers; guard it first. A batch has the inputs that its `forward` takes.
        weights: batches also have the weights of their tokens, for a trainer that is `weighted`.
    """

    def __init__(self, packs: Any, model: Any, weights: bool = False):
        _refuse_other_forms(packs)
        #: the dataset
        self.packs = packs
        #: whether batches have the weights of tokens
        self.weights = weights
        self._outline: ModelOutline = outline_of(model).on_cpu()

    def __call__(self, rows: Sequence[Any], **_: Any) -> dict[str, Any]:
        """Lay out the packs of some rows as the inputs of `model.forward`."""
        return self.batch_of_packs([self.pack_of_row(row) for row in rows])

    def pack_of_row(self, row: Any) -> TrainingPack:
        """Return the pack that a row names or holds; PackError: it has none."""
        if isinstance(row, TrainingPack):
            return row
        if not isinstance(row, Mapping) or PACK_COLUMN not in row:
            content = f"the columns {', '.join(row)}" if isinstance(row, Mapping) else f"a {type(row).__name__}"
            raise PackError(
                f"a row has {content}, and none names a pack: train on packs.as_dataset(), with"
                " remove_unused_columns=False, and without the trainer's own tokenising and packing"
            )
        named = row[PACK_COLUMN]
        if isinstance(named, TrainingPack):
            return named
        if row.get(DATASET_COLUMN, mine := dataset_hash(self.packs.fingerprint)) != mine:
            raise PackError(
                "a row names a pack of another dataset or split than that of data_collator: give the trainer the packs"
                " themselves, which need no collator of their own (eval_dataset=packs, not packs.as_dataset())"
            )
        pack: TrainingPack = self.packs[int(row[EPOCH_COLUMN]), int(named)]
        return pack

    def batch_of_packs(self, packs: Sequence[TrainingPack]) -> dict[str, Any]:
        """Lay packs out as the inputs of `model.forward`; BadPack: they share tokens, or have unexpected weights."""
        batch = plain_batch(self.packs, packs, "a trainer's own loss", self.weights)
        inputs = batch.model_inputs(self._outline, labels=not self.weights)
        return inputs | {name: batch[name] for name in LOSS_KEYS if self.weights and name in batch}


class PairCollator(Collator):
    """Builds batches of preference pairs from rows, whole: a trainer's own loss makes a model's inputs of them."""

    def __init__(self, packs: Any):
        self.packs = packs

    def batch_of_packs(self, packs: Sequence[TrainingPack]) -> PackedBatch:
        """Lay packs out as a batch with `preference_pairs`; raises what `PackEncoder.batch` raises."""
        batch: PackedBatch = self.packs.encoder.batch(packs)
        return batch


def token_mean_loss(
    outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None, *, shifted: bool = False
) -> Tensor:
    """Return Σ ce of a batch / the trained tokens of the whole step, 0-d; batches add up to the unpacked samples' loss.

    Args:
        outputs: outputs of the model, with logits [B, S, vocabulary].
        labels: [B, S].
        num_items_in_batch: trained tokens of the whole step, of accumulated batches and ranks; None: count those of
            this batch.
        shifted: whether a label is at the position that predicts it, not at its own token.
    """
    logits = outputs.logits
    if logits is None:
        raise PackError(
            "the model gives no logits, for Liger's fused loss takes their place, which is the mean of each batch:"
            ' liger_kernel_config={"fused_linear_cross_entropy": False}'
        )
    if not shifted:
        logits, labels = logits[:, :-1], labels[:, 1:]
    labels = labels.to(logits.device)
    total = (labels != IGNORE).sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
    summed = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE, reduction="sum")
    loss: Tensor = summed / (total.to(logits.device) if isinstance(total, Tensor) else total)
    return loss


Trainer = TypeVar("Trainer")


def weighted(trainer: Trainer) -> Trainer:
    """Make a trainer's loss Σ w·ce / Σ w over a whole step: all accumulated packs of all ranks.

    Args:
        trainer: transformers' Trainer or a subclass, with `data_collator=packs.collator(model, weights=True)`. It is
            changed in place.
    """
    kind: Any = type(trainer)
    trainer.__class__ = type(kind.__name__, (WeightedLossMixin, kind), {"__module__": kind.__module__})
    trainer.model_accepts_loss_kwargs = True  # type: ignore[attr-defined]  # its losses are divided already
    args: Any = trainer.args  # type: ignore[attr-defined]
    if hasattr(args, "use_logits_to_keep"):  # ms-swift would cut labels but not their weights
        args.use_logits_to_keep = False
    return trainer


class WeightedLossMixin:
    """A mixin for a trainer's class: its loss becomes Σ w·ce / Σ w over a step."""

    accelerator: Any

    def _get_num_items_in_batch(self, batch_samples: Sequence[Any], device: Any) -> Tensor:
        """Return Σ w over all ranks of a step's batches, or of one batch in evaluation: the Trainer asks for both."""
        weights = [total_weight(batch) for batch in batch_samples]
        total = torch.stack(weights).sum() if weights else torch.zeros((), dtype=torch.float64)
        summed: Tensor = self.accelerator.reduce(total.float().to(device), "sum")
        return summed

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the batch's part of the step's loss; without a total, the loss of the batch alone."""
        of_loss = {name: inputs[name] for name in LOSS_KEYS if name in inputs}
        outputs = model(**{name: value for name, value in inputs.items() if name not in LOSS_KEYS})
        share = None
        if num_items_in_batch is not None:  # the gradients of ranks are averaged
            share = num_items_in_batch / self.accelerator.num_processes
        loss = weighted_loss(outputs.logits, of_loss, share)
        return (loss, outputs) if return_outputs else loss
