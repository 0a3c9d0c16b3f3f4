"""Measure how far a batch is from its samples alone, and whether that may be rounding."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import graph

from energon_pack.training.trial_inputs import PlacedSample

#: gradients are rounded so much more than outputs: of 230 classes in bfloat16 by 11 % at most, outputs by 3 %
_GRADIENT_ROUNDING = 2.5
#: share of the largest gradient that is none: where a mask cuts all ways to a loss, there is nothing to round
_NO_GRADIENT = 1e-5
#: some classes give words that can't come next a logit as low as that
_IMPOSSIBLE_LOGIT = 1e4


@dataclass(frozen=True)
class Finding:
    """How far outputs, loss and gradients of a batch are from those of its samples alone."""

    #: largest difference of a token's outputs
    output_difference: float
    #: how much outputs vary within a sample; 0: they show nothing
    output_variation: float
    #: relative difference of the loss; None: not compared
    loss_difference: float | None = None
    #: largest difference of a gradient, as a share of the largest; None: not compared, or attention has none here
    gradient_difference: float | None = None
    #: largest gradient of embeddings and pixels of samples that have no part in the loss, as a share of the largest
    leaked_gradient: float | None = None
    #: the share that counts as no difference: sums in another order differ by about 1e-6
    tolerance: float = 1e-4
    #: whether the model was in train(), in which some classes use other kernels
    in_training: bool = False

    @property
    def differences(self) -> list[float]:
        """The relative differences of outputs, loss and gradients, each to be compared with `tolerance`."""
        outputs = self.output_difference / max(self.output_variation, 1e-30)
        return [outputs, self.loss_difference or 0.0, (self.gradient_difference or 0.0) / _GRADIENT_ROUNDING]

    @property
    def is_conclusive(self) -> bool:
        """Whether outputs vary enough within a sample to show a difference."""
        return self.output_variation > 1e-6

    @property
    def mixes(self) -> bool:
        """Whether samples depend on each other or on being packed; also true if outputs do not vary."""
        is_same = all(share <= self.tolerance for share in self.differences)  # NaN is not
        return not (self.is_conclusive and is_same and (self.leaked_gradient or 0.0) <= _NO_GRADIENT)

    @property
    def outputs_agree(self) -> bool:
        """Whether the batch has the outputs of its samples alone, within the tolerance."""
        return self.differences[0] <= self.tolerance

    @property
    def loss_agrees(self) -> bool:
        """Whether the batch has the loss of its samples alone, within the tolerance."""
        return self.differences[1] <= self.tolerance

    @property
    def may_be_rounding(self) -> bool:
        """Whether `mixes` is true by at most 10 times the tolerance; only a run in float64 then excludes rounding."""
        return self.mixes and self.is_conclusive and all(share <= 10 * self.tolerance for share in self.differences)

    def __str__(self) -> str:
        text = "in train(), " if self.in_training else ""
        text += f"packed and alone differ by {self.output_difference:.2g}, outputs vary by {self.output_variation:.2g}"
        text += "" if self.loss_difference is None else f"; loss by {self.loss_difference:.2g}"
        text += "" if self.gradient_difference is None else f"; gradients by {self.gradient_difference:.2g}"
        leak = f"; a loss moves inputs of other members by {self.leaked_gradient:.2g}" if self.leaked_gradient else ""
        return text + leak


@dataclass(frozen=True)
class Proof:
    """The result of testing a model class with one mask and one attention implementation."""

    model: str
    attention: str
    #: the mask; empty for trees, which have no choice of masks
    mask: str
    #: the finding of the worst member; None: the model could not be tried
    finding: Finding | None = None
    #: the error, if the model could not be tried
    error: str = ""
    seconds: float = 0.0
    #: the proof holds for packs of at most so many tokens; None: for all packs
    max_pack_len: int | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the class trains packs as it trains their samples alone."""
        return self.finding is not None and not self.finding.mixes

    def __str__(self) -> str:
        limit = f", packs of {self.max_pack_len:,} tokens at most" if self.max_pack_len else ""
        mask = f", mask={self.mask}" if self.mask else ""
        tried = f"{self.model} ({self.attention}{mask}{limit})"
        return f"{tried}: {self.finding}" if self.finding else f"{tried} could not be tried: {self.error}"


def max_difference(first: Tensor, second: Tensor, block: int) -> float:
    """Return the largest difference of outputs [L, values]: root mean square of a token, mean over `block` tokens."""
    first, second = first.float(), second.float()
    each = torch.where(first == second, 0.0, first - second).square().mean(-1).sqrt()  # some logits are always -inf
    return max_or_nan([float(part.mean()) for part in each.split(block)])


