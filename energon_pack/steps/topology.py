"""Compute how Energon's loader deals packs to ranks and workers, and the order in which they all read.

    packs on disk ──split to global workers──► a stretch each ──ranks take from their workers by turns──► steps

The packs of one global step lie in as many stretches as there are ranks, so a plan with even steps has to put packs
there: `stream` returns which pack on disk is the p-th that is read, `Stream` does so for all epochs. Without shuffling,
the loader's order depends only on the number of packs, ranks and workers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from energon_pack.errors import PackError
from energon_pack.run.recent import Recent
from energon_pack.run.seeded import Ints, random_keys

_BLOCK = 64  # steps that stay together, so that a stretch of them is still like the whole


@dataclass
class Topology:
    """The ranks and workers that train on packs; a layout is even for all `data_parallel` × `workers` of equal product.

    A loader without worker processes counts as one worker.
    """

    #: data-parallel ranks
    data_parallel: int = 1
    #: loader processes of each rank
    workers: int = 1
    #: packs of each rank in a step: gradient accumulation, or micro-batches of a pipeline
    micro_batches: int = 1

    @property
    def row(self) -> int:
        """Packs of a row: one for each global worker."""
        return self.data_parallel * self.workers

    @property
    def rows_per_step(self) -> int:
        """Rows of a step, or 1 if a row has several steps."""
        return max(1, self.micro_batches // self.workers)

    @property
    def unit(self) -> int:
        """Number of packs, in whole rows, after which a new step begins for any factors of ranks and workers."""
        return self.row * self.rows_per_step

    @property
    def has_steps(self) -> bool:
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
    """Return the topology a dataset was laid out for; one rank and one worker if its manifest has none."""
    return Topology(**manifest.get("topology") or {})


def sizes_of_stretches(num: int, row: int) -> Ints:
    """Return the number of packs in the stretch of each global worker: rank r's worker w has number r · workers + w.

    Packs left over after equal shares go one each to workers far apart, in the order of halves: first, middle, …

    Source: Sharder.split_samples_to_workers of megatron-energon; a test compares them.
    """
    sizes = np.full(row, num // row, np.int64)
    sizes[by_halves(np.arange(row))[: num % row]] += 1
    return sizes


def by_halves(numbers: Ints) -> Ints:
    """Order numbers so that halves, and their halves, take turns."""
    if len(numbers) <= 2:
        return numbers
    half = len(numbers) // 2
    left, right = by_halves(numbers[:half]), by_halves(numbers[half:])
    mixed = np.empty_like(numbers)
    mixed[0 : 2 * half : 2], mixed[1 : 2 * half : 2] = left, right[:half]
    mixed[2 * half :] = right[half:]
    return mixed


def stream(num: int, topology: Topology) -> Ints:
    """Return the packs in the order in which all ranks together read them in the first epoch.

    Returns:
        int64[num]: the number on disk of the p-th pack. Ranks read at the same time, in the order of their numbers,
        each from its first worker to its last; workers with one more pack than others come last.
    """
    sizes = sizes_of_stretches(num, topology.row)
    starts = np.cumsum(sizes) - sizes
    # In a row: worker 0 of all ranks, then worker 1 of all ranks, and so on.
    turn = np.arange(topology.row).reshape(topology.data_parallel, topology.workers).T.ravel()
    whole = num // topology.row
    rows = starts[turn][None, :] + np.arange(whole)[:, None]
    has_more = turn[sizes[turn] > whole]
    return np.concatenate((rows.ravel(), starts[has_more] + whole))


class Stream:
    """The packs of a dataset, epoch after epoch.

    Every epoch has each pack once. If their number is no multiple of `topology.unit`, an epoch ends within a unit. The
    next epoch first fills that unit up, with its last unit and the packs left over, so all other units stay whole.

    Args:
        reorders: each later epoch has its units in another order, the same for all readers.
    """

    def __init__(self, num: int, topology: Topology, reorders: bool = False):
        self.num, self.topology = num, topology
        self._stream = stream(num, topology)
        self._orders: Recent[int, Ints] | None = Recent(2) if reorders else None
        self._body = max(0, num // topology.unit - 1) * topology.unit if num % topology.unit else num

    def index(self, position: int) -> int:
        """Return the number on disk of the pack at a position of the stream."""
        epoch, place = divmod(position, self.num)
        filled = -epoch * self.num % self.topology.unit if 0 < self._body < self.num else 0
        if place < filled:
            place += self._body
        elif place < filled + self._body:
            place = self._in_epoch(epoch, place - filled)
        return int(self._stream[place])

    def _in_epoch(self, epoch: int, place: int) -> int:
        if not epoch or self._orders is None:
            return place
        order = self._orders.get(epoch)
        if order is None:
            order = self._orders.put(epoch, order_of_epoch(self._body // self.topology.unit, epoch))
        unit, offset = divmod(place, self.topology.unit)
        return int(order[unit]) * self.topology.unit + offset


def order_of_epoch(num: int, epoch: int) -> Ints:
    """Put the units of a later epoch in another order: shuffle blocks of units, and the units within each block."""
    block = np.arange(num) // _BLOCK
    of_block = random_keys(num // _BLOCK + 1, epoch, 40)[block]
    return np.lexsort((random_keys(num, epoch, 41), of_block))
