"""Samplers that deal packs or samples to ranks, make steps even over them, and go on from any state."""

import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from energon_pack.online.length_groups import EpochGroups, Groups, Limits
from energon_pack.online.ranks import ranks_here
from energon_pack.plan.even_steps import lay_out
from energon_pack.run.recent import Recent
from energon_pack.run.seeded import Ints, seed_of
from energon_pack.steps.journal import State, begin, reading, refuse_none
from energon_pack.steps.place import Place, Taken
from energon_pack.steps.stream import Stream
from energon_pack.steps.topology import Topology

__all__ = ["LengthGroupedSampler", "PackSampler"]

_log = logging.getLogger(__name__)

#: random share added to a pack's cost, so that the same long packs do not share a step in every epoch
_JITTER = 0.005

_OVER = "the state is of the end of an epoch: this iteration has nothing of it, and the one after has the next epoch"

#: `overlong`: the treatment of a sample with more tokens than a batch may have, as a warning tells it
_OVERLONG = {"alone": "each is a batch of its own", "drop": "they are in no batch"}


class PacksOfEpochs(Protocol):
    """The part of a `LazyPackedDataset` or `PackedDataset` that a sampler uses."""

    #: packs of each rank in a step
    micro_batches: int
    #: identifies the packs
    fingerprint: str

    @property
    def config(self) -> Any:
        """Its `seed`, and `packing.step_weights`."""

    def __len__(self) -> int:
        """Number of packs in every epoch."""

    def have_epoch(self, epoch: int) -> None:
        """Plan an epoch."""

    def costs(self, epoch: int) -> tuple[npt.NDArray[np.float64], Ints]:
        """Return float64[2, num_packs], what each pack of an epoch costs, and int64[num_packs], its trained tokens."""


