"""In which order a loader takes packs: each rank its own, steps even over ranks, from anywhere on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from energon_pack.lazy import LazyPackedDataset
from energon_pack.online.ranks import ranks_here
from energon_pack.plan.even_steps import lay_out
from energon_pack.run.seeded import Ints, random_keys
from energon_pack.steps.journal import State, begin
from energon_pack.steps.place import Place, Taken
from energon_pack.steps.stream import Stream
from energon_pack.steps.topology import Topology

__all__ = ["PackSampler"]

#: of the costs of a pack: else the same long packs would meet in a step of every epoch
_JITTER = 0.005


class PackSampler(Sampler[tuple[int, int]]):
    """The packs of a `LazyPackedDataset` for one rank: shuffled by epoch, every step even over its ranks.

    All ranks share one endless stream of packs, each epoch's once. An iteration gives each rank as many packs as all
    others, in whole steps; the few that are over at the end of an epoch come first in the next iteration.

    Args:
        packs: the dataset; it is told of no epoch: what comes out names its own.
        rank, world_size: data-parallel ones; by default torch.distributed's, or torchrun's.
        micro_batches: packs of each rank in a step: gradient accumulation, or micro-batches of a pipeline; by default
            `packing.topology.micro_batches`.
        states: `state_dict` of every rank of a checkpoint, to go on from there with any number of ranks.

    Raises:
        ValueError: fewer packs than one step has; states of other packs, or not of all ranks.
    """

    def __init__(
        self,
        packs: LazyPackedDataset,
        rank: int | None = None,
        world_size: int | None = None,
        micro_batches: int | None = None,
        states: Sequence[State] = (),
    ):
        self._packs = packs
        self._rank, self._ranks = ranks_here(rank, world_size)
        self._of_step = micro_batches or packs.micro_batches
        if len(packs) < self._ranks * self._of_step:
            raise ValueError(
                f"{len(packs)} packs are fewer than a step of {self._ranks} ranks × {self._of_step} micro_batches has:"
                " more samples, a smaller packing.max_token_len, or fewer ranks"
            )
        topology = Topology(self._ranks, 1, self._of_step)
        self._beginning = Place(len(packs), packs.fingerprint, topology)
        self._orders: dict[int, Ints] = {}
        self._go_on(states)

    def _go_on(self, states: Sequence[State]) -> None:
        share = begin(self._beginning, self._ranks, self._rank, states)
        self._share = replace(share, taken=Taken())
        self._stream = Stream(share.place.num, share.place.topology)
        #: packs that this rank had since the place of its share
        self._turn = self._begun = share.taken.first
        #: and before that
        self._before = states[0]["batches"] - self._turn if len(states) == 1 else 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The packs that are left of an iteration, or of the next one: epoch and number of each."""
        end = self._end(self._iteration())
        while self._turn < end:
            self._turn += 1
            yield self._pack(self._share.position(self._turn - 1))

    def __len__(self) -> int:
        """Packs of the iteration that is under way or comes next."""
        iteration = self._iteration()
        return self._end(iteration) - max(0, self._end(iteration - 1))

    def set_epoch(self, epoch: int) -> None:
        """Go to the first pack of an iteration, unless this is somewhere in it."""
        start, end = max(0, self._end(epoch - 1)), self._end(epoch)
        if not start <= self._turn < end:
            self._turn = self._begun = start

    def state_dict(self, num_packs: int | None = None) -> dict[str, Any]:
        """Where this rank is: numbers and texts.

        Args:
            num_packs: that training had since this sampler was made or loaded, where a loader's workers read ahead and
                nobody else counts; by default all that were given out.
        """
        turn = self._turn if num_packs is None else self._begun + num_packs
        share = replace(self._share, taken=Taken(turn))
        return {"share": asdict(share), "ranks": self._ranks, "rank": self._rank, "batches": self._before + turn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where this rank was; another number of ranks goes on with `states` of all.

        Raises:
            ValueError: it is another rank's, or of other packs.
        """
        self._go_on([state])

    def _iteration(self) -> int:
        """Which iteration the next pack is of."""
        position = self._share.place.taken.left(self._turn * self._ranks)
        iteration = max(0, position // self._share.place.num - 1)
        while self._end(iteration) <= self._turn:
            iteration += 1
        return iteration

    def _end(self, iteration: int) -> int:
        """The turn after the last one of an iteration: whole steps of packs of its epoch and those before."""
        place = self._share.place
        left = place.taken.index((iteration + 1) * place.num)
        return left // (self._ranks * self._of_step) * self._of_step

    def _pack(self, position: int) -> tuple[int, int]:
        epoch = position // self._share.place.num
        return epoch, int(self._order(epoch)[self._stream.index(position)])

    def _order(self, epoch: int) -> Ints:
        """The packs of an epoch so that all steps of the ranks for whom it was begun are even."""
        if epoch not in self._orders:
            while len(self._orders) > 1:
                self._orders.pop(next(iter(self._orders)))
            self._packs.have_epoch(epoch)
            topology, order = self._share.place.topology, np.arange(len(self._packs))
            if topology.data_parallel > 1:
                costs, trained = self._packs.costs(epoch)
                seed = self._packs.config.seed + 1_000_003 * epoch
                chance = (random_keys(costs.size, seed, 30) >> np.uint64(11)).reshape(costs.shape) * 2.0**-53
                order = lay_out(costs * (1 + _JITTER * chance), trained, topology, seed)
            self._orders[epoch] = order
        return self._orders[epoch]
