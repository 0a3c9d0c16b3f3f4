"""The settings of the executor, which does a run's jobs: the config's node `executor`."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from energon_pack.errors import PackError
from energon_pack.run.load_by_name import load_entry_point


class ExecutorKind(str, Enum):
    """Where jobs are done, unless an installed package adds another place."""

    local = "local"
    slurm = "slurm"
    ray = "ray"


#: settings that only some kinds of executors have
_OWN_SETTINGS: dict[str, tuple[str, ...]] = {
    ExecutorKind.slurm.value: ("num_tasks", "at_once", "sbatch", "wait", "show", "give_up_after"),
    ExecutorKind.ray.value: ("address", "task", "give_up_after"),
}
#: what `sbatch` may name
_SLURM_JOBS = ("all", "lengths", "plan", "write", "publish")
#: options of a Ray task that are numbers above 0
_POSITIVE_OPTIONS = ("num_cpus", "memory")


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
    #: slurm: options of `sbatch` for every job; or for some, `{all: …, plan: …}`: all, lengths, plan, write, publish
    sbatch: Any = None
    #: slurm: whether the command waits until the submitted jobs end
    wait: bool = True
    #: slurm: print the scripts, and submit nothing
    show: bool = False
    #: ray: address of the cluster: auto, HOST:PORT or ray://HOST:PORT; None: a Ray of this machine, for this run only
    address: str | None = None
    #: ray: options of a task beside Ray's own defaults, as num_cpus, memory (bytes), max_retries, resources
    task: dict[str, Any] = field(default_factory=dict)
    #: seconds after which the command ends: ray: without a job that ends; slurm: without an answer of Slurm
    give_up_after: float = 3600.0

    def check(self) -> None:
        """Raise PackError for settings that allow no work or belong to another executor, and for an unknown kind."""
        if self.kind not in list(ExecutorKind) and load_entry_point("executors", "executor.kind", self.kind) is None:
            kinds = ", ".join(kind.value for kind in ExecutorKind)
            raise PackError(f"executor.kind={self.kind}: there are {kinds}, and what installed packages add")
        for kind, names in _OWN_SETTINGS.items():
            for name in self._changed(set(names) - {*_OWN_SETTINGS.get(self.kind, ())}):
                raise PackError(f"executor.{name}={getattr(self, name)} is for executor={kind}")
        numbers = {"give_up_after": self.give_up_after}
        numbers |= {f"task.{key}": self.task.get(key, 1) for key in _POSITIVE_OPTIONS}
        for name, value in numbers.items():
            if not isinstance(value, int | float) or value <= 0:
                raise PackError(f"executor.{name}={value}: must be more than 0")
        for name, options in self.sbatch_options_by_stage.items():
            if name not in _SLURM_JOBS or not isinstance(options, str):
                raise PackError(f"executor.sbatch={{{name}: {options}}}: a text for each of {', '.join(_SLURM_JOBS)}")

    @property
    def sbatch_options_by_stage(self) -> dict[str, Any]:
        """Return the options of `sbatch` by the stage of a job; `all`: of every job."""
        return self.sbatch if isinstance(self.sbatch, dict) else {"all": self.sbatch or ""}

    def for_slurm_task(self) -> dict[str, Any]:
        """Return the settings for a Slurm task, which uses the processes of its own machine.

        Settings of `slurm` return to their defaults, because a task would refuse them.
        """
        set_back = {
            name: getattr(_DEFAULTS, name) for name in self._changed(("kind", *_OWN_SETTINGS[ExecutorKind.slurm.value]))
        }
        return set_back if self.num_workers is None else {**set_back, "num_workers": self.num_workers}

    def _changed(self, names: Iterable[str]) -> list[str]:
        """Return those of these settings that are not their defaults."""
        return [name for name in sorted(names) if getattr(self, name) != getattr(_DEFAULTS, name)]


_DEFAULTS = ExecutorConfig()
