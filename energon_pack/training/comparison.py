"""Compare a batch of made samples with each sample alone: outputs, loss, and gradients.

    a batch ───────────► outputs, the loss of some samples, gradients of embeddings, pixels and weights
                            ║ equal                             ╚═► 0 for samples that have no part in the loss
    each sample alone ─► outputs, loss, gradients

Alone is transformers' plain way: a processor's output, a mask of ones, no positions of ours. Outputs are not enough: a
kernel may have an exact forward and a backward without a mask; and with a fork right before an answer, and labels
shifted as in a plain row, outputs of a tree are equal and gradients a few hundredths off.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy
from torch.nn.functional import pad as pad_tensor

from energon_pack.training.batch import PackedBatch, total_weight, weighted_loss
from energon_pack.training.layout import IGNORE, loss_weights
from energon_pack.training.members import Encoded
from energon_pack.training.probe import Placed, Probe, leaves_of
from energon_pack.training.watch import Routing, Seen, see

#: tokens over which differences are averaged where rounding may send single ones to another expert
BLOCK = 16
#: gradients are rounded so much more than outputs: of 230 classes in bfloat16 by 11 % at most, outputs by 3 %
_MORE = 2.5
#: share of the largest gradient that is none: where a mask cuts all ways to a loss, there is nothing to round
_ZERO = 1e-5
#: some classes give words that can't come next a logit as low as that
_NO_OUTPUT = 1e4
#: values kept of the gradient of each weight
_NUM_GRADIENTS = 4096


class CheckpointError(Exception):
    """A checkpoint would give gradients to all weights: they have to need none."""


@dataclass(frozen=True)
class Finding:
    """How far a batch is from its samples alone."""

    #: largest difference of a token's outputs
    alone: float
    #: how much outputs vary within a sample; 0: they show nothing
    own: float
    #: relative difference of the loss; None: not compared
    loss: float | None = None
    #: largest difference of a gradient, as a share of the largest; None: not compared, or attention has none here
    gradients: float | None = None
    #: largest gradient of embeddings and pixels of samples that have no part in the loss, as a share of the largest
    others: float | None = None
    #: the share that counts as no difference: sums in another order differ by about 1e-6
    tolerance: float = 1e-4
    #: whether the model was in train(), in which some classes use other kernels
    in_training: bool = False

    @property
    def shares(self) -> list[float]:
        """The differences of outputs, loss and gradients, as shares."""
        return [self.alone / max(self.own, 1e-30), self.loss or 0.0, (self.gradients or 0.0) / _MORE]

    @property
    def is_shown(self) -> bool:
        """Whether outputs show anything."""
        return self.own > 1e-6

    @property
    def mixes(self) -> bool:
        """Whether samples depend on each other, or on being packed; true, too, if outputs show nothing."""
        is_same = all(share <= self.tolerance for share in self.shares)  # NaN is not
        return not (self.is_shown and is_same and (self.others or 0.0) <= _ZERO)

    @property
    def has_outputs(self) -> bool:
        """Whether outputs are those of the samples alone."""
        return self.shares[0] <= self.tolerance

    @property
    def has_loss(self) -> bool:
        """Whether the loss is that of the samples alone."""
        return self.shares[1] <= self.tolerance

    @property
    def may_be_rounding(self) -> bool:
        """Whether the difference is so small that it may be rounding, which a run in float64 can tell."""
        return self.mixes and self.is_shown and all(share <= 10 * self.tolerance for share in self.shares)

    def __str__(self) -> str:
        said = "in train(), " if self.in_training else ""
        said += f"packed and alone differ by {self.alone:.2g}, outputs vary by {self.own:.2g}"
        said += "" if self.loss is None else f"; loss by {self.loss:.2g}"
        said += "" if self.gradients is None else f"; gradients by {self.gradients:.2g}"
        return said if not self.others else f"{said}; a loss moves inputs of other members by {self.others:.2g}"


@dataclass(frozen=True)
class Way:
    """How a model is run for a comparison."""

    part: Module
    #: makes the inputs of a sample alone
    plain: Callable[[Encoded], dict[str, Any]]
    #: runs the part
    call: Callable[..., Any]
    #: the share that counts as no difference, in float32 and in shorter types
    tolerances: tuple[float, float]
    #: whether loss and gradients are compared
    follow: bool = True
    #: weights whose gradients are compared
    weights: Sequence[Tensor] = ()
    #: whether the loss is the model's own, from labels
    own_loss: bool = False
    #: whether the model divides its loss by a number that it is given
    is_divided: bool = False
    #: whether weights need no gradients, so that `backward` leaves them alone: some checkpoints take nothing else
    is_frozen: bool = False
    #: whether samples alone choose the experts that they choose in the batch
    is_routed: bool = False
    #: entered while a sample runs alone
    alone: Callable[[], AbstractContextManager[None]] = nullcontext
    #: called before each run
    begin: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class _Run:
    """The results of one run."""

    values: Tensor
    dtypes: set[torch.dtype]
    loss: float = 0.0
    embedded: Tensor | None = None
    #: by leaf
    media: Sequence[Tensor | None] = ()
    #: by weight, thinned
    weights: Sequence[Tensor | None] = ()


def compare(way: Way, probe: Probe, inputs: Mapping[str, Any]) -> Finding:
    """Run a batch with its inputs, and each of its samples alone."""
    loss = _Loss(way, probe)
    routing = Routing() if way.is_routed else None
    leaves = [leaf for one in probe.placed for leaf in one.leaves.values()]
    packed = _run(way, {**inputs, **loss.inputs()}, loss.of_batch, leaves, routing)
    alone: dict[int, _Run] = {}
    for one in probe.placed:
        if _key(way, one) not in alone:
            alike = [other for other in probe.placed if _key(way, other) == _key(way, one)]
            alone[_key(way, one)] = _run_alone(way, alike, loss, routing, packed.values.shape)
    pairs = [(one, alone[_key(way, one)]) for one in probe.placed]
    is_low = any(torch.finfo(dtype).eps > 1e-6 for dtype in packed.dtypes)
    tolerance, block = (way.tolerances[1], BLOCK) if is_low else (way.tolerances[0], 1)
    differences = [difference(packed.values[one.row, one.places], run.values[0], block) for one, run in pairs]
    own = sum(variation(run.values[0]) for run in alone.values()) / len(alone)
    if not way.follow:
        return Finding(_largest(differences), own, tolerance=tolerance)
    wanted = sum(run.loss for one, run in pairs if one.in_loss)
    gradients, others = _of_gradients(packed, pairs)
    by_loss = abs(packed.loss - wanted) / max(abs(wanted), 1e-30)
    return Finding(_largest(differences), own, by_loss, gradients, others, tolerance)


def _key(way: Way, one: Placed) -> int:
    """Return what is equal for places whose sample runs alone once: each may choose other experts."""
    return id(one if way.is_routed else one.sample)


def difference(some: Tensor, other: Tensor, block: int) -> float:
    """Return the largest mean over `block` tokens in a row of each token's root mean square difference."""
    some, other = some.float(), other.float()
    each = torch.where(some == other, 0.0, some - other).square().mean(-1).sqrt()  # some logits are always -inf
    return _largest([float(part.mean()) for part in each.split(block)])


