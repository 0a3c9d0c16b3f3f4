"""Measure how far a batch is from its samples alone, and whether that may be rounding."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import graph

from energon_pack.training.trial_inputs import PlacedSample

#: gradients are rounded so much more than outputs: of 230 classes in bfloat16 by 11 % at most, outputs by 3 %
_GRADIENT_ROUNDING = 2.5
#: and their size, in which rounding averages out, so much less
_SIZE_ROUNDING = 0.8
#: share of the largest gradient that is none: where a mask cuts all ways to a loss, there is nothing to round
_NO_GRADIENT = 1e-5
#: outputs that vary less show nothing
_MIN_VARIATION = 1e-6
#: outputs vary at least by so many times the rounding of their size, where they are compared in a short type
_MIN_VARIATION_IN_EPS = 16


@dataclass(frozen=True)
class BatchDifference:
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
    #: how far the projection of all gradients on those alone is from 1; None: not compared
    size_difference: float | None = None
    #: the share that counts as no difference: sums in another order differ by about 1e-6
    tolerance: float = 1e-4
    #: whether the model was in train(), in which some classes use other kernels
    in_training: bool = False

    @property
    def differences(self) -> list[float]:
        """The relative differences of outputs, loss, gradients and their size, each to be compared with `tolerance`."""
        outputs = self.output_difference / max(self.output_variation, 1e-30)
        gradients, size = self.gradient_difference or 0.0, self.size_difference or 0.0
        return [outputs, self.loss_difference or 0.0, gradients / _GRADIENT_ROUNDING, size / _SIZE_ROUNDING]

    @property
    def is_conclusive(self) -> bool:
        """Whether outputs vary enough within a sample to show a difference."""
        return self.output_variation > _MIN_VARIATION

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
        """Whether the batch has the loss of its samples alone, within the tolerance; true if no loss was compared."""
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
        text += f", their size by {self.size_difference:.2g}" if self.size_difference else ""
        leak = f"; a loss moves inputs of other members by {self.leaked_gradient:.2g}" if self.leaked_gradient else ""
        return text + leak


@dataclass(frozen=True)
class MaskTry:
    """The result of testing a model class with one mask and one attention implementation."""

    model: str
    attention: str
    #: the mask; empty for trees, which have no choice of masks
    mask: str
    #: the finding of the worst member; None: the model could not be tried
    finding: BatchDifference | None = None
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
    each = (first - second).square().mean(-1).sqrt()
    return max_or_nan([float(part.mean()) for part in each.split(block)])


def token_variation(values: Tensor) -> float:
    """Return how much the outputs [L, values] of a sample vary from token to token, as a root mean square."""
    return float((values - values.mean(0)).square().mean().sqrt())


def compare_outputs(pairs: Sequence[tuple[Tensor, Tensor]], eps: float, block_len: int) -> tuple[float, float]:
    """Return the largest difference between outputs in a batch and alone, and how much the outputs alone vary.

    Args:
        pairs: for each sample its outputs [L, values] in the batch, and alone.
        eps: the rounding of a type shorter than float32, or 0. Outputs that hardly vary are rounded by it, too.
        block_len: tokens over which a difference is averaged.
    """
    difference = max_or_nan(max_difference(*pair, block_len) for pair in pairs)
    variation = sum(token_variation(alone) for _, alone in pairs) / len(pairs)
    size = sum(float(alone.square().mean().sqrt()) for _, alone in pairs) / len(pairs)
    return difference, max(variation, _MIN_VARIATION_IN_EPS * eps * size)


def worst_difference(measured: Sequence[tuple[float, float]], tolerance: float) -> tuple[float, float]:
    """Return the difference that is the largest share of its variation, and this variation.

    The first ones are of the outputs themselves: where these do not vary, the others show mixing, but no equality.
    """
    varied = [one for one in measured if one[1] > _MIN_VARIATION] or measured[:1]
    worst = max(varied, key=lambda one: (one[0] != one[0], one[0] / max(one[1], 1e-30)))
    return worst if measured[0] in varied or not worst[0] <= tolerance * worst[1] else measured[0]


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


def gradients_of(
    loss: Tensor, embedded: Tensor, media: Sequence[Tensor], weights: Sequence[Tensor], offset: float = 0.0
) -> Gradients:
    """Return the gradients of a loss; `offset` in [0, 1) chooses which values of large weights are kept.

    Raises ValueError if a checkpoint, not torch's, would write `.grad` of all weights in a backward of its own.
    """
    if _has_reentrant_checkpoint(loss):
        raise ValueError("checkpoints that are not torch's run a backward of their own: train with torch's")
    # as `torch.autograd.grad`, which leaves `Routing`: checkpoints choose again
    followed = (embedded, *media, *weights)
    gradients: Sequence[Tensor | None] = graph._engine_run_backward(
        (loss,), (torch.ones_like(loss),), False, False, followed, True, accumulate_grad=False
    )
    of_weights = [_thinned(one, offset) for one in gradients[1 + len(media) :]]
    of_embeddings = torch.zeros_like(embedded) if gradients[0] is None else gradients[0]  # None behind frozen layers
    return Gradients(of_embeddings, gradients[1 : 1 + len(media)], of_weights)


def _has_reentrant_checkpoint(loss: Tensor) -> bool:
    """Say whether the loss's graph has a checkpoint that runs a backward of its own."""
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            if "checkpoint" in node.name().lower():
                return True
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return False


