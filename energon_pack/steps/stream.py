"""The packs as one endless stream of positions that ranks and workers share; where training is, in any of them.

Position p of the stream is the p-th pack that all ranks together read. Who reads which position is arithmetic, so a
run goes on under other numbers of ranks and workers from nothing but what was read.
"""

from energon_pack.steps.topology import Topology, stream


class Stream:
    """The packs of a dataset, epoch after epoch.

    Every epoch has each pack once. Where their number is no multiple of `topology.unit`, an epoch ends within a unit;
    the next one first fills it up, from the last unit and what is over, so that all other units stay whole.
    """

    def __init__(self, num: int, topology: Topology):
        self.num, self.topology = num, topology
        self._stream = stream(num, topology)
        self._body = max(0, num // topology.unit - 1) * topology.unit if num % topology.unit else num

    def index(self, position: int) -> int:
        """The number on disk of the pack at a position of the stream."""
        epoch, place = divmod(position, self.num)
        filled = -epoch * self.num % self.topology.unit if 0 < self._body < self.num else 0
        if place < filled:
            place += self._body
        elif place < filled + self._body:
            place -= filled
        return int(self._stream[place])
