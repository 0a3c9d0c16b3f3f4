"""Try a guarded model with members of its own batches, for as long as it trains."""

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn import Module

from energon_pack.run.packages import version_of
from energon_pack.training.batch_members import MemberPlaces, MemberSizes, find_member_places
from energon_pack.training.comparison import RunOptions
from energon_pack.training.forward_inputs import MixingError, ids_or_embeddings, mask_kind_of, takes_rope_rows
from energon_pack.training.guarded_calls import is_call_compiled
from energon_pack.training.masks import PROVEN_TOWERS
from energon_pack.training.media_shares import media_shares, token_types
from energon_pack.training.members_alone import (
    AloneComparison,
    choose_weights_to_compare,
    compare_with_members_alone,
    removes_input_ids,
    restored_inputs,
)
from energon_pack.training.model_trial import (
    BF16_TOLERANCE,
    SUM_TOLERANCE,
    ModelTrial,
    PendingForward,
    RunInputs,
    TrialSteps,
    find_mixing_part,
    refusal_message,
    run_with_and_without_edits,
)
from energon_pack.training.model_wrappers import class_of
from energon_pack.training.recording import has_experts
from energon_pack.training.restored_model import (
    has_flat_parameters,
    is_sharded,
    rerun_in_fsdp_forward,
    restore_model_after_block,
    without_dropout,
    without_tf32,
)
from energon_pack.training.schedule import MOST, TrialScope, TrialSituation, kernel_sizes_of, situation_key
from energon_pack.training.trial_inputs import detached_inputs, without_loss
from energon_pack.training.tried_batch import ReplacedInputs, TriedBatch, refuse_misplaced_labels

if TYPE_CHECKING:
    from energon_pack.training.joining import JoinRule

_log = logging.getLogger(__name__)
#: trials of batches in different steps of training that show nothing, until the model is refused
_MAX_UNTRIED = 3
#: the transformers whose M-RoPE rows packs have; older ones give the frames of a video others
_TRANSFORMERS_OF_ROWS = (5, 23)


@dataclass(frozen=True)
class BatchHandling:
    """How batches of a guarded model are read, and how its errors end."""

    #: the kind of mask in a batch, from its inputs and members: batches with other kinds run other code
    mask_of: Callable[[Mapping[str, Any], Sequence[MemberPlaces] | None], Hashable]
    #: end of messages: what would keep members apart, from inputs
    remedy: Callable[[Mapping[str, Any]], str]
    #: rules by which media inputs were joined
    joins: "Mapping[str, JoinRule]"
    #: whether members are looked for in each batch; else in those that may be tried
    reads_each: bool = False
    #: end of messages: how to train it without a trial
    bypass_hint: str = ""


