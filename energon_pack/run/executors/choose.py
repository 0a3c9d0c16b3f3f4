"""The executor that the settings name."""

from contextlib import AbstractContextManager

from energon_pack.run.executors import Executor
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.run.executors.settings import ExecutorConfig


def executor_of(settings: ExecutorConfig) -> AbstractContextManager[Executor]:
    """Who does the jobs of a run, while it lasts.

    Raises:
        PackError: there is no such cluster, or what it needs is not installed.
    """
    return LocalExecutor(settings.num_workers)
