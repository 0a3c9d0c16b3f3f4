"""Test with a training batch whether the model that is trained lets members see each other.

    as is ──► words and media of a random half replaced      (forwards alone: outputs of the others keep every bit)
    as is, some members in the loss ──► members alone        (with gradients: all are equal)

The model is not copied, so the test sees everything that was put into it, and it runs as it is trained: its mode, its
gradients, autocast, checkpoints and compiled code are those of the pending forward. A change changes no shape, so every
bit of the other members' outputs must stay, even in bfloat16. Experts are chosen as before the change: a token between
two would go to the other one.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from energon_pack.training.batch_members import MemberPlaces
from energon_pack.training.comparison import AVERAGED_TOKENS
from energon_pack.training.finding import BatchDifference, max_difference, max_or_nan, token_variation
from energon_pack.training.forward_inputs import ids_or_embeddings
from energon_pack.training.recording import (
    Routing,
    has_experts,
    hooked,
    perturbed_embeddings,
    sketch_of,
    token_values_of,
    use_routing,
)
from energon_pack.training.trial_inputs import with_all_logits, without_loss
from energon_pack.training.tried_batch import ReplacedInputs

#: shares of a change that count as rounding: of sums in another order, and of experts whose choices no `topk` shows
SUM_TOLERANCE, _EXPERT_TOLERANCE = 1e-3, 0.05
#: the same in bfloat16 and the like
BF16_TOLERANCE = 0.1


@dataclass
class RequestedRun:
    """A run that a generator asks its caller for, so that compiled code runs compiled; the caller sets `output`."""

    call: Callable[..., Any]
    inputs: Mapping[str, Any]
    output: Any = None


#: yields runs that the caller makes; None: there is no more to run
TrialSteps = Generator[RequestedRun | None, None, None]


@dataclass(frozen=True)
class PendingForward:
    """A forward that waits until its trial has passed."""

    #: the part that was called, and a function that runs it
    part: Module
    call: Callable[..., Any]
    inputs: Mapping[str, Any]
    #: called before each run with a seed of its random numbers
    before_run: Callable[[int], None]
    #: says whether a flag is true on any rank
    on_any_rank: Callable[[bool], bool]
    #: whether it is compiled
    is_compiled: bool = False


@dataclass(frozen=True)
class OutputChange:
    """How far outputs moved when words or media of some members were changed, as root mean squares."""

    #: `words`, or `words and media`
    changed_inputs: str
    #: outputs of the changed members
    own_change: float
    #: outputs of the other member that moved most
    others_change: float
    #: share of `own_change` that counts as rounding
    tolerance: float = SUM_TOLERANCE

    @property
    def is_conclusive(self) -> bool:
        """Whether the change moved the changed members' own outputs; if not, the test proves nothing."""
        return self.own_change > 1e-6

    @property
    def moves_other_members(self) -> bool:
        """Whether the outputs of other members moved, too."""
        return self.is_conclusive and not self.others_change <= self.tolerance * self.own_change

    def with_noise(self, noise: float) -> "OutputChange":
        """Return a copy whose tolerance covers a change of outputs by `noise`, up to `BF16_TOLERANCE`."""
        share = min(noise / max(self.own_change, 1e-9), BF16_TOLERANCE)
        return replace(self, tolerance=max(self.tolerance, share))

    def __str__(self) -> str:
        moved = f"their own outputs by {self.own_change:.2g}, those of others by {self.others_change:.2g}"
        return f"other {self.changed_inputs} move {moved}"