def variation(values: Tensor) -> float:
    """Return how much the outputs [L, values] of a sample vary from token to token, as a root mean square."""
    own = torch.where(values.abs() < _NO_OUTPUT, values, 0.0).float()
    return float((own - own.mean(0)).square().mean().sqrt())


def _largest(values: Iterable[float]) -> float:
    return float(torch.tensor([0.0, *values]).max())  # Python's `max` passes over NaN


# ------------------------------------------------------------------------------------------------------------- runs


class _Loss:
    """The loss of the samples that have a part in it: of the batch, and of each alone."""

    def __init__(self, way: Way, probe: Probe):
        batch = probe.batch
        counts = torch.zeros_like(batch["labels"], dtype=torch.bool)
        for one in probe.placed:
            counts[one.row, one.places] |= one.in_loss
        self._way, self._kind = way, probe.weights
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
        if self._way.own_loss:
            return _own(seen)
        values = _logits(seen)
        labels = self._batch["labels"].to(values.device)
        labels = torch.where(labels == IGNORE, IGNORE, labels % values.shape[-1])  # outputs are thinned
        return weighted_loss(values, {**self._batch, "labels": labels}, self._total)

    def alone(self, sample: Encoded, seen: Seen) -> Tensor:
        """Return a sample's part in the loss, from its run alone."""
        weights = loss_weights(sample.tokens, self._kind)[1:]
        if self._way.own_loss:
            return _own(seen) * (1.0 if self._way.is_divided else float(weights.sum() / self._total))
        values = _logits(seen)[0, :-1]
        targets = sample.tokens.ids[1:].to(values.device) % values.shape[-1]
        each = cross_entropy(values, targets, reduction="none")
        return (each * weights.to(values.device)).sum(dtype=torch.float64) / self._total

    def _named(self, labels: Tensor, shifted: Tensor) -> dict[str, Any]:
        if not self._way.own_loss:
            return {}
        is_shifted = "_packed_seq_ids" in self._batch
        named: dict[str, Any] = {"labels": shifted if is_shifted else labels}
        named |= {"shift_labels": shifted} if is_shifted else {}
        return named | ({"num_items_in_batch": self._total} if self._way.is_divided else {})


