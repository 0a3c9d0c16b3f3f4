"""Who does the jobs of a run: the config's node `executor`."""

from dataclasses import dataclass
from enum import Enum


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
