"""Try a model with the first training batch of each kind, and again whenever its code changes."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module

from energon_pack.training.comparison import RunOptions, compare
from energon_pack.training.expert_routing import has_experts
from energon_pack.training.finding import Finding, max_difference, token_variation
from energon_pack.training.forward_inputs import MixingError
from energon_pack.training.forward_kind import ForwardKind, TriedKind, forward_kind_of
from energon_pack.training.model_trial import (
    BF16_TOLERANCE,
    SUM_TOLERANCE,
    ModelTrial,
    PendingForward,
    Subject,
    TrialSteps,
    mixing_part,
    refusal_message,
    run_changes,
)
from energon_pack.training.model_wrappers import class_of
from energon_pack.training.recording import run_and_record
from energon_pack.training.restored_model import (
    forward_suspended,
    full_precision,
    is_sharded,
    restored,
    without_dropout,
)
from energon_pack.training.trial_inputs import MemberSpan, Probe, RunInputs, TrialInputs, flag_inputs, without_loss

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SampleComparison:
    """The result of comparing samples in a batch with their runs alone."""

    finding: Finding
    #: whether random numbers other than dropout's change outputs
    is_random: bool
    #: inputs of the batch and of its last sample alone, each with the sample's place in it
    runs: tuple[RunInputs, RunInputs]


def compare_with_alone(pending: PendingForward, probe: Probe) -> SampleComparison:
    """Compare the outputs, loss and gradients of each sample of a probe with its run alone, without dropout."""
    part, way, switches, last = pending.part, _run_options(pending), flag_inputs(pending.inputs), probe.placed[-1]
    plain = probe.inputs_alone
    probe = replace(probe, inputs_alone=lambda sample: switches | plain(sample))
    alone = without_loss(probe.inputs_alone(last.sample))
    with without_dropout(part):
        is_random = part.training and _outputs_are_random(pending, alone)
        finding = replace(compare(way, probe), in_training=part.training)
    span = MemberSpan(last.row, int(last.places[0]), int(last.places[0]) + len(last.places))
    return SampleComparison(
        finding, is_random, ((without_loss(probe.inputs), [span]), (alone, [MemberSpan(0, 0, len(last.places))]))
    )


def _run_options(pending: PendingForward) -> RunOptions:
    part, inputs = pending.part, pending.inputs
    return RunOptions(
        part,
        pending.call,
        (SUM_TOLERANCE, BF16_TOLERANCE),
        compares_gradients=torch.is_grad_enabled(),
        weights=_compared_weights(part),
        uses_model_loss=any(inputs.get(name) is not None for name in ("labels", "shift_labels")),
        is_loss_divided=inputs.get("num_items_in_batch") is not None,
        repeats_routing=has_experts(part),
        before_run=partial(pending.before_run, 0),
    )


def _compared_weights(part: Module) -> list[Tensor]:
    """Return the weights whose gradients are compared; none if weights are sharded or have a gradient already."""
    every: list[Tensor] = [one for one in part.parameters() if one.requires_grad]
    return every if not is_sharded(part) and all(one.grad is None for one in every) else []


def _outputs_are_random(pending: PendingForward, alone: Mapping[str, Any]) -> bool:
    """Say whether other seeds change the outputs of a sample alone more than a second run with the same seed does."""

    def run(seed: int) -> Tensor:
        pending.before_run(seed)
        with torch.no_grad():
            return run_and_record(pending.part, alone, pending.call).sketches[0][0]

    first = run(0)
    same, *other_seeds = (max_difference(first, run(seed), 1) for seed in (0, 1, 2, 3))
    return max(other_seeds) > 3 * same + 1e-6 * token_variation(first)


class FirstBatchTrials:
    """Tries one guarded model with the first batch of each kind, and keeps the results."""

    def __init__(self, subject: Subject):
        """Remember the model; nothing is run yet."""
        self._subject, self._model = subject, subject.model
        self._is_sharded = self._is_warned = self._is_warned_of_memory = False
        self._tried_kinds: list[TriedKind] = []
        #: the results, one for each trial
        self.trials: list[ModelTrial] = []

    @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]  # what is compiled is tried compiled
    def check(self, part: Module, inputs: Mapping[str, Any]) -> None:
        """Try the model before a forward if its batch is of a new kind, or the model's code is new.

        If parameters are sharded, all ranks try it at the same forward, or none does. MixingError: it mixes members.
        """
        steps = self._trial_steps(part, inputs)
        if steps is None:
            return
        send, throw = torch.compiler.disable(steps.send), torch.compiler.disable(steps.throw)
        try:
            step = send(None)
            while step is not None:
                try:
                    step.output = step.call(**step.inputs)
                except Exception as error:  # foreign code, with inputs that it may not be made for
                    throw(error)
                step = send(None)
        finally:
            steps.close()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _trial_steps(self, part: Module, inputs: Mapping[str, Any]) -> TrialSteps | None:
        if not self._tried_kinds:
            self._is_sharded = is_sharded(self._model)
        subject = self._subject
        kind = forward_kind_of(self._model, part, inputs, subject.max_member_len(inputs), subject.has_open_mask(inputs))
        known = next((one for one in self._tried_kinds if one.kind.covers(kind)), None)
        if known is not None:
            known.batches_left -= 1
        lacks_others = known is not None and not known.is_packed and self._subject.changed_inputs(inputs) is not None
        is_waiting = known is not None and known.batches_left >= 0 and not self._subject.tries_every_batch
        is_tried, is_better = self._on_all_ranks(is_waiting, lacks_others)
        return None if is_tried and not is_better else self._run_trial(part, inputs, kind)

    def _run_trial(self, part: Module, inputs: Mapping[str, Any], kind: ForwardKind) -> TrialSteps:
        start, name = time.perf_counter(), class_of(self._model).__name__
        copies = {
            k: v.clone() if isinstance(v, Tensor) and k not in self._subject.media else v for k, v in inputs.items()
        }
        from energon_pack.training.logit_memory import warn_of_shortage  # late: only a trial needs it

        self._is_warned_of_memory = self._is_warned_of_memory or warn_of_shortage(name, part, inputs)
        edits = self._subject.changed_inputs(copies)
        edits = None if self._on_any_rank(edits is None) else edits
        place = None
        try:
            with restored(part) as begin, full_precision(), forward_suspended(part) as call:
                pending = PendingForward(part, call, copies, begin, self._on_any_rank)
                moved = [] if edits is None else (yield from run_changes(pending, edits))
                compared = compare_with_alone(pending, self._subject.probe(pending))
                trial = ModelTrial(compared.finding, moved, compared.is_random, round(time.perf_counter() - start, 3))
                if mixes := self._on_any_rank(trial.mixes):
                    place = self._mixing_part(pending, edits, trial, compared)
        except (MixingError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # foreign code, with inputs that it may not be made for
            why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise MixingError(
                f"{name} can't be tried with a training batch, so nothing shows that it keeps members apart: {why}"
                f"{self._subject.bypass_hint}"
            ) from error
        self.trials.append(trial)
        if mixes:
            why = refusal_message(name, self._subject.name, trial, place)
            raise MixingError(f"{why}{self._subject.remedy(inputs)}{self._subject.bypass_hint}")
        self._remember(kind, edits is not None, name)
        yield None

    def _mixing_part(
        self, pending: PendingForward, edits: TrialInputs | None, trial: ModelTrial, compared: SampleComparison
    ) -> str | None:
        """Return the name of the part that mixes members; None: outputs agree, so only loss or gradients show it."""
        is_moved = self._on_any_rank(trial.moved_others)
        if not self._on_any_rank(is_moved or not trial.finding.outputs_agree):
            return None
        pending.before_run(0)
        with without_dropout(pending.part):
            runs = edits.runs if edits and is_moved else compared.runs
            return mixing_part(pending.part, pending.call, runs, SUM_TOLERANCE)

    def _remember(self, kind: ForwardKind, has_others: bool, name: str) -> None:
        """Record a trial that passed; log it, or warn once that it proves nothing."""
        trial, batch = self.trials[-1], self._subject.name
        if (known := next((one for one in self._tried_kinds if one.kind.runs_as(kind)), None)) is not None:
            known.record_trial(kind, has_others)
        else:
            self._tried_kinds = [one for one in self._tried_kinds if not kind.covers(one.kind)]
            self._tried_kinds.append(TriedKind(kind, has_others))
        if trial.is_conclusive:
            _log.info("%s keeps the members of %s apart: %s (%.2g s)", name, batch, trial, trial.seconds)
        elif not self._is_warned:
            self._is_warned = True
            _log.warning("%s is not shown to keep members apart: %s in %s", name, trial.unproven_reason, batch)

    def _on_any_rank(self, flag: bool) -> bool:
        """Say whether a flag is true on any of the ranks that run the model together."""
        return not self._on_all_ranks(not flag)[0]

    def _on_all_ranks(self, *flags: bool) -> Sequence[bool]:
        """Return for each flag whether it is true on all of the ranks that run the model together."""
        if not self._is_sharded:
            return flags
        every = torch.tensor(flags, dtype=torch.int32, device=next(self._model.parameters()).device)
        dist.all_reduce(every, dist.ReduceOp.MIN)
        return every.bool().tolist()
