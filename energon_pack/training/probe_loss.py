"""Compute the loss of made samples: of their batch, and of each of them alone."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.functional import pad as pad_tensor

from energon_pack.training.batch import PackedBatch, total_weight, weighted_loss
from energon_pack.training.encoded import Encoded
from energon_pack.training.layout import IGNORE, loss_weights
from energon_pack.training.probe import Probe
from energon_pack.training.watch import Seen


class ProbeLoss:
    """The loss of the samples that have a part in it: of the batch, and of each alone."""

    def __init__(self, probe: Probe, is_own: bool, is_divided: bool):
        """Leave the labels of samples out that have no part in it.

        Args:
            is_own: whether it is the model's own, from labels.
            is_divided: whether the model divides it by a number that it is given.
        """
        batch = probe.batch
        counts = torch.zeros_like(batch["labels"], dtype=torch.bool)
        for one in probe.placed:
            counts[one.row, one.places] |= one.in_loss
        self._is_own, self._is_divided, self._kind = is_own, is_divided, probe.weights
        self._batch = PackedBatch({**batch, "labels": torch.where(counts, batch["labels"], IGNORE)})
        if "loss_weight" in batch:
            self._batch["loss_weight"] = batch["loss_weight"] * counts
        self._total = total_weight(self._batch)

    def inputs(self) -> dict[str, Any]:
        """Return the inputs of the batch from which the model computes its own loss."""
        return self._named(self._batch["labels"], self._batch["labels"])

    def inputs_alone(self, labels: Tensor) -> dict[str, Any]:
        """Return the inputs from which the model computes its own loss of a sample alone.

        Args:
            labels: [1, L], not shifted.
        """
        return self._named(labels, pad_tensor(labels[:, 1:], (0, 1), value=IGNORE))

    def of_batch(self, seen: Seen) -> Tensor:
        """Return the loss of the batch."""
        if self._is_own:
            return _own(seen)
        values = logits_of(seen)
        labels = self._batch["labels"].to(values.device)
        labels = torch.where(labels == IGNORE, IGNORE, labels % values.shape[-1])  # outputs are thinned
        return weighted_loss(values, {**self._batch, "labels": labels}, self._total)

    def alone(self, sample: Encoded, seen: Seen) -> Tensor:
        """Return a sample's part in the loss, from its run alone."""
        weights = loss_weights(sample.tokens, self._kind)[1:]
        if self._is_own:
            return _own(seen) * (1.0 if self._is_divided else float(weights.sum() / self._total))
        values = logits_of(seen)[0, :-1]
        targets = sample.tokens.ids[1:].to(values.device) % values.shape[-1]
        each = cross_entropy(values, targets, reduction="none")
        return (each * weights.to(values.device)).sum(dtype=torch.float64) / self._total

    def _named(self, labels: Tensor, shifted: Tensor) -> dict[str, Any]:
        if not self._is_own:
            return {}
        is_shifted = "_packed_seq_ids" in self._batch
        named: dict[str, Any] = {"labels": shifted if is_shifted else labels}
        named |= {"shift_labels": shifted} if is_shifted else {}
        return named | ({"num_items_in_batch": self._total} if self._is_divided else {})


def _own(seen: Seen) -> Tensor:
    if seen.loss is None:
        raise ValueError("it computes no loss from labels")
    return seen.loss


def logits_of(seen: Seen) -> Tensor:
    """Return outputs [B, S, values] in float32."""
    assert seen.values is not None
    return seen.values.float()