class PackSampler(Sampler[tuple[int, int]]):
    """Deals the packs of a `LazyPackedDataset` or a `PackedDataset` to ranks, every step even over the ranks.

    All ranks share one endless stream, which has each epoch's packs once. An iteration gives every rank the same number
    of packs, in whole steps. The few packs left over at the end of an epoch come first in the next iteration. The first
    iteration after a state is the rest of the state's own: nothing if that was finished, unless `set_epoch` names the
    next one.

    Args:
        packs: the dataset; it needs no `set_epoch`, because every index names its epoch.
        rank, world_size: this data-parallel rank and their number; by default torch.distributed's, or torchrun's.
        micro_batches: packs of each rank in a step: gradient accumulation, or micro-batches of a pipeline; by default
            `packing.topology.micro_batches`.
        states: `state_dict` of every rank of a checkpoint, to go on from there with any number of ranks.

    Raises:
        ValueError: there are fewer packs than one step has; states are from other packs, or a rank's is missing.
    """

    def __init__(
        self,
        packs: PacksOfEpochs,
        rank: int | None = None,
        world_size: int | None = None,
        micro_batches: int | None = None,
        states: Sequence[State] = (),
    ):
        if not hasattr(packs, "costs"):
            raise ValueError(f"packs is a {type(packs).__name__}: a LazyPackedDataset; a stream deals its packs itself")
        refuse_none(states, "state_dict()")
        self._packs = packs
        self._rank, self._ranks = ranks_here(rank, world_size)
        self._of_step = packs.micro_batches if micro_batches is None else micro_batches
        if self._of_step < 1:
            raise ValueError(f"micro_batches={micro_batches}: at least 1")
        if len(packs) < self._ranks * self._of_step:
            raise ValueError(
                f"{len(packs)} packs are fewer than a step of {self._ranks} ranks × {self._of_step} micro_batches has:"
                " more samples, a smaller packing.max_token_len, or fewer ranks"
            )
        topology = Topology(self._ranks, 1, self._of_step)
        repeats = getattr(packs, "repeats", False)  # every epoch has the same packs: then change their order
        self._beginning = Place(len(packs), packs.fingerprint, topology, reorders=repeats)
        self._orders: Recent[int, Ints] = Recent(2)
        self._go_on(states)

    def _go_on(self, states: Sequence[State]) -> None:
        share = begin(self._beginning, self._ranks, self._rank, states)
        self._share = replace(share, taken=Taken())
        self._stream = Stream(share.place.num, share.place.topology, share.place.reorders)
        #: packs this rank took since its share began
        self._turn = self._begun = share.taken.first
        is_other = share.place.topology.micro_batches != self._of_step
        #: turns before the first whole step, if the state's steps had another number of packs
        self._odd = self._turn % self._of_step if is_other else 0
        #: packs this rank took before its share began
        self._before = states[0]["batches"] - self._turn if len(states) == 1 else 0
        #: the state is of the end of an iteration, and the next one is not begun
        self._is_over = self._iteration() > 0 and self._turn == self._end(self._iteration() - 1)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (epoch, number) of the packs left in this iteration; if none is left, of the packs in the next one."""
        is_over, self._is_over = self._is_over, False
        return _nothing(self._rank) if is_over else self._rest()

    def _rest(self) -> Iterator[tuple[int, int]]:
        end = self._end(self._iteration())
        while self._turn < end:
            self._turn += 1
            yield self._pack(self._share.position(self._turn - 1))

    def __len__(self) -> int:
        """Number of packs in the iteration that is under way or comes next."""
        iteration = self._iteration()
        return self._end(iteration) - max(0, self._end(iteration - 1))

    def set_epoch(self, epoch: int) -> None:
        """Go to the first pack of an iteration, unless this sampler is inside it, or its state was of its end."""
        self._is_over &= epoch == self._iteration() - 1
        if self._is_over:
            return
        start, end = max(0, self._end(epoch - 1)), self._end(epoch)
        if not start <= self._turn < end:
            self._turn = self._begun = start

    def state_dict(self, num_packs: int | None = None) -> dict[str, Any]:
        """Return this rank's state: numbers and texts.

        Args:
            num_packs: packs that were trained on since this sampler was made, loaded or sent to an epoch. Pass it if a
                loader's workers read ahead; by default all packs that were yielded count.
        """
        if num_packs is not None and not 0 <= num_packs <= self._turn - self._begun:
            raise ValueError(
                f"num_packs={num_packs}: {self._turn - self._begun} packs were given out since it was made"
            )
        turn = self._turn if num_packs is None else self._begun + num_packs
        share = replace(self._share, taken=Taken(turn))
        return {"share": asdict(share), "ranks": self._ranks, "rank": self._rank, "batches": self._before + turn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from this rank's state; to go on with another number of ranks, pass `states` of all ranks.

        Raises:
            ValueError: the state is another rank's, or from other packs.
        """
        refuse_none([state], "state_dict()")
        self._go_on([state])

    def of_all_ranks(self, num: int) -> list[tuple[int, int]]:
        """Return (epoch, number) of the first `num` packs of the stream that all ranks share, in its order."""
        return [self._pack(position) for position in range(num)]

    def _iteration(self) -> int:
        """Return the iteration to which the next pack belongs."""
        position = self._share.place.taken.left(self._turn * self._ranks)
        iteration = max(0, position // self._share.place.num - 1)
        while self._end(iteration) <= self._turn:
            iteration += 1
        return iteration

    def _end(self, iteration: int) -> int:
        """Return the turn at which an iteration ends: the last whole step of the packs up to its epoch."""
        place = self._share.place
        left = place.taken.index((iteration + 1) * place.num)
        return (left // self._ranks - self._odd) // self._of_step * self._of_step + self._odd

    def _pack(self, position: int) -> tuple[int, int]:
        epoch = position // self._share.place.num
        return epoch, int(self._order(epoch)[self._stream.index(position)])

    def _order(self, epoch: int) -> Ints:
        """Order the packs of an epoch so that steps are even over the ranks that began the epoch."""
        order = self._orders.get(epoch)
        if order is None:
            self._packs.have_epoch(epoch)
            topology, order = self._share.place.topology, np.arange(len(self._packs))
            if topology.data_parallel > 1:
                costs, trained = self._packs.costs(epoch)
                seed = seed_of(self._packs.config.seed, epoch)
                order = lay_out(costs, trained, topology, seed, self._packs.config.packing.step_weights, _JITTER)
            self._orders.put(epoch, order)
        return order


class LengthGroupedSampler(Sampler[list[int]]):
    """Batches samples of like lengths, for training without packing: `batch_sampler` of a DataLoader.

    In an epoch every rank has the same number of batches, and each sample comes once. The batches of a step have like
    lengths, too; steps come in random order. An iteration is an epoch, or the rest of it: after the state of a finished
    epoch nothing, unless `set_epoch` names the next one.

    Args:
        lens: tokens of each sample.
        batch_size: samples of a batch; give this or `max_batch_tokens`.
        max_batch_tokens: largest number of samples × tokens of the longest sample in a batch.
        overlong: a sample with more than `max_batch_tokens` is a batch of its own (`alone`), or in none (`drop`); a
            warning says how many there are.
        rank, world_size: this data-parallel rank and their number; by default torch.distributed's, or torchrun's.
        seed: with the epoch it decides which samples share a batch, and the order.
        window: batches whose samples are sorted together: fewer mix samples better and pad more.

    Raises:
        ValueError: both limits or none are given; there are fewer samples than ranks.
    """

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
        self._rank, self._ranks = ranks_here(rank, world_size)
        given, limits = np.asarray(lens, np.int64), Limits(batch_size, max_batch_tokens)
        limits.check()
        if overlong not in _OVERLONG:
            raise ValueError(f"overlong={overlong!r}; there are: {', '.join(_OVERLONG)}")
        are_overlong = limits.are_exceeded(given)
        samples = np.flatnonzero(~are_overlong) if overlong == "drop" else np.arange(len(given))
        if len(samples) < self._ranks:
            raise ValueError(f"{len(samples)} samples for {self._ranks} ranks: fewer ranks, or more samples")
        self._groups = EpochGroups(given, limits, window, seed, samples)
        settings = f"{batch_size}-{max_batch_tokens}-{window}-{seed}{'-drop' * (overlong == 'drop')}"
        self._which = f"{zlib.crc32(given.tobytes()):08x}-{len(given)}-{settings}"
        self._place = self._begun = _Turn()
        self._is_over = False  # the loaded state is of the end of an epoch, and the next one is not begun
        if self._rank == 0 and are_overlong.any():
            num, longest = np.count_nonzero(are_overlong), given.max()
            which = f"{num} of {len(given)} samples have more than max_batch_tokens={max_batch_tokens} tokens"
            _log.warning("%s, at most %d: %s (overlong=%r)", which, longest, _OVERLONG[overlong], overlong)
        self._say_over()

    def __iter__(self) -> Iterator[list[int]]:
        """Yield batches, as numbers of samples: those left in this epoch, or if none is left, the next epoch's."""
        is_over, self._is_over = self._is_over, False
        return _nothing(self._rank) if is_over else self._rest()

    def _rest(self) -> Iterator[list[int]]:
        self._place = self._within(self._place)
        groups = self._of(self._place)
        while self._place.turn < len(groups.steps):
            batch = int(groups.steps[self._place.turn, self._rank])
            self._place = self._place._replace(turn=self._place.turn + 1)
            yield groups.samples(batch).tolist()

    def __len__(self) -> int:
        """Number of batches in the epoch that is under way or comes next."""
        return len(self._of(self._within(self._place)).steps)

    def set_epoch(self, epoch: int) -> None:
        """Go to the first batch of an epoch, unless this sampler is inside it, or its state was of its end."""
        self._is_over &= epoch == self._place.epoch
        if not self._is_over and self._within(self._place).epoch != epoch:
            self._place = self._begun = _Turn(epoch)

    def state_dict(self, num_batches: int | None = None) -> dict[str, Any]:
        """Return the state, which is the same on all ranks: numbers and texts.

        Args:
            num_batches: batches trained on since this sampler was made, loaded or sent to an epoch. Pass it if
                workers read ahead; by default all batches that were yielded count.
        """
        place = self._place
        if num_batches is not None:
            place = self._within(self._begun._replace(turn=self._begun.turn + num_batches), is_end_within=True)
        before = [*place.before, (self._ranks, place.turn)]
        return {"which": self._which, "epoch": place.epoch, "steps": [list(steps) for steps in before]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of any rank, with any number of ranks: they share the rest of the epoch.

        Raises:
            ValueError: the state is from other samples or settings.
        """
        if not isinstance(state, Mapping) or state.get("which") != self._which:
            state = state if isinstance(state, Mapping) else {}
            raise ValueError(f"a state of other samples or settings: {state.get('which')}, these are {self._which}")
        with reading("state_dict()"):
            before = [(int(ranks), int(turn)) for ranks, turn in state["steps"] if turn]
            epoch = int(state["epoch"])
        turn = before.pop()[1] if before and before[-1][0] == self._ranks else 0
        self._place = self._begun = _Turn(epoch, tuple(before), turn)
        self._is_over = self._within(self._place) != self._place
        self._say_over()

    def _say_over(self) -> None:
        place = self._within(self._place)
        if self._rank == 0 and (over := self._of(place).num_over):
            _log.warning(
                "epoch %d: %d samples are in no batch, others in another epoch: after whole steps of %d ranks there are"
                " fewer left than one for each",
                place.epoch,
                over,
                self._ranks,
            )

    def _of(self, place: "_Turn") -> Groups:
        return self._groups.of(place.epoch, self._ranks, place.before)

    def _within(self, place: "_Turn", is_end_within: bool = False) -> "_Turn":
        """Return the place of the next batch: after an epoch's last step, this is the next epoch's first.

        Args:
            is_end_within: whether the place after its last step belongs to an epoch.
        """
        while place.turn >= (num := len(self._of(place).steps)) + is_end_within:
            place = _Turn(place.epoch + 1, (), place.turn - num)
        return place


class _Turn(NamedTuple):
    """The place of a step in an epoch."""

    epoch: int = 0
    #: steps that other numbers of ranks took of the epoch: (ranks, steps)
    before: tuple[tuple[int, int], ...] = ()
    turn: int = 0


def _nothing(rank: int) -> Iterator[Any]:
    """Say that a state's epoch is finished."""
    if rank == 0:
        _log.warning(_OVER)
    return iter(())
