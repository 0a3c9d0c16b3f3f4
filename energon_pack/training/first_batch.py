"""Try a model with the first training batch that has two members in a row, and again whenever its code changes."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn import Module

from energon_pack.training.code_in_use import Code, CodeInUse, is_same
from energon_pack.training.inputs import MixingError
from energon_pack.training.trial import Trial, first_place, run_trial
from energon_pack.training.trial_inputs import TrialInputs, trial_inputs
from energon_pack.training.wrapped import class_of

_log = logging.getLogger(__name__)


class FirstBatch:
    """The trials of one guarded model."""

    def __init__(self, model: Any, media: frozenset[str]):
        """Remember the model and its media inputs; nothing is run yet.

        Args:
            model: of transformers.
            media: names of inputs that are media.
        """
        self._model, self._media = model, media
        self._code = CodeInUse(model)
        self._is_sharded = False
        #: the code with which it was tried, and whether it was in train()
        self._tried: list[tuple[Code, bool]] = []
        self._is_warned_of_pixels = False
        #: the results
        self.trials: list[Trial] = []

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def check(self, part: Module, inputs: Mapping[str, Any]) -> None:
        """Call this before each forward: it tries the model if its code is new and a row of the batch has two members.

        If parameters are sharded, all ranks try it at the same forward, or none does.

        Args:
            part: the model, or the part of it that was called.
            inputs: the call's inputs, by name.

        Raises:
            MixingError: members see each other, on this rank or another.
        """
        if not self._tried:
            self._is_sharded = _is_sharded(self._model)
        code = self._code.now(with_hooks=not self._is_sharded)  # hooks may differ from rank to rank
        modes = [trained for other, trained in self._tried if is_same(code, other)]
        if any(modes) or (modes and not part.training):
            return
        if self._is_sharded and self._tried and not modes:
            raise MixingError(
                f"the code of {class_of(self._model).__name__} was replaced after it was tried with a batch: guard it"
                " again, on all ranks"
            )
        asked = trial_inputs(inputs, self._model.config, self._media)
        if self._try(part, asked):
            self._tried.append((code, part.training))

    def _try(self, part: Module, asked: TrialInputs | None) -> bool:
        """Try the model; return whether the batch allowed it. Raises MixingError if members see each other."""
        fits, has_no_pixels, has_text = self._agreed(
            asked is not None,
            asked is None or asked.other_pixels is None,
            asked is not None and asked.alone is not None,
        )
        if not fits or asked is None:
            return False
        name = class_of(self._model).__name__
        try:
            with _gathered(part):
                trial = run_trial(part, asked, with_pixels=not has_no_pixels, with_alone=has_text)
        except MixingError:
            raise
        except Exception as error:  # foreign code, with inputs that it may not be made for
            if self._is_sharded:  # the other ranks are still running the same forward
                raise
            said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            _log.warning("%s can't be tried with its first batch, and is trained all the same: %s", name, said)
            return True
        self.trials.append(trial)
        if not self._agreed(not trial.mixes)[0]:
            with _gathered(part):
                place = first_place(part, asked, trial.tolerance)
            shows = f"It first shows in {place}. " if place else ""
            raise MixingError(
                f"{name} mixes the members of its first batch{'' if trial.mixes else ' on another rank'}: {trial}."
                f" {shows}What was put into this model, hooked to it or patched has to keep members apart, as its class"
                " does: leave that out, or train on unpacked samples (guard(…, first_batch=False) trains it all the"
                " same)"
            )
        if not trial.is_shown:
            _log.warning("%s is not shown to keep members apart: a change shows nowhere in its first batch", name)
        else:
            if trial.by_pixels and not trial.shows_pixels and not self._is_warned_of_pixels:
                self._is_warned_of_pixels = True
                _log.warning(
                    "%s is not shown to keep images apart: other pixels change nothing in its first batch", name
                )
            _log.info("%s keeps the members of its first batch apart: %s (%.2g s)", name, trial, trial.seconds)
        return True

    def _agreed(self, *flags: bool) -> Sequence[bool]:
        """Return each flag ANDed over all ranks that run the model together."""
        if not self._is_sharded:
            return flags
        every = torch.tensor(flags, dtype=torch.int32, device=next(self._model.parameters()).device)
        dist.all_reduce(every, dist.ReduceOp.MIN)
        return every.bool().tolist()


@contextmanager
def _gathered(part: Module) -> Iterator[None]:
    """Keep FSDP2's gathered parameters: it gathered them for the pending call, and trial runs must not free them."""
    kinds = part._forward_pre_hooks, part._forward_hooks
    before = [dict(hooks) for hooks in kinds]
    for hooks in kinds:
        for key, hook in list(hooks.items()):
            if type(getattr(hook, "__self__", None)).__module__.startswith("torch.distributed.fsdp"):
                del hooks[key]
    try:
        yield
    finally:
        for hooks, old in zip(kinds, before, strict=True):
            every = old | dict(hooks)
            hooks.clear()
            hooks.update(every)


def _is_sharded(model: Module) -> bool:
    """Say whether a forward needs the other ranks: FSDP, tensor parallelism, DeepSpeed's ZeRO 3."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return False
    if any(isinstance(part, (FSDPModule, FullyShardedDataParallel)) for part in model.modules()):
        return True
    return any(isinstance(one, DTensor) or hasattr(one, "ds_id") for one in model.parameters())
