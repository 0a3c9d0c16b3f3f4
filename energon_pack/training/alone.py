"""Compare the samples of a batch with each of them alone in the model that is trained, in the midst of a forward."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from energon_pack.training.as_it_was import is_sharded, parameters_of, silent
from energon_pack.training.comparison import Way, compare
from energon_pack.training.finding import Finding, difference, variation
from energon_pack.training.gradients import CheckpointError
from energon_pack.training.routing import is_routed
from energon_pack.training.trial import LOW_PRECISION, SUMS, Pending
from energon_pack.training.trial_inputs import Probe, Run, Span, switches_of, without_loss
from energon_pack.training.watch import see


@dataclass(frozen=True)
class Alone:
    """The results of samples, made or of the batch."""

    finding: Finding
    #: whether random numbers beside dropout move outputs
    is_random: bool
    #: the batch, and one of its samples alone
    runs: tuple[Run, Run]


def try_alone(pending: Pending, probe: Probe) -> Alone:
    """Compare the samples of a batch with each of them alone."""
    part, way, switches, last = pending.part, _way(pending), switches_of(pending.inputs), probe.placed[-1]
    plain = probe.plain
    probe = replace(probe, plain=lambda sample: switches | plain(sample))
    alone = without_loss(probe.plain(last.sample))
    with silent(part):
        is_random = part.training and _is_random(pending, alone)
        finding = replace(_finding(way, probe), in_training=part.training)
    span = Span(last.row, int(last.places[0]), int(last.places[0]) + len(last.places))
    return Alone(finding, is_random, ((without_loss(probe.inputs), [span]), (alone, [Span(0, 0, len(last.places))])))


def _way(pending: Pending) -> Way:
    part, inputs = pending.part, pending.inputs
    return Way(
        part,
        pending.call,
        (SUMS, LOW_PRECISION),
        follow=torch.is_grad_enabled(),
        weights=_weights(part),
        own_loss=any(inputs.get(name) is not None for name in ("labels", "shift_labels")),
        is_divided=inputs.get("num_items_in_batch") is not None,
        is_routed=is_routed(part),
        begin=partial(pending.begin, 0),
    )


def _finding(way: Way, probe: Probe) -> Finding:
    try:
        return compare(way, probe)
    except CheckpointError:
        with _without_gradients(way.part):
            return compare(replace(way, weights=(), is_frozen=True), probe)


def _weights(part: Module) -> list[Tensor]:
    """Return the weights whose gradients are compared; none where they would be there twice, or are sharded."""
    every: list[Tensor] = [one for one in part.parameters() if one.requires_grad]
    return every if not is_sharded(part) and all(one.grad is None for one in every) else []


def _is_random(pending: Pending, alone: Mapping[str, Any]) -> bool:
    """Say whether other random numbers move the outputs of a sample alone, more than the same ones do."""

    def run(seed: int) -> Tensor:
        pending.begin(seed)
        with torch.no_grad():
            values = see(pending.part, alone, pending.call).values
        assert values is not None
        return values[0].detach()

    first = run(0)
    same, *others = (difference(first, run(seed), 1) for seed in (0, 1, 2, 3))
    return max(others) > 3 * same + 1e-6 * variation(first)


@contextmanager
def _without_gradients(part: Module) -> Iterator[None]:
    every = [(one, one.requires_grad, one.grad) for one in parameters_of(part)]
    if not all(one.is_leaf for one, _, _ in every):
        raise ValueError("checkpoints in FSDP1 have to be made with use_reentrant=False")
    try:
        for one, _, _ in every:
            one.requires_grad_(False)
        yield
    finally:
        for one, requires, grad in every:
            one.requires_grad_(requires)
            one.grad = grad
