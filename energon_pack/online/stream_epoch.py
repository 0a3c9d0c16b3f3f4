"""The epoch of a stream of packs, which the process of the training sets and the workers of a loader read."""

import os

from torch.utils.data import get_worker_info

from energon_pack.online.prepare import shared_epoch


class StreamEpoch:
    """The number of the epoch. All workers of a loader begin with the one that it had when they were started.

    A worker that stays looks in shared memory for another one at the start of its later iterations.
    """

    def __init__(self) -> None:
        self.number = 0
        self._shared = shared_epoch().fill_(-1)  # none was set
        #: the process whose iteration has begun since the number was set; None: none
        self._begun_in: int | None = None
        #: 1: workers began the last iteration; 0: this process began it, or will begin the next one anew
        self._in_workers = shared_epoch()
        #: the number that was given last; None: none
        self._given: int | None = None
        #: added to each number that is given; a worker that loads a state writes it, too
        self._num_before = shared_epoch()

    @property
    def is_in_workers(self) -> bool:
        """Whether workers of a loader began the last iteration, and nothing new was set or loaded since."""
        return bool(self._in_workers)

    def set(self, given: int, is_resumed: bool) -> int:
        """Let the next iteration have this number; if this is no worker, the next one of workers that stay, too.

        `is_resumed`: a loaded state waits to be read. A number before the state's is the state's.

        Returns:
            The number, counted on from that of a loaded state where an earlier one was given for it.
        """
        if is_resumed:
            self._num_before.fill_(max(0, self.number - given))
        self._given, number = given, given + int(self._num_before)
        self._begin_with(number, number, is_new=number != self.number)
        return number

    def load(self, number: int) -> None:
        """Let the next iteration have the number of a state; the one after has that which was given, if it is later."""
        given = number if self._given is None else self._given
        self._num_before.fill_(max(0, number - given))
        self._begin_with(number, max(number, given), is_new=True)

    def begin(self) -> None:
        """Begin an iteration, with the number that was set last."""
        if self._begun_in == os.getpid() and int(self._shared) >= 0:
            self.number = int(self._shared)
        self._begun_in = os.getpid()
        self._in_workers.fill_(get_worker_info() is not None)

    def _begin_with(self, number: int, later: int, is_new: bool) -> None:
        self.number, self._begun_in = number, None
        if get_worker_info() is None:
            self._shared.fill_(later)
            if is_new:
                self._in_workers.fill_(0)