def _thinned(gradient: Tensor | None, offset: float) -> Tensor | None:
    if gradient is None:
        return None
    step = max(1, -(-gradient.numel() // _NUM_GRADIENT_VALUES))
    return gradient.flatten()[int(offset * step) :: step].float()


def compare_gradients(
    packed: Gradients, pairs: Sequence[tuple[PlacedSample, Gradients | None]]
) -> tuple[float, float, float]:
    """Return as shares: the largest difference to gradients alone; the largest gradient of samples not `in_loss`; and
    how far the projection on gradients alone is from 1.

    Args:
        pairs: all samples of the batch, in order, with gradients alone of those that are `in_loss`.
    """
    assert packed.embeddings is not None
    expected = torch.zeros_like(packed.embeddings, dtype=torch.float32)
    is_own = torch.zeros(expected.shape[:2], dtype=torch.bool, device=expected.device)
    waiting = iter(packed.media)
    media: list[_GradientPair] = []
    strangers: list[Tensor | None] = []
    weights: Sequence[Tensor | None] = [None] * len(packed.weights)
    for one, alone in pairs:
        of_sample = [next(waiting) for _ in one.leaves]
        if not one.in_loss or alone is None:
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
    sizes = [_size_difference(kind) for kind in (kinds[0], kinds[2])]
    return max_or_nan(shares), max_or_nan(of_strangers), max_or_nan(sizes)


def _size_difference(pairs: Sequence[_GradientPair]) -> float:
    """Return how far the projection of gradients on the expected ones is from 1; 0: none are expected."""
    both = [(first.float(), second.float()) for first, second in pairs if first is not None and second is not None]
    size = sum(float(second.square().sum()) for _, second in both)
    return abs(sum(float((first * second).sum()) for first, second in both) / size - 1) if size > 0 else 0.0


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first + second


def _difference(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return _sum(first, None if second is None else -second)


def _ratio(values: Sequence[Tensor | None], whole: Sequence[Tensor | None]) -> float:
    """Return the largest absolute value of `values` divided by that of `whole`; None counts as 0."""
    return _largest_absolute(values) / max(_largest_absolute(whole), 1e-30)


def _largest_absolute(values: Iterable[Tensor | None]) -> float:
    return max_or_nan(float(one.abs().max()) for one in values if one is not None and one.numel())
