"""Compare made samples with each of them alone in the model that is trained, in the midst of a forward of its.

The samples may also be those of a batch that another collator made.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from energon_pack.training.as_it_was import silent
from energon_pack.training.comparison import Way, compare
from energon_pack.training.encoded import Encoded
from energon_pack.training.finding import Finding, difference, variation
from energon_pack.training.gradients import CheckpointError
from energon_pack.training.inputs import forks_of, has_rope_rows, text_row
from energon_pack.training.made_rows import made_inputs, made_rows, switches_of
from energon_pack.training.probe import Probe, plain_inputs
from energon_pack.training.probe_tree import ProbeTree, tree_batch
from energon_pack.training.routing import is_routed
from energon_pack.training.sharding import is_sharded, parameters_of
from energon_pack.training.trial import LOW_PRECISION, SUMS, Pending
from energon_pack.training.trial_inputs import Run, Span, TrialInputs, trial_inputs, without_loss
from energon_pack.training.watch import see


@dataclass(frozen=True)
class Packs:
    """A guarded model, and what was made to try it with batches of packs."""

    model: Any
    #: names of inputs that are media
    media: frozenset[str]
    #: samples with each kind of media
    members: Sequence[Encoded]
    #: samples with shared beginnings; None: packs have no trees
    tree: ProbeTree | None
    #: tokens of a row up to which its class keeps members apart; None: any
    longest: int | None
    name = "its first batch"
    tries_all = False
    all_the_same = " (guard(…, first_batch=False) trains it all the same)"

    def longest_of(self, inputs: Mapping[str, Any]) -> int:
        """Return the tokens of the longest member."""
        return int(text_row(inputs, inputs["position_ids"]).max()) + 1

    def is_open(self, _: Mapping[str, Any]) -> bool:
        """Say that no mask does: those of packs are made of their members."""
        return False

    def changed(self, inputs: Mapping[str, Any]) -> TrialInputs | None:
        """Return the inputs in which members are changed; None: there are no two members with words."""
        return trial_inputs(inputs, self.model.config, self.media)

    def beside(self, pending: Pending) -> "MadeTrial":
        """Compare made samples in rows like those of the pending batch with each sample alone."""
        probe = _probe(self, pending)
        inputs = in_place(made_inputs(self.model, pending.inputs, probe), pending.inputs, self.media)
        device = pending.inputs["position_ids"].device
        return try_made(pending, probe, inputs, lambda sample: plain_inputs(pending.part, sample, device))

    def way_out(self, _: Mapping[str, Any]) -> str:
        """Say that the class keeps members apart."""
        return (
            "What was put into this model, hooked to it or patched has to keep members apart, as its class does: leave"
            " that out, or train on unpacked samples"
        )


@dataclass(frozen=True)
class MadeTrial:
    """The results with samples, made or of the batch."""

    finding: Finding
    #: whether random numbers beside dropout move outputs
    is_random: bool
    #: the batch, and one of its samples alone
    runs: tuple[Run, Run]


def try_made(
    pending: Pending, probe: Probe, inputs: Mapping[str, Any], plain: Callable[[Encoded], dict[str, Any]]
) -> MadeTrial:
    """Compare the samples of a batch with each of them alone.

    Args:
        inputs: of the batch, without labels.
        plain: makes the inputs of a sample alone.
    """
    part, way = pending.part, _way(pending, plain)
    last = probe.placed[-1]
    alone = without_loss(way.plain(last.sample))
    with silent(part):
        is_random = part.training and _is_random(pending, alone)
        finding = replace(_finding(way, probe, inputs), in_training=part.training)
    span = Span(last.row, int(last.places[0]), int(last.places[0]) + len(last.places))
    return MadeTrial(finding, is_random, ((without_loss(inputs), [span]), (alone, [Span(0, 0, len(last.places))])))


def _probe(subject: Packs, pending: Pending) -> Probe:
    has_trees = bool(forks_of(text_row(pending.inputs, pending.inputs["position_ids"])))
    if subject.tree is not None and pending.is_any(has_trees):
        return tree_batch(subject.tree, has_rope_rows(subject.model))
    return made_rows(subject.model, pending.inputs, _fitting(subject, pending), subject.longest)


def _way(pending: Pending, plain: Callable[[Encoded], dict[str, Any]]) -> Way:
    part, inputs = pending.part, pending.inputs
    return Way(
        part,
        lambda sample: switches_of(inputs) | plain(sample),
        pending.call,
        (SUMS, LOW_PRECISION),
        follow=torch.is_grad_enabled(),
        weights=_weights(part),
        own_loss=any(inputs.get(name) is not None for name in ("labels", "shift_labels")),
        is_divided=inputs.get("num_items_in_batch") is not None,
        is_routed=is_routed(part),
        begin=partial(pending.begin, 0),
    )


def _finding(way: Way, probe: Probe, inputs: Mapping[str, Any]) -> Finding:
    try:
        return compare(way, probe, inputs)
    except CheckpointError:
        with _without_gradients(way.part):
            return compare(replace(way, weights=(), is_frozen=True), probe, inputs)


def _fitting(subject: Packs, pending: Pending) -> list[Encoded]:
    """Return the members with no other media than some rank's batch has, and the called part takes."""
    taken = None if pending.part is subject.model else inspect.signature(pending.part.forward).parameters
    fitting = []
    for member in subject.members:
        is_taken = taken is None or member.media.keys() <= taken.keys()
        if pending.is_any(is_taken and member.media.keys() <= pending.inputs.keys()):
            fitting.append(member)
    return fitting if len(fitting) > 1 else [*subject.members]


def in_place(inputs: dict[str, Any], before: Mapping[str, Any], media: Collection[str]) -> dict[str, Any]:
    """Write inputs into the tensors of a batch that ran already: results may be kept by a tensor's identity.

    Args:
        before: copies of the batch's tensors; of its media, the tensors themselves.
        media: names of inputs that are media, which are never written: the user's forward comes yet.
    """

    def written(value: Any, old: Any) -> Any:
        are_alike = isinstance(value, Tensor) and isinstance(old, Tensor) and not value.requires_grad
        if are_alike and (value.shape, value.dtype) == (old.shape, old.dtype):
            return old.copy_(value)
        return value

    return {name: value if name in media else written(value, before.get(name)) for name, value in inputs.items()}


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
