"""Who does the jobs of a run: the config's node `executor`."""

from dataclasses import dataclass
from enum import Enum

from energon_pack.errors import PackError


class ExecutorKind(str, Enum):
    """Where jobs are done."""

    local = "local"
    slurm = "slurm"
    ray = "ray"


@dataclass
class ExecutorConfig:
    """Processes of this machine, or of others."""

    #: processes of this machine · of all machines that see the same folders, by files alone · of a Ray cluster
    kind: ExecutorKind = ExecutorKind.local
    #: of each machine; None: all cores
    num_workers: int | None = None
    #: of a Ray cluster: auto, HOST:PORT or ray://HOST:PORT; None: a Ray of this machine, for the run alone
    address: str | None = None
    #: CPUs of one of Ray's tasks
    num_cpus: float = 1.0
    #: bytes of one of Ray's tasks; None: Ray does not count them
    memory: float | None = None
    #: how often a job is done again whose worker or node was lost
    retries: int = 3
    #: seconds that no machine works on the run, after which it ends
    wait: float = 3600.0

    def check(self) -> None:
        """Raises PackError where a setting is for another executor, or no work could be done with it."""
        for name, value in (("num_cpus", self.num_cpus), ("memory", self.memory), ("wait", self.wait)):
            if value is not None and value <= 0:
                raise PackError(f"executor.{name}={value:g}: must be more than 0")
        if self.address is not None and self.kind is not ExecutorKind.ray:
            raise PackError(f"executor.address={self.address} is for executor=ray")
