"""Samplers that deal packs or samples to ranks in even steps, and resume from a state with any number of ranks."""

import logging
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, TypeVar

import numpy as np
from torch.utils.data import Sampler

from energon_pack.plan.even_steps import order_for_steps
from energon_pack.run.lru_cache import LruCache
from energon_pack.run.seeded_random import Ints, epoch_seed
from energon_pack.steps.position import PackOrder, Position, State, Taken, numbers_taken_together, positions_of_states
from energon_pack.steps.topology import Topology, ranks_here, reading_order, topology_of
from energon_pack.trainers.length_groups import LengthGroups, group_by_length

__all__ = ["LengthGroupedSampler", "PackSampler"]

_log = logging.getLogger(__name__)
_STATE_METHOD = "state_dict()"
_AT_END = "the state is of the end of an epoch: this iteration has nothing of it, and the one after has the next epoch"
Item = TypeVar("Item")

#: random share added to a pack's cost, so that the same long packs do not share a step in every epoch
_COST_JITTER = 0.005

#: `overlong`: the treatment of a sample with more tokens than a batch may have, as a warning tells it
_OVERLONG_CHOICES = {"alone": "each is a batch of its own", "drop": "they are in no batch"}


class _Dealer(Sampler[Item]):
    """Deals the items of epochs to ranks, in whole steps; all ranks are at the same turn of the same iteration.

    An iteration is one pass over the sampler: the items left over from the epoch before, then its epoch's whole steps.
    """

    #: what messages call the items
    _item_word = "packs"
    #: whether a state from the end of an iteration was loaded, and the next one has not begun
    _is_at_end: bool

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
        """Yield the items left in this iteration; if none is left, those of the next one."""
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
        """Go to the first item of an epoch's iteration, unless this sampler is inside it or was loaded at its end."""
        self._is_at_end &= epoch == self._position.epoch
        if not self._is_at_end and self._upcoming_position().epoch != epoch:
            self._begin_at(self._epoch_start_position(epoch))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of any rank, with any number of ranks: they share the remaining items."""
        self._resume_from([state])

    def _state_after(self, num: int | None) -> dict[str, Any]:
        """Return this rank's state after `num` items since it began or was sent to an epoch; None: after all so far."""
        position = self._position
        if num is not None:
            if not 0 <= num <= self._num_given:
                raise ValueError(
                    f"num_{self._item_word}={num}: {self._num_given} {self._item_word} were given out since it was made"
                )
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
                taken = numbers_taken_together([replace(position, rank=rank) for rank in range(position.ranks)])
                position = replace(position, ranks=here.ranks, before=taken, turns=Taken())
        self._begin_at(position)
        self._is_at_end = not self._num_left(position)

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
        return replace(position, epoch=position.epoch + 1, before=Taken(-left_over), turns=Taken())

    def _epoch_start_position(self, epoch: int) -> Position:
        """Return the position at the beginning of an epoch's iteration."""
        return replace(self._position, epoch=epoch, before=Taken(), turns=Taken())


