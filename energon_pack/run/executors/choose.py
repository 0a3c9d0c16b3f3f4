"""The executor that the settings name."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from energon_pack.errors import PackError
from energon_pack.run.executors import Executor
from energon_pack.run.executors.admission import Folder
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.run.executors.settings import ExecutorConfig, ExecutorKind


def executor_of(settings: ExecutorConfig, folders: Sequence[Folder] = ()) -> AbstractContextManager[Executor]:
    """Who does the jobs of a run, while it lasts.

    Args:
        folders: what every machine that works for it has to see.

    Raises:
        PackError: there is no such cluster, or what it needs is not installed.
    """
    if settings.kind is ExecutorKind.ray:
        return _on_ray(settings, folders)
    return LocalExecutor(settings.num_workers)


def _on_ray(settings: ExecutorConfig, folders: Sequence[Folder]) -> AbstractContextManager[Executor]:
    try:
        from energon_pack.run.executors.ray import RayExecutor
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise PackError("executor=ray needs Ray: pip install 'energon-pack[ray]'") from None
    return RayExecutor(settings, folders)
