"""Try processors where a loader starts its workers, so that each worker begins with what this process found.

Nothing tells beforehand that a loader will start workers: the start itself is seen, a fork or a pickled processor.
"""

import os
import sys
import weakref
from multiprocessing.context import get_spawning_popen
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Protocol

from torch.utils.data import get_worker_info


class Tried(Protocol):
    """What can be tried without a sample."""

    def try_all(self) -> None:
        """Try it now; any error."""


_waiting: "weakref.WeakSet[Tried]" = weakref.WeakSet()


def try_before_workers(one: Tried) -> None:
    """Let this be tried when a loader starts its first worker."""
    _waiting.add(one)


def try_where_spawning(one: Tried) -> None:
    """Try what waits for it, if it is being pickled for a process that is spawned."""
    if one in _waiting and get_spawning_popen() is not None:
        _try([one], forks=False)


def _try_where_forking() -> None:
    if _waiting and get_worker_info() is None and _forks_worker():
        _try([*_waiting], forks=True)


os.register_at_fork(before=_try_where_forking)


def _forks_worker() -> bool:
    """Say whether a loader of torch or torchdata starts a worker in this moment; other forks read no samples."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not BaseProcess.start.__code__:
        frame = frame.f_back
    return frame is not None and getattr(frame.f_locals["self"]._target, "__name__", "") == "_worker_loop"


def _try(several: list[Tried], forks: bool) -> None:
    from energon_pack.training.early_trial import try_unnoticed

    _waiting.difference_update(several)
    try_unnoticed([one.try_all for one in several], forks)
