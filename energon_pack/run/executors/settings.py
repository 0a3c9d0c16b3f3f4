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
