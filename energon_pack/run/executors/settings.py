"""The settings of the executor, which does a run's jobs: the config's node `executor`."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from energon_pack.errors import PackError
from energon_pack.run.by_name import entry_point


class ExecutorKind(str, Enum):
    """Where jobs are done, unless an installed package adds another place."""

    local = "local"
    slurm = "slurm"
    ray = "ray"


#: settings that only some kinds of executors have
_OWN: dict[str, tuple[str, ...]] = {
    ExecutorKind.slurm.value: (
        *("num_tasks", "at_once", "sbatch", "sbatch_lengths", "sbatch_plan", "sbatch_write", "sbatch_publish"),
        *("wait", "show", "give_up_after"),
    ),
    ExecutorKind.ray.value: ("address", "num_cpus", "memory", "retries", "give_up_after"),
}


@dataclass
class ExecutorConfig:
    """Settings for processes on this machine or on others."""

    #: local: processes of this machine · slurm: a chain of Slurm's jobs · ray: tasks of a Ray cluster · or what an
    #: installed package adds
    kind: str = ExecutorKind.local.value
    #: processes of each machine; None: one for each core
    num_workers: int | None = None
    #: slurm: tasks of each array
    num_tasks: int = 16
    #: slurm: tasks of an array that run at once; None: as many as Slurm starts
    at_once: int | None = None
    #: slurm: options of `sbatch` for every job; None: none
    sbatch: str | None = None
    #: slurm: further options for the tasks that measure
    sbatch_lengths: str | None = None
    #: slurm: further options for the job that plans, in one process
    sbatch_plan: str | None = None
    #: slurm: further options for the tasks that write
    sbatch_write: str | None = None
    #: slurm: further options for the job that publishes
    sbatch_publish: str | None = None
    #: slurm: whether the command waits until the submitted jobs end
    wait: bool = True
    #: slurm: print the scripts, and submit nothing
    show: bool = False
    #: ray: address of the cluster: auto, HOST:PORT or ray://HOST:PORT; None: a Ray of this machine, for this run only
    address: str | None = None
    #: ray: CPUs of a task
    num_cpus: float = 1.0
    #: ray: bytes of memory that a task reserves; None: none
    memory: float | None = None
    #: ray: how often Ray does a job again after its worker or node was lost
    retries: int = 3
    #: seconds after which the command ends: ray: without a job that ends; slurm: without an answer of Slurm
    give_up_after: float = 3600.0

    def check(self) -> None:
        """Raise PackError for settings that allow no work or belong to another executor, and for an unknown kind."""
        if self.kind not in list(ExecutorKind) and entry_point("executors", "executor.kind", self.kind) is None:
            kinds = ", ".join(kind.value for kind in ExecutorKind)
            raise PackError(f"executor.kind={self.kind}: there are {kinds}, and what installed packages add")
        for kind, names in _OWN.items():
            if kind != self.kind:
                foreign = [name for name in names if name not in _OWN.get(self.kind, ())]
                self._refuse_given(foreign, f"is for executor={kind}")
        for name in ("num_cpus", "memory", "give_up_after"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise PackError(f"executor.{name}={value:g}: must be more than 0")

    def of_a_task(self) -> dict[str, Any]:
        """Return the settings for a Slurm task, which uses the processes of its own machine.

        Settings of `slurm` return to their defaults, because a task would refuse them.
        """
        default = ExecutorConfig()
        defaults = {name: getattr(default, name) for name in ("kind", *_OWN[ExecutorKind.slurm.value])}
        set_back = {name: value for name, value in defaults.items() if value != getattr(self, name)}
        return set_back if self.num_workers is None else {**set_back, "num_workers": self.num_workers}

    def _refuse_given(self, names: Iterable[str], why: str) -> None:
        """Raise PackError if one of these settings is not its default."""
        for name in names:
            if (value := getattr(self, name)) != getattr(ExecutorConfig, name):
                raise PackError(f"executor.{name}={value} {why}")
