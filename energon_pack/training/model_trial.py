"""Test with a training batch whether the model that is trained lets members see each other.

    as is ──► words of every second member changed ──► the first medium changed ──► the last one    (forwards alone)
    made samples in rows of the same shape ──► each of them alone                                    (with gradients)

The model is not copied, so the test sees everything that was put into it, and it runs as it is trained: its mode, its
gradients, autocast, checkpoints and compiled code are those of the pending forward. A change changes no shape, so every
bit of the other members' outputs must stay, even in bfloat16. Experts are chosen as before the change: a token between
two would go to the other one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from energon_pack.training.comparison import AVERAGED_TOKENS
from energon_pack.training.expert_routing import Routing, has_experts, use_routing
from energon_pack.training.finding import Finding, max_difference, token_variation
from energon_pack.training.recording import hooked, sketch_of, token_values_of, tokens_of
from energon_pack.training.trial_inputs import MemberSpan, Probe, RunInputs, TrialInputs

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


@dataclass(frozen=True)
class OutputChange:
    """How far outputs moved when words or media of some members were changed, as root mean squares."""

    #: `words` or `media`
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

    #: samples in a batch against each of them alone
    finding: Finding
    #: how far each change of the batch moved outputs; empty: it has one member
    output_changes: Sequence[OutputChange]
    #: whether random numbers other than dropout's change outputs
    is_random: bool
    seconds: float

    @property
    def is_conclusive(self) -> bool:
        """Whether outputs vary, and each change moved the changed members' outputs; else the trial proves nothing."""
        return self.finding.is_conclusive and all(one.is_conclusive for one in self.output_changes)

    @property
    def mixes(self) -> bool:
        """Whether a member's outputs, loss or gradients depend on other members, or on being packed."""
        return self.is_random or (self.finding.is_conclusive and self.finding.mixes) or self.moved_others

    @property
    def moved_others(self) -> bool:
        """Whether any change of some members moved the outputs of others."""
        return any(map(self.moves_others, self.output_changes))

    def moves_others(self, change: OutputChange) -> bool:
        """Say whether this change of some members moved the outputs of others."""
        by_words = max((one.own_change for one in self.output_changes if one.changed_inputs == "words"), default=0.0)
        scale = max(change.own_change, 0.2 * by_words)  # pixels may move little
        return change.is_conclusive and not change.others_change <= change.tolerance * scale

    @property
    def unproven_reason(self) -> str:
        """Why the trial proves nothing: a change moved no output, or all outputs are alike."""
        return next(
            (f"other {one.changed_inputs} change nothing" for one in self.output_changes if not one.is_conclusive),
            "outputs are all alike",
        )

    def __str__(self) -> str:
        return "; ".join(map(str, (*self.output_changes, self.finding)))


def run_changes(pending: PendingForward, edits: TrialInputs) -> Generator[RequestedRun, None, list[OutputChange]]:
    """Run a batch unchanged, then with the changes in `edits`; yield each run, return how far changes moved outputs."""
    routing = Routing() if has_experts(pending.part) else None
    run = partial(_run, pending)
    as_is = yield from run(edits.unchanged, routing)
    tolerance, block = SUM_TOLERANCE, 1
    if routing is not None and not routing.has_choices:
        tolerance = _EXPERT_TOLERANCE if as_is.dtype == torch.float32 else BF16_TOLERANCE
        block = AVERAGED_TOKENS
    num_media = sum(pending.on_any_rank(len(edits.other_media) >= number) for number in (1, 2))
    media = [*edits.other_media, edits.unchanged, edits.unchanged][:num_media]  # so that all ranks run alike
    moved = []
    for kind, inputs in (("words", edits.other_words), *(("media", one) for one in media)):
        values = yield from run(inputs, routing and Routing(routing))
        if inputs is not edits.unchanged:
            moved.append(_output_change(kind, edits, _differences(edits, as_is, values, block), tolerance))
    # some kernels add in any order
    if pending.on_any_rank(any(one.others_change > SUM_TOLERANCE * one.own_change for one in moved)):
        again = yield from run(edits.unchanged, routing and Routing(routing))
        noise = 3 * max(_differences(edits, as_is, again, block))
        moved = [one.with_noise(noise) for one in moved]
    return moved


def _run(
    pending: PendingForward, inputs: Mapping[str, Any], routing: Routing | None = None
) -> Generator[RequestedRun, None, Tensor]:
    """Run a model once and return its outputs [B, S, values]; nothing is saved for a backward."""
    pending.before_run(0)
    with saved_tensors_hooks(_save_nothing, _save_nothing), use_routing(pending.part, routing):
        yield (step := RequestedRun(pending.call, inputs))
    values = token_values_of(step.output, tokens_of(inputs).shape[:2])
    step.output = None  # the caller holds the step until the next one
    if values is None:
        raise ValueError("its output has no values of each token")
    return sketch_of(values.detach())


