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

    @property
    def is_in_workers(self) -> bool:
        """Whether workers of a loader began the last iteration, and nothing new was set or loaded since."""
        return bool(self._in_workers)

    def set(self, number: int, is_new: bool = False) -> None:
        """Let the next iteration have this number; if this is no worker, the next one of workers that stay, too.

        `is_new`: that iteration begins elsewhere than before, even if the number is the same.
        """
        is_new |= number != self.number
        self.number, self._begun_in = number, None
        if get_worker_info() is None:
            self._shared.fill_(number)
            if is_new:
                self._in_workers.fill_(0)

    def begin(self) -> None:
        """Begin an iteration, with the number that was set last."""
        if self._begun_in == os.getpid() and int(self._shared) >= 0:
            self.number = int(self._shared)
        self._begun_in = os.getpid()
        self._in_workers.fill_(get_worker_info() is not None)
