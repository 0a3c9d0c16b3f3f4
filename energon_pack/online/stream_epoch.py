"""The epoch of a stream of packs, which the process of the training sets and the workers of a loader read."""

import os

from torch.utils.data import get_worker_info

from energon_pack.online.prepare import shared_number


class StreamEpoch:
    """The number of the epoch. All workers of a loader begin with the one that it had when they were started.

    A worker that stays looks in shared memory for another one at the start of its later iterations.
    """

    def __init__(self) -> None:
        self.number = 0
        self._shared = shared_number().fill_(-1)  # none was set
        #: the process whose iteration has begun since the number was set; None: none
        self._begun_in: int | None = None
        #: 1: workers began the last iteration; 0: this process began it, or will begin the next one anew
        self._in_workers = shared_number()
        #: the epoch that was asked for last; None: none
        self._asked_epoch: int | None = None
        #: added to each epoch that is asked for; a worker that loads a state writes it, too
        self._offset = shared_number()

    @property
    def is_in_workers(self) -> bool:
        """Whether workers of a loader began the last iteration, and nothing new was set or loaded since."""
        return bool(self._in_workers)

    def set(self, epoch: int, is_resumed: bool) -> int:
        """Let the next iteration have this number; if this is no worker, the next one of workers that stay, too.

        Args:
            epoch: if it is before a loaded state's, it stands for that, and later ones count on from it.
            is_resumed: whether the next iteration goes on with a loaded state.

        Returns:
            The number that the next iteration has.
        """
        if is_resumed:
            self._offset.fill_(max(0, self.number - epoch))
        self._asked_epoch, number = epoch, epoch + int(self._offset)
        self._begin_with(number, number, is_new=number != self.number)
        return number

    def load(self, number: int) -> None:
        """Let the next iteration have a state's number; the one after has the epoch asked for, if that is later."""
        asked_epoch = number if self._asked_epoch is None else self._asked_epoch
        self._offset.fill_(max(0, number - asked_epoch))
        self._begin_with(number, max(number, asked_epoch), is_new=True)

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
