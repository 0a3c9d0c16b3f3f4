"""Compute the order in which Energon's own loader reads packs, with so many ranks and workers.

    packs on disk ──split to global workers──► a stretch each ──ranks take from their workers by turns──► steps

The packs of one global step lie in as many stretches as there are ranks, so a plan with even steps has to put packs
there: `reading_order` returns which pack on disk is the p-th that is read. Without shuffling, the loader's order
depends only on the number of packs, ranks and workers.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from energon_pack.errors import PackError
from energon_pack.run.seeded_random import Ints


@dataclass
class Topology:
    """How many ranks and loader workers train on packs, and how many packs each rank reads in a step.

    Steps that are planned for one topology are even for others with the same `data_parallel` × `workers`. A loader
    without worker processes counts as one worker.
    """

    #: data-parallel ranks
    data_parallel: int = 1
    #: loader processes of each rank
    workers: int = 1
    #: packs of each rank in a step: gradient accumulation, or micro-batches of a pipeline
    micro_batches: int = 1

    @property
    def row_size(self) -> int:
        """Number of packs that are read at once: one by each worker of each rank."""
        return self.data_parallel * self.workers

    @property
    def rows_per_step(self) -> int:
        """Number of rows (see `row_size`) in a step, or 1 if a row holds several steps."""
        return max(1, self.micro_batches // self.workers)

    @property
    def unit_size(self) -> int:
        """Number of packs, in whole rows, after which a new step begins, however ranks and workers divide a row."""
        return self.row_size * self.rows_per_step

    @property
    def has_several_packs_per_step(self) -> bool:
        """Whether a step has several packs; otherwise there is nothing to make even."""
        return self.data_parallel * self.micro_batches > 1

    def check(self) -> None:
        """Raise PackError if a number is not positive, or rows and steps do not divide each other."""
        for name in ("data_parallel", "workers", "micro_batches"):
            if getattr(self, name) < 1:
                raise PackError(f"packing.topology.{name}={getattr(self, name)}: at least 1")
        larger, smaller = max(self.workers, self.micro_batches), min(self.workers, self.micro_batches)
        if larger % smaller:
            raise PackError(
                f"packing.topology.workers={self.workers} and micro_batches={self.micro_batches}: one has to be a"
                " multiple of the other, so that a worker's packs are at the same place of every step"
            )


def topology_of(manifest: Mapping[str, Any]) -> Topology:
    """Return the topology that a packed dataset was laid out for; one rank and one worker if its manifest has none."""
    return Topology(**manifest.get("topology") or {})


def num_packs_by_worker(num_packs: int, num_workers_of_all_ranks: int) -> Ints:
    """Return how many neighbouring packs Energon deals to each worker of each rank, int64[num_workers_of_all_ranks].

    Rank r's worker w is at r · workers + w. Packs left over after equal shares go to workers far apart, one each:
    the first, the middle one, …

    Source: Sharder.split_samples_to_workers of megatron-energon; a test compares them.
    """
    sizes = np.full(num_workers_of_all_ranks, num_packs // num_workers_of_all_ranks, np.int64)
    sizes[interleave_halves(np.arange(num_workers_of_all_ranks))[: num_packs % num_workers_of_all_ranks]] += 1
    return sizes


def interleave_halves(numbers: Ints) -> Ints:
    """Interleave the two halves of an array, each interleaved in the same way: 0 1 2 3 4 5 6 7 → 0 4 2 6 1 5 3 7."""
    if len(numbers) <= 2:
        return numbers
    half = len(numbers) // 2
    first, second = interleave_halves(numbers[:half]), interleave_halves(numbers[half:])
    mixed = np.empty_like(numbers)
    mixed[0 : 2 * half : 2], mixed[1 : 2 * half : 2] = first, second[:half]
    mixed[2 * half :] = second[half:]
    return mixed


def reading_order(num: int, topology: Topology) -> Ints:
    """Return the packs in the order in which all ranks together read them in the first epoch.

    Returns:
        int64[num]: the number on disk of the p-th pack. Ranks read at the same time, in the order of their numbers,
        each from its first worker to its last; workers with one more pack than others come last.
    """
    sizes = num_packs_by_worker(num, topology.row_size)
    starts = np.cumsum(sizes) - sizes
    # In a row: worker 0 of all ranks, then worker 1 of all ranks, and so on.
    turn = np.arange(topology.row_size).reshape(topology.data_parallel, topology.workers).T.ravel()
    whole = num // topology.row_size
    rows = starts[turn][None, :] + np.arange(whole)[:, None]
    has_more = turn[sizes[turn] > whole]
    return np.concatenate((rows.ravel(), starts[has_more] + whole))


def ranks_here(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Return the data-parallel rank of this process, and the number of ranks.

    Taken from the arguments, else from torch.distributed, else from torchrun's environment variables; else 0 and 1.
    """
    if (rank is None) is not (world_size is None):
        raise ValueError(f"rank={rank}, world_size={world_size}: give both, or none")
    if rank is None or world_size is None:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} of world_size={world_size}")
    return rank, world_size
