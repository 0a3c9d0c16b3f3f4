"""The executor that the settings name."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_pack.run.executors import Executor
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.run.executors.settings import ExecutorConfig, ExecutorKind
from energon_pack.run.executors.shared.slurm import launch_of
from energon_pack.run.executors.shared.together import Together
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


def executor_of(settings: ExecutorConfig) -> AbstractContextManager[Executor]:
    """Who does the jobs of a run that one process drives, while it lasts."""
    return LocalExecutor(settings.num_workers)
