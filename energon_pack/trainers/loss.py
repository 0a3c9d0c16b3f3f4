"""The loss of a step of packs for `compute_loss_func` of transformers' Trainer."""

from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from energon_pack.errors import PackError
from energon_pack.training.layout import IGNORE


class TokenMean:
    """Σ ce / all trained tokens of the step, over accumulated batches and ranks: the loss of the unpacked samples.

    Args:
        shifted: a label stands at the position that predicts it.
    """

    def __init__(self, shifted: bool = False):
        self._shifted = shifted

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Return the batch's part of the loss, 0-d.

        Args:
            outputs: outputs of the model, with logits [B, S, vocabulary].
            labels: [B, S].
            num_items_in_batch: trained tokens of the whole step; None: count those of this batch, as in evaluation.

        Raises:
            PackError: the model gives no logits.
        """
        logits = outputs.logits
        if logits is None:
            raise PackError(
                "the model gives no logits, for Liger's fused loss takes their place, which is the mean of each batch:"
                ' liger_kernel_config={"fused_linear_cross_entropy": False}'
            )
        if not self._shifted:
            logits, labels = logits[:, :-1], labels[:, 1:]
        labels = labels.to(logits.device)
        total = (labels != IGNORE).sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
        summed = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE, reduction="sum")
        loss: Tensor = summed / (total.to(logits.device) if isinstance(total, Tensor) else total)
        return loss
