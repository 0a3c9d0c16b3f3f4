"""The packs as one endless stream of positions that ranks and workers share; where training is, in any of them.

Position p of the stream is the p-th pack that all ranks together read. Who reads which position is arithmetic, so a
run goes on under other numbers of ranks and workers from nothing but what was read.
"""

import numpy as np

from energon_pack.run.recent import Recent
from energon_pack.run.seeded import Ints, random_keys
from energon_pack.steps.topology import Topology, stream

_BLOCK = 64  # steps that stay together, so that a stretch of them is still like the whole


class Stream:
    """The packs of a dataset, epoch after epoch.

    Every epoch has each pack once. Where their number is no multiple of `topology.unit`, an epoch ends within a unit;
    the next one first fills it up, from the last unit and what is over, so that all other units stay whole.

    Args:
        reorders: each later epoch has its units in another order, the same for whoever reads.
    """

    def __init__(self, num: int, topology: Topology, reorders: bool = False):
        self.num, self.topology = num, topology
        self._stream = stream(num, topology)
        self._orders: Recent[int, Ints] | None = Recent(2) if reorders else None
        self._body = max(0, num // topology.unit - 1) * topology.unit if num % topology.unit else num

    def index(self, position: int) -> int:
        """The number on disk of the pack at a position of the stream."""
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
    """Put the units of a later epoch in another order: blocks of them by chance, and those of each block."""
    block = np.arange(num) // _BLOCK
    of_block = random_keys(num // _BLOCK + 1, epoch, 40)[block]
    return np.lexsort((random_keys(num, epoch, 41), of_block))