class ModelTrials:
    """Tries one guarded model with members of its batches, and keeps the results."""

    def __init__(self, model: Any, handling: BatchHandling):
        """Remember the model; nothing is run yet."""
        self._model, self._handling = model, handling
        self._is_sharded = self._is_warned_of_memory = False
        self._situations: dict[Hashable, TrialSituation] = {}
        self._number, self._untried_steps = 0, set[int]()
        self._said: set[str] = set()
        #: what messages call a batch; sizes of its members; whether each batch is tried: those that a user gives
        self.name, self.tries_all = "a batch", False
        self.sizes: MemberSizes | None = None
        #: the results, one for each trial
        self.trials: list[ModelTrial] = []

    @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]  # what is compiled is tried compiled
    def try_if_due(self, part: Module, inputs: Mapping[str, Any]) -> None:
        """Try the model before a forward if this is due: see `TrialSituation`.

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
        if not self._number:
            self._is_sharded = is_sharded(self._model)
        self._number += 1
        inputs = inputs if self._handling.reads_each else _without_cut_labels(inputs)
        members = self._read_members(inputs) if self._handling.reads_each else None
        key, kept = situation_key(self._model, part, inputs, self._handling.mask_of(inputs, members))
        situation = self._situations.setdefault(key, TrialSituation(kept))
        age = situation.count(ids_or_embeddings(inputs).shape[:2], is_run=not self.tries_all)
        if not self._on_any_rank(self.tries_all or situation.may_try):
            return None
        members = self._read_members(inputs) if members is None else members
        sizes = kernel_sizes_of(self._model, inputs, members) | {age}
        scope = TrialScope(MOST) if self.tries_all else situation.trial_scope(not sizes <= situation.sizes)
        has_others = len({one.row for one in members}) < len(members)
        most, follows, words = (self._most_on_ranks(one if has_others or self.tries_all else 0) for one in scope)
        scope = TrialScope(most, bool(follows), bool(words))
        if self.tries_all or (scope.num_members and self._on_any_rank(has_others)):
            return self._run_trial(part, inputs, members, situation, sizes, scope)
        return None

    def _read_members(self, inputs: Mapping[str, Any]) -> list[MemberPlaces]:
        members = find_member_places(inputs, self.sizes)
        refuse_misplaced_labels(inputs, members)
        return members

    def _run_trial(
        self,
        part: Module,
        inputs: Mapping[str, Any],
        members: Sequence[MemberPlaces],
        situation: TrialSituation,
        sizes: set[tuple[str, Any]],
        scope: TrialScope,
    ) -> TrialSteps:
        start, name, inputs = time.perf_counter(), class_of(self._model).__name__, detached_inputs(inputs)
        from energon_pack.training.logit_memory import warn_of_shortage  # late: only a trial needs it

        self._is_warned_of_memory = self._is_warned_of_memory or warn_of_shortage(name, part, inputs)
        types = token_types(inputs, self._model.config)
        tower = PROVEN_TOWERS.get(self._model)
        shares = media_shares(inputs, members, types, self.sizes, self._handling.joins, tower.names if tower else ())
        batch = TriedBatch(self._model.config, part, inputs, members, shares, types, Random(self._number))
        if shares.open_names:
            self._say_once(
                f"{name}: nothing tells whose rows of {', '.join(sorted(shares.open_names))} are, so members"
                " with media are not compared with themselves alone (members= of guard(…, batches=…) tells)"
            )
        edits = batch.replace_some_inputs() if scope.replaces_words else None
        place, compared = None, None
        try:
            with restore_model_after_block(part) as begin, rerun_in_fsdp_forward(part) as call, restored_inputs(inputs):
                pending = PendingForward(part, call, inputs, begin, self._on_any_rank, is_call_compiled(self._model))
                change = None
                if self._on_any_rank(edits is not None):
                    change = yield from run_with_and_without_edits(pending, edits)
                if not self._on_any_rank(not batch.comparable_members):
                    compared = self._compare(pending, batch, scope)
                is_random = compared is not None and compared.is_random
                seconds = round(time.perf_counter() - start, 3)
                trial = ModelTrial(compared.finding if compared else None, change, is_random, seconds)
                if mixes := self._on_any_rank(trial.mixes):
                    place = self._mixing_part(pending, edits, trial, compared)
        except (MixingError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # foreign code, with inputs that it may not be made for
            why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise MixingError(
                f"{name} can't be tried with {self.name}, so nothing shows that it keeps members apart: {why}"
                f"{self._handling.bypass_hint}"
            ) from error
        self.trials.append(trial)
        if mixes:
            why = refusal_message(name, self.name, trial, place)
            raise MixingError(f"{why}{self._handling.remedy(inputs)}{self._handling.bypass_hint}")
        if self._on_any_rank(not trial.is_conclusive):
            self._count_untried(name, trial)
        elif not self._on_any_rank(trial.is_empty):
            self._untried_steps.clear()
            situation.record(sizes)
            _log.info("%s keeps the members of %s apart: %s (%.2g s)", name, self.name, trial, trial.seconds)
        yield None

    def _compare(self, pending: PendingForward, batch: TriedBatch, scope: TrialScope) -> AloneComparison:
        """Compare members of a batch with their runs alone; on no rank with gradients if on one nothing is trained."""
        part, inputs = pending.part, pending.inputs
        follows, most = torch.is_grad_enabled() and scope.compares_gradients, scope.num_members
        follows = follows and not has_flat_parameters(self._model)  # FSDP1 would take a backward for the step's
        keeps_positions = inputs.get("input_ids") is None or (
            takes_rope_rows(self._model) and (self._has_rows_of_packs() or removes_input_ids(pending))
        )
        probe = batch.probe(most, keeps_positions, follows)
        if follows and self._on_any_rank(not any(one.in_loss for one in probe.placed)):
            if self.tries_all:
                raise MixingError("no label of this batch trains a member: nothing shows what its loss is of")
            follows, probe = False, batch.probe(most, keeps_positions, False)
        options = RunOptions(
            part,
            pending.call,
            (SUM_TOLERANCE, BF16_TOLERANCE),
            compares_gradients=follows,
            weights=choose_weights_to_compare(part, batch.random) if follows else (),
            uses_model_loss=any(inputs.get(name) is not None for name in ("labels", "shift_labels")),
            is_loss_divided=inputs.get("num_items_in_batch") is not None,
            repeats_routing=has_experts(part),
            most_on_ranks=self._most_on_ranks,
            offset=batch.random.random(),
        )
        return compare_with_members_alone(pending, probe, options)

    def _mixing_part(
        self, pending: PendingForward, edits: ReplacedInputs | None, trial: ModelTrial, compared: AloneComparison | None
    ) -> str | None:
        """Return the name of the part that mixes members; None: outputs agree, so only loss or gradients show it."""
        is_moved = self._on_any_rank(trial.moved_other_members)
        if not self._on_any_rank(is_moved or not trial.outputs_agree):
            return None
        runs: Sequence[RunInputs] = compared.runs if compared else ()
        if edits and (is_moved or not runs):
            unchanged = without_loss(pending.inputs)
            runs = (unchanged, edits.same), (unchanged | edits.inputs, edits.same)
        pending.before_run(0)
        with without_dropout(pending.part), without_tf32():
            return find_mixing_part(pending.part, pending.call, runs, SUM_TOLERANCE)

    def _has_rows_of_packs(self) -> bool:
        """Say whether members alone take the packs' M-RoPE rows, since this transformers makes others; say it once."""
        version = version_of("transformers") or ""
        if self._handling.reads_each or tuple(map(int, version.split(".")[:2])) >= _TRANSFORMERS_OF_ROWS:
            return False
        self._say_once(
            f"transformers {version} gives the frames of some videos other positions than packs have, which are those"
            f" of {'.'.join(map(str, _TRANSFORMERS_OF_ROWS))}: members are tried alone with the positions of packs"
        )
        return True

    def _count_untried(self, name: str, trial: ModelTrial) -> None:
        """Say once that a trial shows nothing; refuse the model where several in different steps show nothing."""
        weight = next((one for one in self._model.parameters() if one.requires_grad), None)
        self._untried_steps.add(0 if weight is None else weight._version)
        why = f"{name} is not shown to keep members apart: {trial.unproven_reason} in {self.name}"
        if len(self._untried_steps) >= _MAX_UNTRIED:
            raise MixingError(f"{why}, nor in those of {_MAX_UNTRIED - 1} steps before it{self._handling.bypass_hint}")
        self._say_once(why)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            _log.warning("%s", text)

    def _on_any_rank(self, flag: bool) -> bool:
        """Say whether a flag is true on any of the ranks that run the model together."""
        return bool(self._most_on_ranks(int(flag)))

    def _most_on_ranks(self, number: int) -> int:
        """Return the largest number of all ranks that run the model together."""
        if not self._is_sharded:
            return number
        every = torch.tensor(number, dtype=torch.int32, device=next(self._model.parameters()).device)
        dist.all_reduce(every, dist.ReduceOp.MAX)
        return int(every)


def _without_cut_labels(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the inputs without labels that cover only some tokens: ms-swift keeps those that train."""
    labels = inputs.get("labels")
    if (
        labels is None
        or inputs.get("logits_to_keep") is None
        or labels.shape[:2] == ids_or_embeddings(inputs).shape[:2]
    ):
        return inputs
    return {name: value for name, value in inputs.items() if name != "labels"}


def pack_batch_handling(joins: "Mapping[str, JoinRule]") -> BatchHandling:
    """Return how batches of packs are handled: their masks are made here, and their members lie where positions say."""
    advice = (
        "What was put into this model, hooked to it or patched has to keep members apart, as its class does: leave"
        " that out, or train on unpacked samples"
    )
    hint = " (guard(…, first_batch=False) trains it all the same)"
    return BatchHandling(lambda inputs, _: mask_kind_of(inputs), lambda _: advice, joins, bypass_hint=hint)
