"""See to it that packs are dealt to ranks once: for the ranks that train, and by one sampler or stream alone."""

import logging
import os
import sys
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch.utils.data import DistributedSampler

from energon_pack.errors import PackError
from energon_pack.steps.topology import ranks_here

_log = logging.getLogger(__name__)
#: packages whose samplers and datasets with `num_processes` deal to so many ranks; others may only know the number
_DEALING_PACKAGES = {"accelerate", "transformers"}
#: how functions are named that iterate: `_iter_with_no_split` is Accelerate's
_ITERATING = ("__iter__", "_iter_")
#: the number of tasks that srun or Open MPI started together with this process
_TASKS_STARTED = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")


def ranks_to_deal_to(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Return `ranks_here`; a warning says if this process takes itself for the only one, and may not be."""
    found = ranks_here(rank, world_size)
    is_known = rank is not None or "WORLD_SIZE" in os.environ or (dist.is_available() and dist.is_initialized())
    tasks = [os.environ.get(name, "") for name in _TASKS_STARTED]
    if not is_known and (started := max(int(num) for num in [*filter(str.isdecimal, tasks), "1"])) > 1:
        _log.warning(
            "all packs are for this process, rank 0 of 1, and %d such tasks were started: if they train together, call"
            " this after torch.distributed.init_process_group, or give rank and world_size",
            started,
        )
    return found


def refuse_second_dealing(dealer: str, ranks: int) -> None:
    """Raise PackError if this rank's share, which is about to be read, would be dealt to ranks once more.

    Who deals it is seen in the calls above this one alone: Accelerate and Lightning put a sampler or dataset of their
    own around any other, which knows nothing of it. Of other calls than those that iterate no variables are looked at:
    before Python 3.13 a frame would hold on to them, and so to tensors of the training.
    """
    frame: FrameType | None = sys._getframe() if ranks > 1 else None
    while frame is not None:
        reader = frame.f_locals.get("self") if frame.f_code.co_name.startswith(_ITERATING) else None
        if (num := _num_ranks(reader)) > 1:
            raise PackError(
                f"{dealer} deals to {ranks} ranks, and {type(reader).__name__} would deal the share of each to {num}"
                " once more, so that most of it would reach no rank: give the loader as it is (Accelerate: prepare"
                " model and optimizer alone; Lightning: use_distributed_sampler=False), or train on packs.as_dataset()"
            )
        frame = frame.f_back


def _num_ranks(reader: Any) -> int:
    """Return the number of ranks to which a sampler or dataset deals; 1 if it deals to none, or is something else."""
    if isinstance(reader, DistributedSampler):  # Lightning's, too
        return reader.num_replicas
    modules = {kind.__module__.partition(".")[0] for kind in type(reader).__mro__}
    return int(getattr(reader, "num_processes", 1)) if modules & _DEALING_PACKAGES else 1
