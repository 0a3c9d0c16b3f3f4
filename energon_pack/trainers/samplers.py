"""Samplers that deal packs or samples to ranks, make steps even over them, and go on from any state."""

import logging
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, TypeVar

import numpy as np
from torch.utils.data import Sampler

from energon_pack.plan.even_steps import lay_out
from energon_pack.run.recent import Recent
from energon_pack.run.seeded import Ints, seed_of
from energon_pack.steps.position import Position, State, Stream, Taken, numbers_taken_by, positions_of_states
from energon_pack.steps.topology import Topology, ranks_here
from energon_pack.trainers.length_groups import Groups, group

__all__ = ["LengthGroupedSampler", "PackSampler"]

_log = logging.getLogger(__name__)
_METHOD = "state_dict()"
_OVER = "the state is of the end of an epoch: this iteration has nothing of it, and the one after has the next epoch"
Item = TypeVar("Item")

#: random share added to a pack's cost, so that the same long packs do not share a step in every epoch
_JITTER = 0.005

#: `overlong`: the treatment of a sample with more tokens than a batch may have, as a warning tells it
_OVERLONG = {"alone": "each is a batch of its own", "drop": "they are in no batch"}


class _Dealer(Sampler[Item]):
    """Deals the items of epochs to ranks, in whole steps; all ranks are at the same turn of the same iteration.

    An iteration has the items of its epoch, after the few of epochs before that made no whole step.
    """

    #: the word for the items
    _items = "packs"
    #: a state was loaded that is of the end of an iteration, and the next one is not begun
    _is_over: bool

    def __init__(self, stream: str, topology: Topology, rank: int, states: Sequence[State] = ()):
        self._beginning = Position(stream, topology, ranks=topology.data_parallel, rank=rank)
        self._go_on(states)

    @abstractmethod
    def _size(self, epoch: int, topology: Topology) -> int:
        """Return the number of items of an epoch that is laid out for a topology."""

    @abstractmethod
    def _item(self, epoch: int, index: int, topology: Topology) -> Item:
        """Return an item of an epoch."""

    def __iter__(self) -> Iterator[Item]:
        """Yield the items left in this iteration; if none is left, those of the next one."""
        is_over, self._is_over = self._is_over, False
        if is_over and self._beginning.rank == 0:
            _log.warning(_OVER)
        return iter(()) if is_over else self._rest()

    def _rest(self) -> Iterator[Item]:
        position = self._upcoming()
        for _ in range(self._left(position)):
            epoch, number = position.epoch, position.number_at()
            while number < 0:  # left over from an epoch before
                epoch -= 1
                number += self._size(epoch, position.topology)
            self._position = position = position.after(1)
            self._num_given += 1
            yield self._item(epoch, number, position.topology)

    def __len__(self) -> int:
        """Number of this rank's items in the iteration that is under way or comes next."""
        upcoming = self._upcoming()
        return upcoming.turns.first + self._left(upcoming)

    def set_epoch(self, epoch: int) -> None:
        """Go to the first item of an iteration, unless this sampler is inside it, or its state was of its end."""
        self._is_over &= epoch == self._position.epoch
        if not self._is_over and self._upcoming().epoch != epoch:
            self._begin_at(self._start(epoch))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of any rank, with any number of ranks: they share the rest."""
        self._go_on([state])

    def _state(self, num: int | None) -> dict[str, Any]:
        """Return this rank's state after a number of items given since this sampler began or was sent to an epoch."""
        position = self._position
        if num is not None:
            if not 0 <= num <= self._num_given:
                raise ValueError(
                    f"num_{self._items}={num}: {self._num_given} {self._items} were given out since it was made"
                )
            position = self._begun
            while num > (num_left := self._left(position)):
                num, position = num - num_left, self._next(position)
            position = position.after(num)
        return {"position": asdict(position)}

    def _go_on(self, states: Sequence[State]) -> None:
        position = here = self._beginning
        if of_ranks := positions_of_states(states, here, _METHOD):
            position = replace(of_ranks[0], rank=here.rank)
            if any(replace(other, rank=here.rank) != position for other in of_ranks):
                raise ValueError("states of several steps: give those of one checkpoint")
            if (position.ranks, position.topology.micro_batches) != (here.ranks, here.topology.micro_batches):
                taken = numbers_taken_by([replace(position, rank=rank) for rank in range(position.ranks)])
                position = replace(position, ranks=here.ranks, before=taken, turns=Taken())
        self._begin_at(position)
        self._is_over = not self._left(position)

    def _begin_at(self, position: Position) -> None:
        self._begun = self._position = position
        self._num_given = 0

    def _upcoming(self) -> Position:
        position = self._position
        while not self._left(position):
            position = self._next(position)
        return position

    def _end(self, position: Position) -> int:
        start, step = position.before.first, self._beginning.topology.unit
        return start + (self._size(position.epoch, position.topology) - start) // step * step

    def _left(self, position: Position) -> int:
        return (self._end(position) - position.before.first) // position.ranks - position.turns.first

    def _next(self, position: Position) -> Position:
        left_over = self._size(position.epoch, position.topology) - self._end(position)
        return replace(position, epoch=position.epoch + 1, before=Taken(-left_over), turns=Taken())

    def _start(self, epoch: int) -> Position:
        """Return the beginning of an iteration that is named."""
        return replace(self._position, epoch=epoch, before=Taken(), turns=Taken())


