"""Choose the executor that the settings name."""

from contextlib import AbstractContextManager

from energon_pack.errors import PackError
from energon_pack.run.by_name import entry_point
from energon_pack.run.executors import Executor
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.run.executors.settings import ExecutorConfig, ExecutorKind
from energon_pack.run.executors.workers import RAY_IS_QUIET, environment


def executor_of(settings: ExecutorConfig) -> AbstractContextManager[Executor]:
    """Return the executor of a run, as a context that ends with the run.

    An installed package's is made by the object of its entry point, from the settings.
    """
    if settings.kind == ExecutorKind.slurm:
        raise PackError("executor=slurm submits commands: it is for the command line alone")
    if settings.kind == ExecutorKind.local:
        return LocalExecutor(settings.num_workers)
    if settings.kind != ExecutorKind.ray:
        settings.check()
        made: AbstractContextManager[Executor] = entry_point("executors", "executor.kind", settings.kind)(settings)
        return made
    try:
        with environment(RAY_IS_QUIET):
            from energon_pack.run.executors.ray import RayExecutor
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise PackError("executor=ray needs Ray: pip install 'energon-pack[ray]'") from None
    return RayExecutor(settings)