class PackSampler(_Dealer[tuple[int, int]]):
    """Deals the packs of a `LazyPackedDataset` or a `PackedDataset` to ranks, every step even over the ranks.

    An item is (epoch, number). All ranks share one endless stream, which has each epoch's packs once. An iteration
    gives every rank the same number of packs, in whole steps. The few packs left over at the end of an epoch come first
    in the next iteration. After a state is loaded, the first iteration is the rest of the interrupted one: empty if
    that was finished, unless `set_epoch` names the next one.

    Args:
        packs: the dataset; it needs no `set_epoch`, because every index names its epoch.
        rank, world_size: this data-parallel rank and their number; by default torch.distributed's, or torchrun's.
        micro_batches: packs of each rank in a step: gradient accumulation, or micro-batches of a pipeline; by default
            `packing.topology.micro_batches`.
        states: `state_dict` of every rank of a checkpoint, or of one, to continue with any number of ranks.
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
        #: packs hold phases of a mixture, or epochs, one after another: their order is the plan's
        self._has_turns = hasattr(packs, "encoder") and packs.encoder.made.get("turns", 1) > 1
        self._orders: LruCache[int, Ints] = LruCache(2)
        name = f"{len(packs)} packs ({packs.fingerprint})" + " in turns" * self._has_turns
        super().__init__(name, Topology(ranks, 1, of_step), rank, states)

    def state_dict(self, num_packs: int | None = None) -> dict[str, Any]:
        """Return the state: numbers and texts, the same on all ranks except for the rank's number.

        Args:
            num_packs: packs that were trained on since this sampler was made, loaded or sent to an epoch. Pass it if a
                loader's workers read ahead; by default all packs that were yielded count.
        """
        return self._state_after(num_packs)

    def of_all_ranks(self, num: int) -> list[tuple[int, int]]:
        """Return (epoch, number) of the first `num` packs of the stream that all ranks share, in its order."""
        topology = self._position.topology
        return [self._item(*divmod(number, len(self._packs)), topology) for number in range(num)]

    def _begin_at(self, position: Position) -> None:
        super()._begin_at(position)
        # every epoch has the same packs: then change their order
        repeats = getattr(self._packs, "repeats", False) and not self._has_turns
        self._stream = PackOrder(len(self._packs), position.topology, repeats)

    def _num_items(self, epoch: int, topology: Topology) -> int:
        return len(self._packs)

    def _epoch_start_position(self, epoch: int) -> Position:
        position, num = super()._epoch_start_position(epoch), len(self._packs)
        number = self._position.epoch * num + self._position.before.first  # steps are whole ones from here on
        left_over = (epoch * num - number) % self._beginning.topology.unit_size
        return replace(position, before=Taken(-left_over if epoch else 0))

    def _item(self, epoch: int, index: int, topology: Topology) -> tuple[int, int]:
        return epoch, int(self._order(epoch, topology)[self._stream.pack_at(epoch * len(self._packs) + index)])

    def _order(self, epoch: int, topology: Topology) -> Ints:
        """Return an epoch's pack numbers, ordered so that steps are even over the ranks with which the stream began.

        Packs with turns are read as planned: steps are even for the ranks of `packing.topology`.
        """
        order = self._orders.get(epoch)
        if order is None:
            self._packs.have_epoch(epoch)
            order = np.arange(num := len(self._packs))
            if self._has_turns:
                order[reading_order(num, topology)] = reading_order(num, topology_of(self._packs.encoder.made))
            elif topology.data_parallel > 1:
                costs, trained = self._packs.costs(epoch)
                seed = epoch_seed(self._packs.config.seed, epoch)
                order = order_for_steps(costs, trained, topology, seed, _COST_JITTER)
            self._orders.put(epoch, order)
        return order


class LengthGroupedSampler(_Dealer[list[int]]):
    """Batches samples of similar lengths, for training without packing: `batch_sampler` of a DataLoader.

    An item is a list of sample numbers. In an epoch every rank has the same number of batches, and each sample comes
    once. The batches of a step have similar lengths, too; steps come in random order. An iteration is an epoch, or the
    rest of it after a state is loaded: empty if the epoch was finished, unless `set_epoch` names the next one. If the
    number of ranks changed within an epoch, batches that make no whole step come first in the next iteration.

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

    _item_word = "batches"

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
        if overlong not in _OVERLONG_CHOICES:
            raise ValueError(f"overlong={overlong!r}; there are: {', '.join(_OVERLONG_CHOICES)}")
        if window < 1:
            raise ValueError(f"window={window}: at least 1 batch")
        are_overlong = np.greater(all_lens, max_batch_tokens or np.inf)
        self._samples = np.flatnonzero(~are_overlong) if overlong == "drop" else np.arange(len(all_lens))
        self._lens = all_lens[self._samples]
        if len(self._samples) < ranks:
            raise ValueError(f"{len(self._samples)} samples for {ranks} ranks: fewer ranks, or more samples")
        self._window = window * (batch_size or (max_batch_tokens or 1) / max(1.0, float(self._lens.mean())))
        self._groups_cache: LruCache[tuple[int, int], LengthGroups] = LruCache(2)
        settings = f"{limits}, {window=}, {seed=}, {overlong=}"
        stream = f"{len(all_lens)} samples ({zlib.crc32(all_lens.tobytes()):08x}, {settings})"
        super().__init__(stream, Topology(ranks), rank)
        if rank == 0 and are_overlong.any():
            num, longest = np.count_nonzero(are_overlong), all_lens.max()
            which = f"{num} of {len(all_lens)} samples have more than max_batch_tokens={max_batch_tokens} tokens"
            _log.warning("%s, at most %d: %s (overlong=%r)", which, longest, _OVERLONG_CHOICES[overlong], overlong)

    def state_dict(self, num_batches: int | None = None) -> dict[str, Any]:
        """Return the state: numbers and texts, the same on all ranks except for the rank's number.

        Args:
            num_batches: batches trained on since this sampler was made, loaded or sent to an epoch. Pass it if
                workers read ahead; by default all batches that were yielded count.
        """
        return self._state_after(num_batches)

    def _groups(self, epoch: int, topology: Topology) -> LengthGroups:
        key = epoch, topology.data_parallel
        groups = self._groups_cache.get(key)
        if groups is None:
            seed = epoch_seed(self._seed, epoch)
            groups = self._groups_cache.put(key, group_by_length(self._lens, key[1], *self._limits, self._window, seed))
        return groups

    def _num_items(self, epoch: int, topology: Topology) -> int:
        return len(self._groups(epoch, topology).order)

    def _item(self, epoch: int, index: int, topology: Topology) -> list[int]:
        samples: list[int] = self._samples[self._groups(epoch, topology).samples_at_order_index(index)].tolist()
        return samples

    def _next_epoch_position(self, position: Position) -> Position:
        following = super()._next_epoch_position(position)
        return following if following.before.first else replace(following, topology=self._beginning.topology)