def token_variation(values: Tensor) -> float:
    """Return how much the outputs [L, values] of a sample vary from token to token, as a root mean square."""
    outputs = _possible_outputs(values)
    return float((outputs - outputs.mean(0)).square().mean().sqrt())


def root_mean_square(values: Tensor) -> float:
    """Return the root mean square of a sample's outputs [L, values]; logits of impossible words count as 0."""
    return float(_possible_outputs(values).square().mean().sqrt())


def _possible_outputs(values: Tensor) -> Tensor:
    """Return outputs in float32, with 0 in place of logits of impossible words."""
    return torch.where(values.abs() < _IMPOSSIBLE_LOGIT, values, 0.0).float()


def max_or_nan(values: Iterable[float]) -> float:
    """Return the largest value, at least 0; NaN if any value is NaN."""
    return float(torch.tensor([0.0, *values]).max())  # Python's `max` passes over NaN


#: values kept of the gradient of each weight
_NUM_GRADIENT_VALUES = 4096
_GradientPair = tuple[Tensor | None, Tensor | None]


@dataclass(frozen=True)
class Gradients:
    """The gradients of one run; None for a tensor that the loss does not depend on."""

    #: [B, S, width]; None: nothing is followed
    embeddings: Tensor | None = None
    #: of pixels and sounds
    media: Sequence[Tensor | None] = ()
    #: by weight, thinned
    weights: Sequence[Tensor | None] = ()


def gradients_of(loss: Tensor, embedded: Tensor, media: Sequence[Tensor], weights: Sequence[Tensor]) -> Gradients:
    """Return the gradients of a loss; raise ValueError if a reentrant checkpoint would write `.grad` of all weights."""
    if _has_reentrant_checkpoint(loss):
        raise ValueError(
            "checkpoints run a backward of their own: gradient_checkpointing_kwargs={'use_reentrant': False}"
        )
    followed = (
        embedded,
        *media,
        *weights,
    )  # as `torch.autograd.grad`, which leaves `Routing`: checkpoints choose again
    gradients: Sequence[Tensor | None] = graph._engine_run_backward(
        (loss,), (torch.ones_like(loss),), False, False, followed, True, accumulate_grad=False
    )
    of_weights = [_thinned(one) for one in gradients[1 + len(media) :]]
    return Gradients(gradients[0], gradients[1 : 1 + len(media)], of_weights)


def _has_reentrant_checkpoint(loss: Tensor) -> bool:
    """Say whether the loss's graph has a checkpoint with `use_reentrant`, which runs a backward of its own."""
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
    return None if gradient is None else gradient.flatten()[:: -(-gradient.numel() // _NUM_GRADIENT_VALUES)].clone()


def compare_gradients(packed: Gradients, pairs: Sequence[tuple[PlacedSample, Gradients]]) -> tuple[float, float]:
    """Return as shares: the largest difference to gradients alone; the largest gradient of samples not `in_loss`."""
    assert packed.embeddings is not None
    expected = torch.zeros_like(packed.embeddings, dtype=torch.float32)
    is_own = torch.zeros(expected.shape[:2], dtype=torch.bool, device=expected.device)
    waiting = iter(packed.media)
    media: list[_GradientPair] = []
    strangers: list[Tensor | None] = []
    weights: Sequence[Tensor | None] = [None] * len(packed.weights)
    for one, alone in pairs:
        of_sample = [next(waiting) for _ in one.leaves]
        if not one.in_loss:
            strangers += of_sample
            continue
        media += zip(of_sample, alone.media, strict=True)
        weights = [_sum(first, second) for first, second in zip(weights, alone.weights, strict=True)]
        is_own[one.row, one.places] = True
        expected[one.row, one.places] += 0.0 if alone.embeddings is None else alone.embeddings[0].float()
    embedded: list[_GradientPair] = [(packed.embeddings.float()[is_own], expected[is_own])]
    kinds: list[list[_GradientPair]] = [embedded, media, [*zip(packed.weights, weights, strict=True)]]
    of_strangers = [_ratio([packed.embeddings[~is_own]], [expected]), _ratio(strangers, [pair[1] for pair in media])]
    shares = [_ratio([_difference(*pair) for pair in kind], [pair[1] for pair in kind]) for kind in kinds]
    return max_or_nan(shares), max_or_nan(of_strangers)


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first + second


def _difference(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return _sum(first, None if second is None else -second)


def _ratio(values: Sequence[Tensor | None], whole: Sequence[Tensor | None]) -> float:
    """Return the largest absolute value of `values` divided by that of `whole`; None counts as 0."""
    return _largest_absolute(values) / max(_largest_absolute(whole), 1e-30)


def _largest_absolute(values: Iterable[Tensor | None]) -> float:
    return max_or_nan(float(one.abs().max()) for one in values if one is not None and one.numel())
