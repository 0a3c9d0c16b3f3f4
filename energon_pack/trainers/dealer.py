"""Deal the items of epochs to ranks in whole steps, from any place on, and refuse to have them dealt once more."""

import logging
import os
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from types import FrameType
from typing import Any, TypeVar

import torch.distributed as dist
from torch.utils.data import BatchSampler, DistributedSampler, Sampler

from energon_pack.errors import PackError
from energon_pack.steps.position import Position, State, TakenNumbers, combine_taken_numbers, positions_of_states
from energon_pack.steps.topology import Topology, ranks_here

_log = logging.getLogger(__name__)
#: packages whose samplers and datasets with `num_processes` deal to so many ranks; others may only know the number
_DEALING_PACKAGES = {"accelerate", "transformers"}
#: how functions are named that iterate: `_iter_with_no_split` is Accelerate's
_ITERATING = ("__iter__", "_iter_")
#: the number of tasks that srun or Open MPI started together with this process
_TASKS_STARTED = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")


def ranks_to_deal_to(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Return `ranks_here`; a warning says if this process takes itself for the only one, and may not be."""
    found = ranks_here(rank, world_size)
    is_known = rank is not None or "WORLD_SIZE" in os.environ or (dist.is_available() and dist.is_initialized())
    tasks = [os.environ.get(name, "") for name in _TASKS_STARTED]
    if not is_known and (started := max(int(num) for num in [*filter(str.isdecimal, tasks), "1"])) > 1:
        _log.warning(
            "all packs are for this process, rank 0 of 1, and %d such tasks were started: if they train together, call"
            " this after torch.distributed.init_process_group, or give rank and world_size",
            started,
        )
    return found


def refuse_second_dealing(dealer: str, ranks: int) -> None:
    """Raise PackError if this rank's share, which is about to be read, would be dealt to ranks once more.

    Who deals it is seen in the calls above this one alone: Accelerate and Lightning put a sampler or dataset of their
    own around any other, which knows nothing of it. Of other calls than those that iterate no variables are looked at:
    before Python 3.13 a frame would hold on to them, and so to tensors of the training.
    """
    frame: FrameType | None = sys._getframe() if ranks > 1 else None
    while frame is not None:
        reader = frame.f_locals.get("self") if frame.f_code.co_name.startswith(_ITERATING) else None
        if (num := _num_ranks(reader)) > 1:
            raise PackError(
                f"{dealer} deals to {ranks} ranks, and {type(reader).__name__} would deal the share of each to {num}"
                " once more, so that most of it would reach no rank: give the loader as it is (Accelerate: prepare"
                " model and optimizer alone; Lightning: use_distributed_sampler=False), or train on packs.as_dataset()"
            )
        frame = frame.f_back


def _num_ranks(reader: Any) -> int:
    """Return the number of ranks to which a sampler or dataset deals; 1 if it deals to none, or is something else."""
    if isinstance(reader, DistributedSampler):  # Lightning's, too
        return reader.num_replicas
    modules = {kind.__module__.partition(".")[0] for kind in type(reader).__mro__}
    return int(getattr(reader, "num_processes", 1)) if modules & _DEALING_PACKAGES else 1


_STATE_METHOD = "state_dict()"
_AT_END = (
    "the state is of the end of an epoch: this iteration of the sampler is empty, and the one after has the next epoch"
    " (a StatefulDataLoader that was saved after its loop goes on with the next epoch at once)"
)
_NO_WAY_BACK = (
    "set_epoch(%d) changes nothing: a state was loaded, which goes on with epoch %d (Accelerate counts from 0 in each"
    " process)"
)
_NO_STATE = (
    "torch's BatchSampler deals these %s to a StatefulDataLoader, whose state has their number alone: to resume, make"
    " the loader yourself, StatefulDataLoader(…, sampler=…) of torchdata, which Accelerate takes, too"
)
Item = TypeVar("Item")


class RankSampler(Sampler[Item]):
    """Deals the items of epochs to ranks, in whole steps; all ranks are at the same turn of the same iteration.

    An iteration is one pass over the sampler: the items left over from the epoch before, then its epoch's whole steps.
    """

    #: what messages call the items
    _item_word = "packs"
    #: whether a state from the end of an iteration was loaded, and the next one has not begun
    _is_at_end: bool
    #: whether a state was loaded, and neither its epoch nor a later one was set since
    _is_resumed = False
    #: whether a warning told that an earlier epoch was set after the state
    _has_warned_of_epoch = False

    def __init__(self, stream: str, topology: Topology, rank: int, states: Sequence[State] = ()):
        self._beginning = Position(stream, topology, ranks=topology.data_parallel, rank=rank)
        self._resume_from(states)

    @abstractmethod
    def _num_items(self, epoch: int, topology: Topology) -> int:
        """Return the number of items of an epoch for a topology."""

    @abstractmethod
    def _item(self, epoch: int, index: int, topology: Topology) -> Item:
        """Return the item at an index of an epoch for a topology."""

    def __iter__(self) -> Iterator[Item]:
        """Yield the rest of the items of this iteration, or all items of the next one if none is left.

        Raises:
            PackError: what reads them would deal them to ranks once more.
        """
        refuse_second_dealing(type(self).__name__, self._beginning.ranks)
        if _is_read_without_state() and self._beginning.rank == 0:
            _log.warning(_NO_STATE, self._item_word)
        is_over, self._is_at_end = self._is_at_end, False
        if is_over and self._beginning.rank == 0:
            _log.warning(_AT_END)
        return iter(()) if is_over else self._remaining_items()

    def _remaining_items(self) -> Iterator[Item]:
        position = self._upcoming_position()
        for _ in range(self._num_left(position)):
            epoch, number = position.epoch, position.number_at()
            while number < 0:  # left over from an epoch before
                epoch -= 1
                number += self._num_items(epoch, position.topology)
            self._position = position = position.after(1)
            self._num_given += 1
            yield self._item(epoch, number, position.topology)

    def __len__(self) -> int:
        """Number of this rank's items in the current iteration, or in the next one if it has ended."""
        upcoming = self._upcoming_position()
        return upcoming.turns.first + self._num_left(upcoming)

    def set_epoch(self, epoch: int) -> None:
        """Go to the first item of an epoch's iteration, unless this sampler is inside it or was loaded at its end.

        After a state was loaded, the next epoch takes the place of an earlier one, until its own or a later one is set:
        Accelerate counts epochs from 0 in each process.
        """
        target = self._position if self._is_at_end else self._upcoming_position()
        if self._is_resumed and epoch < target.epoch:
            if self._beginning.rank == 0 and not self._has_warned_of_epoch:
                _log.warning(_NO_WAY_BACK, epoch, target.epoch)
            self._has_warned_of_epoch, epoch = True, target.epoch
        elif not self._is_at_end or epoch != target.epoch:  # Accelerate sets one twice, for it counts no empty loop
            self._is_resumed = False
        if epoch != target.epoch:
            self._is_at_end, upcoming = False, self._upcoming_position()
            target = upcoming if upcoming.epoch == epoch else self._epoch_start_position(epoch)
        if target != self._position:
            self._begin_at(target)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of any rank, with any number of ranks: they share the remaining items."""
        self._resume_from([state])

    def _state_after(self, num: int | None) -> dict[str, Any]:
        """Return this rank's state after `num` items since it began or was sent to an epoch; None: after all so far."""
        position = self._position
        if num is not None:
            if not 0 <= num <= self._num_given:
                limit = f"{self._num_given} {self._item_word} were given out"
                raise ValueError(f"num_{self._item_word}={num}: {limit} since it was made, loaded or sent to an epoch")
            position = self._first_position
            while num > (num_left := self._num_left(position)):
                num, position = num - num_left, self._next_epoch_position(position)
            position = position.after(num)
        return {"position": asdict(position)}

    def _resume_from(self, states: Sequence[State]) -> None:
        position = here = self._beginning
        if of_ranks := positions_of_states(states, here, _STATE_METHOD):
            position = replace(of_ranks[0], rank=here.rank)
            if any(replace(other, rank=here.rank) != position for other in of_ranks):
                raise ValueError("states of several steps: give those of one checkpoint")
            if (position.ranks, position.topology.micro_batches) != (here.ranks, here.topology.micro_batches):
                taken = combine_taken_numbers([replace(position, rank=rank) for rank in range(position.ranks)])
                position = replace(position, ranks=here.ranks, before=taken, turns=TakenNumbers())
        self._begin_at(position)
        self._is_at_end = not self._num_left(position)
        self._is_resumed, self._has_warned_of_epoch = bool(of_ranks), False

    def _begin_at(self, position: Position) -> None:
        self._first_position = self._position = position
        self._num_given = 0

    def _upcoming_position(self) -> Position:
        position = self._position
        while not self._num_left(position):
            position = self._next_epoch_position(position)
        return position

    def _epoch_end(self, position: Position) -> int:
        start, step = position.before.first, self._beginning.topology.unit_size
        return start + (self._num_items(position.epoch, position.topology) - start) // step * step

    def _num_left(self, position: Position) -> int:
        return (self._epoch_end(position) - position.before.first) // position.ranks - position.turns.first

    def _next_epoch_position(self, position: Position) -> Position:
        left_over = self._num_items(position.epoch, position.topology) - self._epoch_end(position)
        return replace(position, epoch=position.epoch + 1, before=TakenNumbers(-left_over), turns=TakenNumbers())

    def _epoch_start_position(self, epoch: int) -> Position:
        """Return the position at the beginning of an epoch's iteration."""
        return replace(self._position, epoch=epoch, before=TakenNumbers(), turns=TakenNumbers())


def _is_read_without_state() -> bool:
    """Tell whether torch's BatchSampler, which has no state, is about to read the sampler for torchdata's loader.

    Accelerate makes such a loader of a plain DataLoader, for `use_stateful_dataloader=True`.
    """
    reader = sys._getframe(2)  # what calls `__iter__`, which calls this
    caller = reader.f_back  # a method of torch's iterator, which torchdata's calls
    names = [frame.f_globals.get("__name__", "") for frame in (caller, caller and caller.f_back) if frame is not None]
    is_batch_sampler = reader.f_globals.get("__name__") == BatchSampler.__module__
    return is_batch_sampler and any(name.startswith("torchdata.") for name in names)
