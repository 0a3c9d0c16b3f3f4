"""Find this process's data-parallel rank."""

import os

import torch.distributed as dist


def ranks_here(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Return this data-parallel rank and the number of ranks.

    The arguments count first, then torch.distributed, then torchrun's variables; without any there is one rank.

    Raises:
        ValueError: only one argument is given, or the rank is out of range.
    """
    if (rank is None) is not (world_size is None):
        raise ValueError(f"rank={rank}, world_size={world_size}: give both, or none")
    if rank is None or world_size is None:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} of world_size={world_size}")
    return rank, world_size