class PackSampler(_Dealer[tuple[int, int]]):
    """Deals the packs of a `LazyPackedDataset` or a `PackedDataset` to ranks, every step even over the ranks.

    An item is (epoch, number). All ranks share one endless stream, which has each epoch's packs once. An iteration
    gives every rank the same number of packs, in whole steps. The few packs left over at the end of an epoch come first
    in the next iteration. The first iteration after a state is the rest of the state's own: nothing if that was
    finished, unless `set_epoch` names the next one.

    Args:
        packs: the dataset; it needs no `set_epoch`, because every index names its epoch.
        rank, world_size: this data-parallel rank and their number; by default torch.distributed's, or torchrun's.
        micro_batches: packs of each rank in a step: gradient accumulation, or micro-batches of a pipeline; by default
            `packing.topology.micro_batches`.
        states: `state_dict` of every rank of a checkpoint, or of one, to go on from there with any number of ranks.
    """

    def __init__(
        self,
        packs: Any,
        rank: int | None = None,
        world_size: int | None = None,
        micro_batches: int | None = None,
        states: Sequence[State] = (),
    ):
        if not hasattr(packs, "costs"):
            raise ValueError(f"packs is a {type(packs).__name__}: a LazyPackedDataset; a stream deals its packs itself")
        rank, ranks = ranks_here(rank, world_size)
        of_step = packs.micro_batches if micro_batches is None else micro_batches
        if of_step < 1:
            raise ValueError(f"micro_batches={micro_batches}: at least 1")
        if len(packs) < ranks * of_step:
            raise ValueError(
                f"{len(packs)} packs are fewer than a step of {ranks} ranks × {of_step} micro_batches has:"
                " more samples, a smaller packing.max_token_len, or fewer ranks"
            )
        self._packs = packs
        self._orders: Recent[int, Ints] = Recent(2)
        super().__init__(f"{len(packs)} packs ({packs.fingerprint})", Topology(ranks, 1, of_step), rank, states)

    def state_dict(self, num_packs: int | None = None) -> dict[str, Any]:
        """Return the state: numbers and texts, the same on all ranks but for their own number.

        Args:
            num_packs: packs that were trained on since this sampler was made, loaded or sent to an epoch. Pass it if a
                loader's workers read ahead; by default all packs that were yielded count.
        """
        return self._state(num_packs)

    def of_all_ranks(self, num: int) -> list[tuple[int, int]]:
        """Return (epoch, number) of the first `num` packs of the stream that all ranks share, in its order."""
        topology = self._position.topology
        return [self._item(*divmod(number, len(self._packs)), topology) for number in range(num)]

    def _begin_at(self, position: Position) -> None:
        super()._begin_at(position)
        repeats = getattr(self._packs, "repeats", False)  # every epoch has the same packs: then change their order
        self._stream = Stream(len(self._packs), position.topology, repeats)

    def _size(self, epoch: int, topology: Topology) -> int:
        return len(self._packs)

    def _start(self, epoch: int) -> Position:
        position, num = super()._start(epoch), len(self._packs)
        number = self._position.epoch * num + self._position.before.first  # steps are whole ones from here on
        left_over = (epoch * num - number) % self._beginning.topology.unit
        return replace(position, before=Taken(-left_over if epoch else 0))

    def _item(self, epoch: int, index: int, topology: Topology) -> tuple[int, int]:
        return epoch, int(self._order(epoch, topology)[self._stream.pack_at(epoch * len(self._packs) + index)])

    def _order(self, epoch: int, topology: Topology) -> Ints:
        """Order the packs of an epoch so that steps are even over the ranks that began the first one."""
        order = self._orders.get(epoch)
        if order is None:
            self._packs.have_epoch(epoch)
            order = np.arange(len(self._packs))
            if topology.data_parallel > 1:
                costs, trained = self._packs.costs(epoch)
                seed = seed_of(self._packs.config.seed, epoch)
                order = lay_out(costs, trained, topology, seed, _JITTER)
            self._orders.put(epoch, order)
        return order