def _own(seen: Seen) -> Tensor:
    if seen.loss is None:
        raise ValueError("it computes no loss from labels")
    return seen.loss


def _logits(seen: Seen) -> Tensor:
    assert seen.values is not None
    return seen.values.float()


def _run_alone(way: Way, places: Sequence[Placed], loss: "_Loss", routing: Routing | None, shape: torch.Size) -> "_Run":
    """Run the sample of some places in a batch [B, S, …] alone; no gradients are followed of one without a loss."""
    sample, in_loss = places[0].sample, any(one.in_loss for one in places)
    leaves = leaves_of(sample.media) if places[0].leaves else {}
    inputs = way.plain(replace(sample, media={**sample.media, **leaves}))
    device = inputs["input_ids"].device
    rows = (places[0].row * shape[1] + places[0].places).to(device)
    again = None if routing is None else Routing(routing, rows, shape[0] * shape[1])
    inputs |= loss.inputs_alone(sample.tokens.labels[None].to(device))
    own = way if in_loss else replace(way, follow=False)
    with way.alone():
        return _run(own, inputs, partial(loss.alone, sample), [*leaves.values()], again)


def _run(
    way: Way,
    inputs: Mapping[str, Any],
    loss_of: Callable[[Seen], Tensor],
    leaves: Sequence[Tensor],
    routing: Routing | None,
) -> _Run:
    way.begin()
    with routing or nullcontext():
        seen = see(way.part, inputs, way.call, way.follow, routing)
        values = _logits(seen).detach()
        if not way.follow:
            return _Run(values, seen.dtypes)
        loss = loss_of(seen)
        followed = [seen.embedded, *leaves, *way.weights]
        found = _gradients(way, loss, [one for one in followed if one is not None])
    media, weights = found[1 : 1 + len(leaves)], found[1 + len(leaves) :]
    return _Run(values, seen.dtypes, float(loss.detach()), found[0], media, [_thinned(one) for one in weights])


def _gradients(way: Way, loss: Tensor, followed: Sequence[Tensor]) -> Sequence[Tensor | None]:
    if not way.is_frozen:
        if _has_backwards_within(loss):
            raise CheckpointError
        return torch.autograd.grad(loss, followed, allow_unused=True)
    followed[0].retain_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return [one.grad for one in followed]


def _has_backwards_within(loss: Tensor) -> bool:
    """Say whether a checkpoint runs a backward of its own within that of the loss, as those with `use_reentrant` do."""
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            if "checkpoint" in node.name().lower():
                return True
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return False


def _thinned(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.flatten()[:: -(-gradient.numel() // _NUM_GRADIENTS)].clone()


# -------------------------------------------------------------------------------------------------------- gradients


def _of_gradients(packed: _Run, pairs: Sequence[tuple[Placed, _Run]]) -> tuple[float, float]:
    """Return the largest difference of a gradient, and the largest one of others' inputs, as shares of the largest."""
    assert packed.embedded is not None
    wanted = torch.zeros_like(packed.embedded, dtype=torch.float32)
    is_own = torch.zeros(wanted.shape[:2], dtype=torch.bool, device=wanted.device)
    waiting = iter(packed.media)
    media: list[tuple[Tensor | None, Tensor | None]] = []
    strangers: list[Tensor | None] = []
    weights: list[Tensor | None] = [None] * len(packed.weights)
    for one, run in pairs:
        own = [next(waiting) for _ in one.leaves]
        if not one.in_loss:
            strangers += own
            continue
        media += zip(own, run.media, strict=True)
        weights = [_sum(some, other) for some, other in zip(weights, run.weights, strict=True)]
        is_own[one.row, one.places] = True
        wanted[one.row, one.places] += 0.0 if run.embedded is None else run.embedded[0].float()
    own = packed.embedded.float()[is_own], wanted[is_own]
    kinds = [[own], media, [*zip(packed.weights, weights, strict=True)]]
    others = [_share([packed.embedded[~is_own]], [wanted]), _share(strangers, [wanted for _, wanted in media])]
    return _largest(_share(map(_difference, kind), [wanted for _, wanted in kind]) for kind in kinds), _largest(others)


def _sum(some: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if some is None else some if other is None else some + other


def _difference(pair: tuple[Tensor | None, Tensor | None]) -> Tensor | None:
    return _sum(pair[0], None if pair[1] is None else -pair[1])


def _share(values: Iterable[Tensor | None], of: Sequence[Tensor | None]) -> float:
    """Return the largest of some values, as a share of the largest of others; None is 0."""
    largest, whole = (
        _largest(float(one.abs().max()) for one in every if one is not None and one.numel()) for every in (values, of)
    )
    return largest / max(whole, 1e-30)