def _save_nothing(_: Any) -> Any:
    return None


def _output_change(kind: str, edits: TrialInputs, moved: Sequence[float], tolerance: float) -> OutputChange:
    if kind == "media":  # of one member
        *_, second, first = sorted([0.0, *moved])
        return OutputChange(kind, first, second, tolerance)
    of_changed = [value for value, member in zip(moved, edits.members, strict=True) if member in edits.changed_members]
    rest = [value for value, member in zip(moved, edits.members, strict=True) if member not in edits.changed_members]
    return OutputChange(kind, max(of_changed), max(rest), tolerance)


def _differences(edits: TrialInputs, first: Tensor, other: Tensor, block: int) -> list[float]:
    return [max_difference(member.cut(first), member.cut(other), block) for member in edits.members]


class Subject(ABC):
    """A guarded model that is tried, and how members are found in its batches and compared."""

    #: the model of transformers
    model: Any
    #: names of inputs that are media
    media: frozenset[str]
    #: what messages call a batch
    name: str
    #: whether each batch is tried; else one of each kind
    tries_every_batch = False
    #: end of messages: how to train it without a trial
    bypass_hint = ""

    @abstractmethod
    def max_member_len(self, inputs: Mapping[str, Any]) -> int:
        """Return the number of tokens of the longest member."""

    def has_open_mask(self, _: Mapping[str, Any]) -> bool:
        """Say whether a mask in the batch lets members see each other; masks of packs are made here, and never do."""
        return False

    @abstractmethod
    def changed_inputs(self, inputs: Mapping[str, Any]) -> TrialInputs | None:
        """Return the batch with other words in every second member; None: no member can change while another stays."""

    @abstractmethod
    def probe(self, pending: PendingForward) -> Probe:
        """Return samples in a batch like the pending one, each to be compared with its run alone."""

    @abstractmethod
    def remedy(self, inputs: Mapping[str, Any]) -> str:
        """Return the advice for an error's message: what would keep members apart in place of these inputs."""


#: where outputs are those of the members alone
_LOSS_HINT = (
    "Outputs agree, the loss does not: output_router_logits adds one over the routers of the whole row, and a"
    " loss_function may predict more than the next token (model.config.output_router_logits=False). "
)
_GRAD_HINT = "Outputs and loss agree, gradients do not: a kernel's backward has no mask, or a hook mixes gradients. "
_MemberValues = list[Tensor] | None


def refusal_message(name: str, batch: str, trial: ModelTrial, place: str | None) -> str:
    """Return the message of a failed trial: what mixes members, and the part (`place`) where it first shows."""
    if trial.is_random:
        return (
            f"{name} draws random numbers in train() beside dropout, so that it can't be compared with its members"
            " alone; NEFTune's noise goes by the length of the row: leave it out (neftune_noise_alpha=None). "
        )
    shows = f"It first shows in {place}. " if place else ""
    is_quiet = trial.mixes and not trial.moved_others and trial.finding.outputs_agree
    beside = "" if not is_quiet else _GRAD_HINT if trial.finding.loss_agrees else _LOSS_HINT
    return f"{name} mixes the members of {batch}{'' if trial.mixes else ' on another rank'}: {trial}. {shows}{beside}"


def mixing_part(part: Module, call: Callable[..., Any], runs: Sequence[RunInputs], tolerance: float) -> str | None:
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
    part: Module, call: Callable[..., Any], inputs: Mapping[str, Any], members: Sequence[MemberSpan]
) -> dict[str, tuple[_MemberValues, _MemberValues]]:
    """Return the members' inputs and outputs of all parts by name, in the order in which the parts finish."""
    shape = tokens_of(inputs).shape[:2]
    entered: dict[str, _MemberValues] = {}
    seen: dict[str, tuple[_MemberValues, _MemberValues]] = {}

    def of_members(output: Any) -> _MemberValues:
        values = token_values_of(output, shape)
        return None if values is None else [sketch_of(member.cut(values.detach())[None])[0] for member in members]

    def hooks(name: str, one: Module) -> list[RemovableHandle]:
        def enter(_: Module, args: Any, keywords: dict[str, Any]) -> None:
            entered[name] = of_members([*args, *keywords.values()])

        def leave(_: Module, __: Any, output: Any) -> None:
            seen.setdefault(name, (entered.get(name), of_members(output)))

        return [one.register_forward_pre_hook(enter, with_kwargs=True), one.register_forward_hook(leave)]

    with hooked(part, hooks), torch.no_grad():
        call(**inputs)
    return seen