class LengthGroupedSampler(_Dealer[list[int]]):
    """Batches samples of like lengths, for training without packing: `batch_sampler` of a DataLoader.

    An item is the numbers of a batch's samples. In an epoch every rank has the same number of batches, and each sample
    comes once. The batches of a step have like lengths, too; steps come in random order. An iteration is an epoch, or
    the rest of it: after the state of a finished epoch nothing, unless `set_epoch` names the next one. Batches that
    make no whole step come first in the next iteration: where others went on with an epoch than began it.

    Args:
        lens: tokens of each sample.
        batch_size: samples of a batch; give this or `max_batch_tokens`.
        max_batch_tokens: largest number of samples × tokens of the longest sample in a batch.
        overlong: a sample with more than `max_batch_tokens` is a batch of its own (`alone`), or in none (`drop`); a
            warning says how many there are.
        rank, world_size: this data-parallel rank and their number; by default torch.distributed's, or torchrun's.
        seed: with the epoch it decides which samples share a batch, and the order.
        window: batches whose samples are sorted together: fewer mix samples better and pad more.
    """

    _items = "batches"

    def __init__(
        self,
        lens: Sequence[int] | Ints,
        batch_size: int | None = None,
        max_batch_tokens: int | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        window: int = 128,
        overlong: Literal["alone", "drop"] = "alone",
    ):
        rank, ranks = ranks_here(rank, world_size)
        limits = f"batch_size={batch_size}, max_batch_tokens={max_batch_tokens}"
        if (batch_size is None) is (max_batch_tokens is None) or (batch_size or max_batch_tokens or 0) < 1:
            raise ValueError(f"{limits}: give one of the two, at least 1")
        all_lens, self._limits, self._seed = np.asarray(lens, np.int64), (batch_size, max_batch_tokens), seed
        if overlong not in _OVERLONG:
            raise ValueError(f"overlong={overlong!r}; there are: {', '.join(_OVERLONG)}")
        if window < 1:
            raise ValueError(f"window={window}: at least 1 batch")
        are_overlong = np.greater(all_lens, max_batch_tokens or np.inf)
        self._samples = np.flatnonzero(~are_overlong) if overlong == "drop" else np.arange(len(all_lens))
        self._lens = all_lens[self._samples]
        if len(self._samples) < ranks:
            raise ValueError(f"{len(self._samples)} samples for {ranks} ranks: fewer ranks, or more samples")
        self._window = window * (batch_size or (max_batch_tokens or 1) / max(1.0, float(self._lens.mean())))
        self._kept: Recent[tuple[int, int], Groups] = Recent(2)
        settings = f"{limits}, {window=}, {seed=}, {overlong=}"
        stream = f"{len(all_lens)} samples ({zlib.crc32(all_lens.tobytes()):08x}, {settings})"
        super().__init__(stream, Topology(ranks), rank)
        if rank == 0 and are_overlong.any():
            num, longest = np.count_nonzero(are_overlong), all_lens.max()
            which = f"{num} of {len(all_lens)} samples have more than max_batch_tokens={max_batch_tokens} tokens"
            _log.warning("%s, at most %d: %s (overlong=%r)", which, longest, _OVERLONG[overlong], overlong)

    def state_dict(self, num_batches: int | None = None) -> dict[str, Any]:
        """Return the state: numbers and texts, the same on all ranks but for their own number.

        Args:
            num_batches: batches trained on since this sampler was made, loaded or sent to an epoch. Pass it if
                workers read ahead; by default all batches that were yielded count.
        """
        return self._state(num_batches)

    def _groups(self, epoch: int, topology: Topology) -> Groups:
        key = epoch, topology.data_parallel
        groups = self._kept.get(key)
        if groups is None:
            seed = seed_of(self._seed, epoch)
            groups = self._kept.put(key, group(self._lens, key[1], *self._limits, self._window, seed))
        return groups

    def _size(self, epoch: int, topology: Topology) -> int:
        return len(self._groups(epoch, topology).row)

    def _item(self, epoch: int, index: int, topology: Topology) -> list[int]:
        samples: list[int] = self._samples[self._groups(epoch, topology).samples(index)].tolist()
        return samples

    def _next(self, position: Position) -> Position:
        following = super()._next(position)
        return following if following.before.first else replace(following, topology=self._beginning.topology)
