"""Who does the jobs of a run: the config's node `executor`."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from energon_pack.errors import PackError


class ExecutorKind(str, Enum):
    """Where jobs are done."""

    local = "local"
    slurm = "slurm"
    ray = "ray"


#: settings that mean nothing to the others
_OWN = {
    ExecutorKind.slurm: ("lost_after", "sbatch", "num_nodes", "wait", "launch"),
    ExecutorKind.ray: ("address", "num_cpus", "memory", "retries", "give_up_after"),
}
_OF_SBATCH = ("num_nodes", "wait")
_SHORTEST_LOST_AFTER = 5.0  # a sign of life comes every 2 seconds


@dataclass
class ExecutorConfig:
    """Processes of this machine, or of others."""

    #: processes of this machine · of all machines that see the same folders, by files alone · of a Ray cluster
    kind: ExecutorKind = ExecutorKind.local
    #: of each machine; None: all cores
    num_workers: int | None = None
    #: slurm: seconds without a sign of life after which a machine is lost, and another does its work
    lost_after: float = 60.0
    #: slurm: options of `sbatch`, with which this command submits itself as an array, waits, and shows how far it is;
    #: None: this process is one of those that pack
    sbatch: str | None = None
    #: slurm: tasks of that array
    num_nodes: int | None = None
    #: slurm: whether it waits for the end of what it submitted
    wait: bool = True
    #: slurm: a word that is the same in all processes that were started together; None: the id of their Slurm job
    launch: str | None = None
    #: ray: where the cluster is: auto, HOST:PORT or ray://HOST:PORT; None: a Ray of this machine, for the run alone
    address: str | None = None
    #: ray: CPUs of a task
    num_cpus: float = 1.0
    #: ray: bytes of memory of a task; None: they are not counted
    memory: float | None = None
    #: ray: how often a job is done again whose worker or node was lost
    retries: int = 3
    #: ray: seconds that no node works on the run, after which it ends
    give_up_after: float = 3600.0

    def check(self) -> None:
        """Raises PackError where no work could be done so, or a setting is another executor's."""
        for kind, names in _OWN.items():
            if kind is not self.kind:
                self._refuse_given(names, f"is for executor={kind.value}")
        if self.sbatch is None:
            self._refuse_given(_OF_SBATCH, "needs executor.sbatch: nothing is submitted without it")
        if self.lost_after < _SHORTEST_LOST_AFTER:
            raise PackError(f"executor.lost_after={self.lost_after:g}: must be at least {_SHORTEST_LOST_AFTER:g}")
        for name in ("num_cpus", "memory", "give_up_after"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise PackError(f"executor.{name}={value:g}: must be more than 0")

    def _refuse_given(self, names: Iterable[str], why: str) -> None:
        """Raises PackError where one is not as it is by default."""
        for name in names:
            if (value := getattr(self, name)) != getattr(ExecutorConfig, name):
                raise PackError(f"executor.{name}={value} {why}")
