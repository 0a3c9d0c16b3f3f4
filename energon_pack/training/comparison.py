"""Compare a batch of made samples with each sample alone: outputs, loss, and gradients.

    a batch ───────────► outputs, the loss of some samples, gradients of embeddings, pixels and weights
                            ║ equal                             ╚═► 0 for samples that have no part in the loss
    each sample alone ─► outputs, loss, gradients

Alone is transformers' plain way: a processor's output, a mask of ones, no positions of ours. Outputs are not enough: a
kernel may have an exact forward and a backward without a mask; and with a fork right before an answer, and labels
shifted as in a plain row, outputs of a tree are equal and gradients a few hundredths off.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy
from torch.nn.functional import pad as pad_tensor

from energon_pack.training.batch import PackedBatch, total_weight, weighted_loss
from energon_pack.training.encoded import Encoded
from energon_pack.training.finding import (
    BatchDifference,
    Gradients,
    compare_gradients,
    compare_outputs,
    gradients_of,
    worst_difference,
)
from energon_pack.training.forward_inputs import ids_or_embeddings
from energon_pack.training.layout import IGNORE, loss_weights
from energon_pack.training.recording import Routing, RunValues, run_and_record, use_routing, without_reentrant
from energon_pack.training.trial_inputs import PlacedSample, Probe, differentiable_copies


class ProbeLoss:
    """Computes the loss over a probe's samples with `in_loss`, from a run of the batch or of each sample alone."""

    def __init__(self, probe: Probe, uses_model_loss: bool, is_loss_divided: bool):
        """Drop the labels of samples without `in_loss`; for the flags see `RunOptions`."""
        batch = probe.batch
        counts = torch.zeros_like(batch["labels"], dtype=torch.bool)
        for one in probe.placed:
            counts[one.row, one.places] |= one.in_loss
        self._is_own, self._is_divided, self._kind = uses_model_loss, is_loss_divided, probe.loss_weight
        self._batch = PackedBatch({**batch, "labels": torch.where(counts, batch["labels"], IGNORE)})
        if "loss_weight" in batch:
            self._batch["loss_weight"] = batch["loss_weight"] * counts
        self._total = total_weight(self._batch)

    def batch_label_inputs(self) -> dict[str, Any]:
        """Return the labels from which the model computes the batch's loss, as inputs; {} unless `uses_model_loss`."""
        return self._label_inputs(self._batch["labels"], self._batch["labels"])

    def sample_label_inputs(self, labels: Tensor) -> dict[str, Any]:
        """Return the same inputs for a run of one sample alone, from its labels [1, L]."""
        return self._label_inputs(labels, pad_tensor(labels[:, 1:], (0, 1), value=IGNORE))

    def batch_loss(self, run_values: RunValues) -> Tensor:
        """Return the batch's loss, 0-d, from what its run recorded."""
        if self._is_own:
            return _model_loss(run_values)
        values = output_sketch(run_values)
        labels = self._batch["labels"].to(values.device)
        labels = torch.where(labels == IGNORE, IGNORE, labels % values.shape[-1])  # of a sketch
        return weighted_loss(values, {**self._batch, "labels": labels}, self._total)

    def sample_loss(self, sample: Encoded, run_values: RunValues) -> Tensor:
        """Return a sample's part of the batch's loss, 0-d, from a run of the sample alone."""
        weights = loss_weights(sample.tokens, self._kind)[1:]
        if self._is_own:
            return _model_loss(run_values) * (1.0 if self._is_divided else float(weights.sum() / self._total))
        values = output_sketch(run_values)[0, :-1]
        targets = sample.tokens.ids[1:].to(values.device) % values.shape[-1]
        each = cross_entropy(values, targets, reduction="none")
        return (each * weights.to(values.device)).sum(dtype=torch.float64) / self._total

    def _label_inputs(self, labels: Tensor, shifted: Tensor) -> dict[str, Any]:
        if not self._is_own:
            return {}
        is_shifted = "_packed_seq_ids" in self._batch
        named: dict[str, Any] = {"labels": shifted if is_shifted else labels}
        named |= {"shift_labels": shifted} if is_shifted else {}
        return named | ({"num_items_in_batch": self._total} if self._is_divided else {})


def _model_loss(seen: RunValues) -> Tensor:
    if seen.loss is None:
        raise ValueError("it computes no loss from labels")
    return seen.loss


def output_sketch(run_values: RunValues) -> Tensor:
    """Return the sketch [B, S, values] of a run's outputs, in float32."""
    return run_values.sketches[0]


#: tokens over which differences are averaged where rounding may send single ones to another expert
AVERAGED_TOKENS = 16


@dataclass(frozen=True)
class RunOptions:
    """How to run a part of a model for a comparison, and what to compare."""

    part: Module
    #: runs the part
    call: Callable[..., Any]
    #: relative differences that count as rounding, in float32 and in shorter types
    tolerances: tuple[float, float]
    #: whether loss and gradients are compared
    compares_gradients: bool = True
    #: weights whose gradients are compared
    weights: Sequence[Tensor] = ()
    #: whether the loss is the model's own, from labels
    uses_model_loss: bool = False
    #: whether the model divides its loss by a number that it is given
    is_loss_divided: bool = False
    #: whether samples alone choose the experts that they choose in the batch
    repeats_routing: bool = False
    #: entered while a sample runs alone
    alone_context: Callable[[], AbstractContextManager[None]] = nullcontext
    #: called before each run
    before_run: Callable[[], object] = lambda: None
    #: returns the largest of such numbers of all ranks that run the model together
    most_on_ranks: Callable[[int], int] = lambda number: number
    #: in [0, 1): which values of the gradients of large weights are compared
    offset: float = 0.0