@dataclass(frozen=True)
class ModelTrial:
    """The results of trying a model with one batch."""

    #: members in the batch against each of them alone; None: whose its media are is not known
    finding: BatchDifference | None
    #: how far other words and media of some members moved outputs; None: no row has two members
    change: OutputChange | None
    #: whether random numbers other than dropout's change outputs
    is_random: bool
    seconds: float

    @property
    def is_empty(self) -> bool:
        """Whether nothing was compared: no words could be replaced, and whose the media are is not known."""
        return self.finding is None and self.change is None

    @property
    def is_conclusive(self) -> bool:
        """Whether outputs vary, and each change moved the changed members' outputs; else the trial proves nothing."""
        return (self.finding is None or self.finding.is_conclusive) and (
            self.change is None or self.change.is_conclusive
        )

    @property
    def mixes(self) -> bool:
        """Whether a member's outputs, loss or gradients depend on other members, or on being packed."""
        is_other = self.finding is not None and self.finding.is_conclusive and self.finding.mixes
        return self.is_random or is_other or self.moved_other_members

    @property
    def moved_other_members(self) -> bool:
        """Whether other words and media of some members moved the outputs of others."""
        return self.change is not None and self.change.moves_other_members

    @property
    def outputs_agree(self) -> bool:
        """Whether members have the outputs that they have alone."""
        return self.finding is None or self.finding.outputs_agree

    @property
    def unproven_reason(self) -> str:
        """Why the trial proves nothing: a change moved no output, or all outputs are alike."""
        moves = self.change is None or self.change.is_conclusive
        return "outputs are all alike" if moves else "other words change nothing"

    def __str__(self) -> str:
        return "; ".join(str(one) for one in (self.change, self.finding) if one is not None)


def run_with_and_without_edits(
    pending: PendingForward, edits: ReplacedInputs | None
) -> Generator[RequestedRun, None, OutputChange | None]:
    """Run a batch unchanged, then with the others in `edits`; yield each run, return how far outputs moved.

    Without `edits` on this rank, while others have some, it runs unchanged as often. Compiled code runs with its
    labels, in the graph that the training takes.
    """
    routing = Routing() if has_experts(pending.part) else None
    run = partial(_request_outputs, pending)
    unchanged = with_all_logits(pending.inputs) if pending.is_compiled else without_loss(pending.inputs)
    try:
        as_is = yield from run(unchanged, routing)
    except ValueError:
        if not pending.is_compiled:
            raise
        return (
            yield from run_with_and_without_edits(replace(pending, is_compiled=False), edits)
        )  # a fused loss makes no logits
    tolerance, block = SUM_TOLERANCE, 1
    if routing is not None and not routing.has_choices:
        is_short = any(one.dtype != torch.float32 for one in pending.part.parameters())
        tolerance = BF16_TOLERANCE if is_short or torch.is_autocast_enabled() else _EXPERT_TOLERANCE
        block = AVERAGED_TOKENS
    values = yield from run(unchanged | edits.inputs if edits else unchanged, routing and Routing(routing))

    def moved(members: Sequence[MemberPlaces], other: Tensor) -> float:
        return max_or_nan(max_difference(one.select(as_is), one.select(other), block) for one in members)

    change: OutputChange | None = None
    if edits is not None:
        change = OutputChange(edits.kind, moved(edits.replaced, values), moved(edits.same, values), tolerance)
    if pending.on_any_rank(change is not None and not change.others_change <= SUM_TOLERANCE * change.own_change):
        ways: list[AbstractContextManager[None]] = [nullcontext()]  # some kernels add in any order
        if "seq_idx" in unchanged:  # scans sum over a whole row, and take members apart by differences
            ways.append(perturbed_embeddings(pending.part))
        for way in ways:
            with way:
                again = yield from run(unchanged, routing and Routing(routing))
            noise = 3 * moved([*edits.replaced, *edits.same], again) if edits else 0.0
            change = change and change.with_noise(noise)
    return change


def _request_outputs(
    pending: PendingForward, inputs: Mapping[str, Any], routing: Routing | None = None
) -> Generator[RequestedRun, None, Tensor]:
    """Run a model once and return its outputs [B, S, values]; nothing is saved for a backward."""
    pending.before_run(0)
    with saved_tensors_hooks(_save_nothing, _save_nothing), use_routing(pending.part, routing):
        yield (step := RequestedRun(pending.call, inputs))
    values = token_values_of(step.output, ids_or_embeddings(inputs).shape[:2])
    step.output = None  # the caller holds the step until the next one
    if values is None:
        raise ValueError("its output has no values of each token")
    return sketch_of(values.detach())


