"""Packs as one endless stream of positions that ranks and workers share.

Position p of the stream is the p-th pack that all ranks together read. Arithmetic decides who reads which position, so
a run can continue with other numbers of ranks and workers if it knows which positions were read.
"""

import numpy as np

from energon_pack.run.recent import Recent
from energon_pack.run.seeded import Ints, random_keys
from energon_pack.steps.topology import Topology, stream

_BLOCK = 64  # steps that stay together, so that a stretch of them is still like the whole


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
