"""Try processors where a loader forks its workers, so that each worker begins with what this process loaded and found.

Nothing tells beforehand that a loader will fork workers: the fork itself is seen. A spawned worker spends its start on
imports, which it can't inherit: it gets what was tried already.
"""

import os
import sys
import weakref
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Protocol

from torch.utils.data import get_worker_info


class CanBeTried(Protocol):
    """What can be tried without a sample."""

    def try_all(self) -> None:
        """Try it now; any error."""


_waiting: "weakref.WeakSet[CanBeTried]" = weakref.WeakSet()


def schedule_trial_at_fork(trials: CanBeTried) -> None:
    """Let this be tried when a loader forks its first worker."""
    _waiting.add(trials)


def keep_freed_memory_in_worker() -> None:
    """Let a worker of a loader keep the memory that it frees for later packs; in another process, do nothing."""
    if get_worker_info() is not None:
        from energon_pack.training.kept_memory import keep_freed_memory  # only a worker needs it

        keep_freed_memory()


def _try_where_forking() -> None:
    if _waiting and get_worker_info() is None and _forks_worker():
        from energon_pack.training.early_trial import run_trials_ignoring_errors

        trials = [one.try_all for one in _waiting]
        _waiting.clear()
        run_trials_ignoring_errors(trials)


os.register_at_fork(before=_try_where_forking)


def _forks_worker() -> bool:
    """Say whether a loader of torch or torchdata starts a worker at this moment; other forks read no samples."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not BaseProcess.start.__code__:
        frame = frame.f_back
    return frame is not None and getattr(frame.f_locals["self"]._target, "__name__", "") == "_worker_loop"