def _save_nothing(_: Any) -> Any:
    return None


#: where outputs are those of the members alone
_LOSS_HINT = (
    "Outputs agree, the loss does not: output_router_logits adds one over the routers of the whole row, and a"
    " loss_function may predict more than the next token (model.config.output_router_logits=False). "
)
_GRAD_HINT = "Outputs and loss agree, gradients do not: a kernel's backward has no mask, or a hook mixes gradients. "
_MemberValues = list[Tensor] | None
#: inputs of a run, and the members to look at
RunInputs = tuple[Mapping[str, Any], Sequence[MemberPlaces]]


def refusal_message(name: str, batch: str, trial: ModelTrial, place: str | None) -> str:
    """Return the message of a failed trial: what mixes members, and the part (`place`) where it first shows."""
    if trial.is_random:
        return (
            f"{name} draws random numbers in train() beside dropout, so that it can't be compared with its members"
            " alone; NEFTune's noise goes by the length of the row: leave it out (neftune_noise_alpha=None). "
        )
    shows = f"It first shows in {place}. " if place else ""
    finding, is_quiet = trial.finding, trial.mixes and not trial.moved_other_members and trial.outputs_agree
    beside = "" if not is_quiet or finding is None else _GRAD_HINT if finding.loss_agrees else _LOSS_HINT
    return f"{name} mixes the members of {batch}{'' if trial.mixes else ' on another rank'}: {trial}. {shows}{beside}"


def find_mixing_part(part: Module, call: Callable[..., Any], runs: Sequence[RunInputs], tolerance: float) -> str | None:
    """Return name and class of the first part with equal inputs but different outputs for the same members in two runs.

    None: no such part is found; compiled code, a backward, and outputs without values for each token are not seen.
    """
    (first, second) = (_inputs_and_outputs(part, call, *run) for run in runs)

    def are_same(these: _MemberValues, those: _MemberValues) -> bool:
        if these is None or those is None:
            return True
        pairs = zip(these, those, strict=True)
        return all(max_difference(a, b, 1) <= tolerance * max(token_variation(a), token_variation(b)) for a, b in pairs)

    kinds = {name: type(one).__name__ for name, one in part.named_modules()}
    for name, (entered, outputs) in first.items():
        other_entered, other_left = second.get(name, (None, None))
        if are_same(entered, other_entered) and not are_same(outputs, other_left):
            return f"{name} ({kinds[name]})" if name else kinds[name]
    return None


def _inputs_and_outputs(
    part: Module, call: Callable[..., Any], inputs: Mapping[str, Any], members: Sequence[MemberPlaces]
) -> dict[str, tuple[_MemberValues, _MemberValues]]:
    """Return the members' inputs and outputs of all parts by name, in the order in which the parts finish."""
    shape = ids_or_embeddings(inputs).shape[:2]
    entered: dict[str, _MemberValues] = {}
    seen: dict[str, tuple[_MemberValues, _MemberValues]] = {}

    def of_members(output: Any) -> _MemberValues:
        values = token_values_of(output, shape)
        return None if values is None else [sketch_of(member.select(values.detach())[None])[0] for member in members]

    def hooks(name: str, one: Module) -> list[RemovableHandle]:
        def enter(_: Module, args: Any, keywords: dict[str, Any]) -> None:
            entered[name] = of_members([*args, *keywords.values()])

        def leave(_: Module, __: Any, output: Any) -> None:
            seen.setdefault(name, (entered.get(name), of_members(output)))

        return [one.register_forward_pre_hook(enter, with_kwargs=True), one.register_forward_hook(leave)]

    with hooked(part, hooks), torch.no_grad():
        call(**inputs)
    return seen
