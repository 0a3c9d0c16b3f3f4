"""The executor that the settings name."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_pack.errors import PackError
from energon_pack.run.executors import Executor
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.run.executors.settings import ExecutorConfig, ExecutorKind
from energon_pack.run.executors.shared.driver import SharedExecutor
from energon_pack.run.executors.shared.slurm import launch_of
from energon_pack.run.executors.shared.together import Together
from energon_pack.run.executors.workers import RAY_IS_QUIET, environment
from energon_pack.run.progress import Progress

Figures = dict[str, Any]


@dataclass(frozen=True)
class Meeting:
    """Where several machines meet that do one run."""

    folder: Path
    #: of the run, without those of its executor: machines with others do not join
    settings: str


def drive(
    settings: ExecutorConfig, meeting: Meeting, progress: Progress, work: Callable[[Executor], Figures]
) -> Figures:
    """Do a run with the executor that the settings name; what it came to.

    Raises:
        PackError: there is no such cluster, or what it needs is not installed; or as `work`.
    """
    if settings.kind is ExecutorKind.slurm:
        launch = launch_of(settings)
        together = Together(meeting.folder, meeting.settings, settings.num_workers, settings.lost_after, launch)
        return together.run(work, progress)
    with executor_of(settings) as executor:
        return work(executor)


def term_of(executor: Executor) -> int | None:
    """Which driver of its run this process is, where one may follow another; None: it is the only one."""
    return executor.term if isinstance(executor, SharedExecutor) else None


def note_of(executor: Executor) -> Path | None:
    """Where this process says what it is about to publish, for one that may follow it; None: there is none."""
    return executor.note if isinstance(executor, SharedExecutor) else None


def executor_of(settings: ExecutorConfig) -> AbstractContextManager[Executor]:
    """Who does the jobs of a run that one process drives, while it lasts.

    Raises:
        PackError: what it needs is not installed.
    """
    if settings.kind is not ExecutorKind.ray:
        return LocalExecutor(settings.num_workers)
    try:
        with environment(RAY_IS_QUIET):
            from energon_pack.run.executors.ray import RayExecutor
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise PackError("executor=ray needs Ray: pip install 'energon-pack[ray]'") from None
    return RayExecutor(settings)