@dataclass(frozen=True)
class _ForwardRun:
    """The outputs, loss and gradients of one run."""

    sketches: list[Tensor]
    dtypes: set[torch.dtype]
    loss: float = 0.0
    gradients: Gradients = field(default_factory=Gradients)


def compare(run_options: RunOptions, probe: Probe) -> BatchDifference:
    """Run a batch, then each of its compared samples alone; return how far outputs, loss and gradients differ."""
    loss = ProbeLoss(probe, run_options.uses_model_loss, run_options.is_loss_divided)
    routing = Routing() if run_options.repeats_routing else None
    leaves = [leaf for one in probe.placed for leaf in one.leaves.values()]
    packed = _run(run_options, {**probe.inputs, **loss.batch_label_inputs()}, loss.batch_loss, leaves, routing)
    eps = max((torch.finfo(dtype).eps for dtype in packed.dtypes), default=0.0)
    is_low = eps > 1e-6
    alone = _run_all_alone(run_options, probe, loss, routing, packed.sketches[0].shape, is_low)
    pairs = [(one, alone[_run_key(run_options, one)]) for one in probe.placed if one.is_compared]
    tolerance, block = (run_options.tolerances[1], AVERAGED_TOKENS) if is_low else (run_options.tolerances[0], 1)
    measured = [
        compare_outputs(
            [(sketch[one.row, one.places], run.sketches[number][0]) for one, run in pairs],
            eps if is_low else 0.0,
            block,
        )
        for number, sketch in enumerate(packed.sketches)
    ]
    difference, variation = worst_difference(measured, tolerance)
    if not run_options.compares_gradients:
        return BatchDifference(difference, variation, tolerance=tolerance)
    expected = sum(run.loss for one, run in pairs if one.in_loss)
    every = [(one, alone[_run_key(run_options, one)].gradients if one.in_loss else None) for one in probe.placed]
    gradients, of_strangers, size = compare_gradients(packed.gradients, every)
    by_loss = abs(packed.loss - expected) / max(abs(expected), 1e-30)
    return BatchDifference(difference, variation, by_loss, gradients, of_strangers, size, tolerance)


def _run_key(way: RunOptions, one: PlacedSample) -> int:
    """Return a key that places have in common if one run alone serves them; with routed experts each has its own."""
    return id(one if way.repeats_routing else one.sample)


def _run_all_alone(
    way: RunOptions, probe: Probe, loss: ProbeLoss, routing: Routing | None, shape: torch.Size, is_low: bool
) -> dict[int, _ForwardRun]:
    """Run each compared sample of a batch [B, S, …] alone; return the runs by `_run_key`.

    Ranks that share parameters run as often as the rank with the most samples: the last one is run again.
    """
    places: dict[int, list[PlacedSample]] = {}
    for one in probe.placed:
        if one.is_compared:
            places.setdefault(_run_key(way, one), []).append(one)
    in_loss = {key: any(one.in_loss for one in alike) for key, alike in places.items()}
    runs: dict[int, _ForwardRun] = {}
    for counts in (True, False):
        keys = [key for key in places if in_loss[key] is counts]
        spare = keys or [*places]
        for number in range(way.most_on_ranks(len(keys))):
            key = spare[min(number, len(spare) - 1)]
            follows = replace(way, compares_gradients=way.compares_gradients and counts)
            run = _run_alone(follows, probe, places[key], loss, routing, shape, is_low)
            if key in keys:
                runs[key] = run
    return runs


def _run_alone(
    way: RunOptions,
    probe: Probe,
    places: Sequence[PlacedSample],
    loss: ProbeLoss,
    routing: Routing | None,
    shape: torch.Size,
    is_low: bool,
) -> _ForwardRun:
    """Run a sample alone for all its places in a batch [B, S, …]."""
    sample = places[0].sample
    leaves = differentiable_copies(sample.media) if places[0].leaves else {}
    inputs = probe.inputs_alone(replace(sample, media={**sample.media, **leaves}))
    device = ids_or_embeddings(inputs).device
    rows = (places[0].row * shape[1] + places[0].places).to(device)
    again = None if routing is None else Routing(routing, rows, shape[0] * shape[1], is_low)
    inputs |= loss.sample_label_inputs(sample.tokens.labels[None].to(device))
    with way.alone_context():
        return _run(way, inputs, partial(loss.sample_loss, sample), [*leaves.values()], again)


def _run(
    way: RunOptions,
    inputs: Mapping[str, Any],
    loss_of: Callable[[RunValues], Tensor],
    leaves: Sequence[Tensor],
    routing: Routing | None,
) -> _ForwardRun:
    way.before_run()
    with use_routing(way.part, routing), without_reentrant():
        follow = way.compares_gradients
        seen = run_and_record(way.part, inputs, way.call, follow, follow and not way.uses_model_loss)
        sketches = [one.detach() for one in seen.sketches]
        if not follow:
            return _ForwardRun(sketches, seen.dtypes)
        assert seen.embeddings is not None
        loss = loss_of(seen)
        if routing is not None:
            routing.is_over = True
        gradients = gradients_of(loss, seen.embeddings, leaves, way.weights, way.offset)
    return _ForwardRun(sketches, seen.dtypes, float(loss.detach()), gradients)
