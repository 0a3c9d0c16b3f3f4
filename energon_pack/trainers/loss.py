"""Put the weights of tokens into a trainer's loss: `loss_weight`, and the weights of samples and turns."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from energon_pack.errors import PackError
from energon_pack.trainers.collator import LOSS_KEYS
from energon_pack.training.batch import total_weight, weighted_loss
from energon_pack.training.layout import IGNORE


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


__all__ = ["weighted"]

Trainer = TypeVar("Trainer")


def weighted(trainer: Trainer) -> Trainer:
    """Make a trainer's loss Σ w·ce / Σ w over a whole step: all accumulated packs of all ranks.

    Args:
        trainer: transformers' Trainer or a subclass, with `data_collator=packs.collator(model, weights=True)`. It is
            changed in place.
    """
    kind: Any = type(trainer)
    trainer.__class__ = type(kind.__name__, (WeightedSteps, kind), {"__module__": kind.__module__})
    trainer.model_accepts_loss_kwargs = True  # type: ignore[attr-defined]  # its losses are divided already
    args: Any = trainer.args  # type: ignore[attr-defined]
    if hasattr(args, "use_logits_to_keep"):  # ms-swift would cut labels but not their weights
        args.use_logits_to_keep = False
    return trainer


class WeightedSteps:
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
