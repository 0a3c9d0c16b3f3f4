"""Try a model with the first training batch of each kind, and again whenever its code changes."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module

from energon_pack.training.as_it_was import as_it_was, full_precision, silent
from energon_pack.training.code_in_use import CodeInUse
from energon_pack.training.inputs import MixingError
from energon_pack.training.kind import Kind, Tried, kind_of
from energon_pack.training.made_trial import MadeTrial, Subject, try_made
from energon_pack.training.place import first_place
from energon_pack.training.sharding import ended, is_sharded
from energon_pack.training.trial import SUMS, Pending, Steps, Trial, changes
from energon_pack.training.trial_inputs import TrialInputs, trial_inputs
from energon_pack.training.wrapped import class_of

_log = logging.getLogger(__name__)
#: batches of a kind until its second trial; until the third so many times as many
_WAITS = 16


class FirstBatch:
    """The trials of one guarded model."""

    def __init__(self, subject: Subject):
        """Remember the model; nothing is run yet."""
        self._subject, self._model = subject, subject.model
        self._code = CodeInUse(subject.model)
        self._is_sharded = self._is_warned = False
        self._tried: list[Tried] = []
        #: the results
        self.trials: list[Trial] = []

    @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]  # what is compiled is tried compiled
    def check(self, part: Module, inputs: Mapping[str, Any]) -> None:
        """Call this before each forward: it tries the model with a batch of a new kind, and if its code is new.

        If parameters are sharded, all ranks try it at the same forward, or none does.

        Args:
            part: the model, or the part of it that was called.
            inputs: the call's inputs, by name.

        Raises:
            MixingError: members see each other, on this rank or another, or the model can't be tried.
        """
        steps = self._steps(part, inputs)
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
    def _steps(self, part: Module, inputs: Mapping[str, Any]) -> Steps | None:
        if not self._tried:
            self._is_sharded = is_sharded(self._model)
        kind = kind_of(part, inputs, self._code.now())
        known = next((one for one in self._tried if one.kind.covers(kind)), None)
        if known is not None:
            known.left -= 1
        lacks_others = known is not None and not known.has_others and self._asked(inputs) is not None
        is_tried, is_better = self._agreed(known is not None and known.left >= 0, lacks_others)
        return None if is_tried and not is_better else self._try(part, inputs, kind)

    def _asked(self, inputs: Mapping[str, Any]) -> TrialInputs | None:
        return trial_inputs(inputs, self._model.config, self._subject.media)

    def _try(self, part: Module, inputs: Mapping[str, Any], kind: Kind) -> Steps:
        """Try the model. Raises MixingError if members see each other, or if it can't be tried."""
        start, name = time.perf_counter(), class_of(self._model).__name__
        own = {k: v.clone() if isinstance(v, Tensor) and k not in self._subject.media else v for k, v in inputs.items()}
        asked = self._asked(own)
        asked = None if self._is_any(asked is None) else asked
        place = None
        try:
            with as_it_was(part) as begin, full_precision(), ended(part) as call:
                pending = Pending(part, call, own, begin, self._is_any)
                moved = [] if asked is None else (yield from changes(pending, asked))
                beside = try_made(self._subject, pending)
                trial = Trial(beside.finding, moved, beside.is_random, round(time.perf_counter() - start, 3))
                if mixes := self._is_any(trial.mixes):
                    place = self._place(pending, asked, trial, beside)
        except (MixingError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # foreign code, with inputs that it may not be made for
            said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise MixingError(
                f"{name} can't be tried with a training batch, so nothing shows that it keeps members apart: {said}"
                " (guard(…, first_batch=False) trains it all the same)"
            ) from error
        self.trials.append(trial)
        if mixes:
            raise MixingError(_refusal(name, trial, place))
        self._remember(kind, asked is not None, name)
        yield None

    def _place(self, pending: Pending, asked: TrialInputs | None, trial: Trial, beside: MadeTrial) -> str | None:
        """Name the part that mixes members, if outputs show it; a backward has no places."""
        is_moved = self._is_any(trial.moved_others)
        if not self._is_any(is_moved or not trial.alone.has_outputs):
            return None
        pending.begin(0)
        with silent(pending.part):
            return first_place(pending.part, pending.call, asked.runs if asked and is_moved else beside.runs, SUMS)

    def _remember(self, kind: Kind, has_others: bool, name: str) -> None:
        """Note a trial that passed; what shows nothing is said once, and tried again later."""
        trial = self.trials[-1]
        if (known := next((one for one in self._tried if one.kind.runs_as(kind)), None)) is not None:
            known.again(kind, has_others, _WAITS)
        else:
            self._tried = [one for one in self._tried if not kind.covers(one.kind)]
            self._tried.append(Tried(kind, has_others, _WAITS, _WAITS))
        if trial.is_shown:
            _log.info("%s keeps the members of its first batch apart: %s (%.2g s)", name, trial, trial.seconds)
        elif not self._is_warned:
            self._is_warned = True
            _log.warning("%s is not shown to keep members apart: %s in its first batch", name, trial.unshown)

    def _is_any(self, flag: bool) -> bool:
        """Say whether it is so on any of the ranks that run the model together."""
        return not self._agreed(not flag)[0]

    def _agreed(self, *flags: bool) -> Sequence[bool]:
        """Return each flag, true if it is on all of the ranks that run the model together."""
        if not self._is_sharded:
            return flags
        every = torch.tensor(flags, dtype=torch.int32, device=next(self._model.parameters()).device)
        dist.all_reduce(every, dist.ReduceOp.MIN)
        return every.bool().tolist()


#: where outputs are those of the members alone
_LOSS = (
    "Outputs agree, the loss does not: output_router_logits adds one over the routers of the whole row, and a"
    " loss_function may predict more than the next token (model.config.output_router_logits=False). "
)
_BACKWARD = "Outputs and loss agree, gradients do not: a kernel's backward has no mask, or a hook mixes gradients. "


def _refusal(name: str, trial: Trial, place: str | None) -> str:
    """Say what mixes, where it first shows, and what to do."""
    if trial.is_random:
        return (
            f"{name} draws random numbers in train() beside dropout, so that it can't be compared with its members"
            " alone; NEFTune's noise goes by the length of the row: leave it out (neftune_noise_alpha=None;"
            " guard(…, first_batch=False) trains it all the same)"
        )
    shows = f"It first shows in {place}. " if place else ""
    is_quiet = trial.mixes and not trial.moved_others and trial.alone.has_outputs
    beside = "" if not is_quiet else _BACKWARD if trial.alone.has_loss else _LOSS
    return (
        f"{name} mixes the members of its first batch{'' if trial.mixes else ' on another rank'}: {trial}. {shows}"
        f"{beside}"
        "What was put into this model, hooked to it or patched has to keep members apart, as its class does: leave that"
        " out, or train on unpacked samples (guard(…, first_batch=False) trains it all the same)"
    )
