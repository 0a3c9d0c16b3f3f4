"""In which order a loader takes packs: each rank its own, steps even over ranks, from anywhere on."""

import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from torch.utils.data import Sampler

from energon_pack.lazy import LazyPackedDataset
from energon_pack.online.length_groups import EpochGroups, Groups, Limits
from energon_pack.online.ranks import ranks_here
from energon_pack.plan.even_steps import lay_out
from energon_pack.run.seeded import Ints, seed_of
from energon_pack.steps.journal import State, begin, refuse_none
from energon_pack.steps.place import Place, Taken
from energon_pack.steps.stream import Stream
from energon_pack.steps.topology import Topology

__all__ = ["LengthGroupedSampler", "PackSampler"]

_log = logging.getLogger(__name__)

#: of the costs of a pack: else the same long packs would meet in a step of every epoch
_JITTER = 0.005

#: what becomes of a sample that alone is longer than a batch of tokens may be
_OVERLONG = {"alone": "each is a batch of its own", "drop": "they are in no batch"}


class PackSampler(Sampler[tuple[int, int]]):
    """The packs of a `LazyPackedDataset` for one rank: shuffled by epoch, every step even over its ranks.

    All ranks share one endless stream of packs, each epoch's once. An iteration gives each rank as many packs as all
    others, in whole steps; the few that are over at the end of an epoch come first in the next iteration.

    Args:
        packs: the dataset; it is told of no epoch: what comes out names its own.
        rank, world_size: data-parallel ones; by default torch.distributed's, or torchrun's.
        micro_batches: packs of each rank in a step: gradient accumulation, or micro-batches of a pipeline; by default
            `packing.topology.micro_batches`.
        states: `state_dict` of every rank of a checkpoint, to go on from there with any number of ranks.

    Raises:
        ValueError: fewer packs than one step has; states of other packs, or not of all ranks.
    """

    def __init__(
        self,
        packs: LazyPackedDataset,
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
        self._beginning = Place(len(packs), packs.fingerprint, topology)
        self._orders: dict[int, Ints] = {}
        self._go_on(states)

    def _go_on(self, states: Sequence[State]) -> None:
        share = begin(self._beginning, self._ranks, self._rank, states)
        self._share = replace(share, taken=Taken())
        self._stream = Stream(share.place.num, share.place.topology)
        #: packs that this rank had since the place of its share
        self._turn = self._begun = share.taken.first
        is_other = share.place.topology.micro_batches != self._of_step
        #: turns before the first whole step, of a state whose steps had another number of packs
        self._odd = self._turn % self._of_step if is_other else 0
        #: and before that
        self._before = states[0]["batches"] - self._turn if len(states) == 1 else 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The packs that are left of an iteration, or of the next one: epoch and number of each."""
        end = self._end(self._iteration())
        while self._turn < end:
            self._turn += 1
            yield self._pack(self._share.position(self._turn - 1))

    def __len__(self) -> int:
        """Packs of the iteration that is under way or comes next."""
        iteration = self._iteration()
        return self._end(iteration) - max(0, self._end(iteration - 1))

    def set_epoch(self, epoch: int) -> None:
        """Go to the first pack of an iteration, unless this is somewhere in it."""
        start, end = max(0, self._end(epoch - 1)), self._end(epoch)
        if not start <= self._turn < end:
            self._turn = self._begun = start

    def state_dict(self, num_packs: int | None = None) -> dict[str, Any]:
        """Where this rank is: numbers and texts.

        Args:
            num_packs: that training had since this sampler was made, loaded or sent to an epoch, where a loader's
                workers read ahead and nobody else counts; by default all that were given out.
        """
        if num_packs is not None and not 0 <= num_packs <= self._turn - self._begun:
            raise ValueError(
                f"num_packs={num_packs}: {self._turn - self._begun} packs were given out since it was made"
            )
        turn = self._turn if num_packs is None else self._begun + num_packs
        share = replace(self._share, taken=Taken(turn))
        return {"share": asdict(share), "ranks": self._ranks, "rank": self._rank, "batches": self._before + turn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where this rank was; another number of ranks goes on with `states` of all.

        Raises:
            ValueError: it is another rank's, or of other packs.
        """
        self._go_on([state])

    def _iteration(self) -> int:
        """Which iteration the next pack is of."""
        position = self._share.place.taken.left(self._turn * self._ranks)
        iteration = max(0, position // self._share.place.num - 1)
        while self._end(iteration) <= self._turn:
            iteration += 1
        return iteration

    def _end(self, iteration: int) -> int:
        """The turn after the last one of an iteration: whole steps of packs of its epoch and those before."""
        place = self._share.place
        left = place.taken.index((iteration + 1) * place.num)
        return (left // self._ranks - self._odd) // self._of_step * self._of_step + self._odd

    def _pack(self, position: int) -> tuple[int, int]:
        epoch = position // self._share.place.num
        return epoch, int(self._order(epoch)[self._stream.index(position)])

    def _order(self, epoch: int) -> Ints:
        """The packs of an epoch so that all steps of the ranks for whom it was begun are even."""
        if epoch not in self._orders:
            while len(self._orders) > 1:
                self._orders.pop(next(iter(self._orders)))
            self._packs.have_epoch(epoch)
            topology, order = self._share.place.topology, np.arange(len(self._packs))
            if topology.data_parallel > 1:
                costs, trained = self._packs.costs(epoch)
                seed = seed_of(self._packs.config.seed, epoch)
                order = lay_out(costs, trained, topology, seed, self._packs.config.packing.step_weights, _JITTER)
            self._orders[epoch] = order
        return self._orders[epoch]


class LengthGroupedSampler(Sampler[list[int]]):
    """Batches of samples of like lengths, for training without packing: `batch_sampler` of a DataLoader.

    Every rank has as many batches as all others in an epoch, those of one step of like lengths, too; each sample comes
    once in it, and steps come in random order. An iteration is an epoch, or what is left of it.

    Args:
        lens: tokens of each sample.
        batch_size: samples of a batch; or
        max_batch_tokens: its samples × the tokens of its longest.
        overlong: a sample with more than `max_batch_tokens` is a batch of its own (`alone`), or in none (`drop`); a
            warning says how many there are.
        rank, world_size: data-parallel ones; by default torch.distributed's, or torchrun's.
        seed: with the epoch it says who is in a batch with whom, and when.
        window: batches whose samples are sorted together: fewer leave more to chance, and more padding.

    Raises:
        ValueError: both limits or none, fewer samples than ranks.
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
        if self._rank == 0 and are_overlong.any():
            num, longest = np.count_nonzero(are_overlong), given.max()
            which = f"{num} of {len(given)} samples have more than max_batch_tokens={max_batch_tokens} tokens"
            _log.warning("%s, at most %d: %s (overlong=%r)", which, longest, _OVERLONG[overlong], overlong)
        self._say_over()

    def __iter__(self) -> Iterator[list[int]]:
        """The batches that are left of an epoch, or of the next one: numbers of samples."""
        self._place = self._within(self._place)
        groups = self._of(self._place)
        while self._place.turn < len(groups.steps):
            batch = int(groups.steps[self._place.turn, self._rank])
            self._place = self._place._replace(turn=self._place.turn + 1)
            yield groups.samples(batch).tolist()

    def __len__(self) -> int:
        """Batches of the epoch that is under way or comes next."""
        return len(self._of(self._within(self._place)).steps)

    def set_epoch(self, epoch: int) -> None:
        """Go to the first batch of an epoch, unless this is somewhere in it."""
        if self._within(self._place).epoch != epoch:
            self._place = self._begun = _Turn(epoch)

    def state_dict(self, num_batches: int | None = None) -> dict[str, Any]:
        """Where all ranks are: numbers and texts.

        Args:
            num_batches: that training had since this sampler was made, loaded or sent to an epoch, where a loader's
                workers read ahead and nobody else counts; by default all that were given out.
        """
        place = self._place
        if num_batches is not None:
            place = self._within(self._begun._replace(turn=self._begun.turn + num_batches))
        before = [*place.before, (self._ranks, place.turn)]
        return {"which": self._which, "epoch": place.epoch, "steps": [list(steps) for steps in before]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of any rank, with any number of ranks: they share what is left of the epoch.

        Raises:
            ValueError: it is of other samples or settings.
        """
        if state.get("which") != self._which:
            raise ValueError(f"a state of other samples or settings: {state.get('which')}, these are {self._which}")
        before = [(int(ranks), int(turn)) for ranks, turn in state["steps"] if turn]
        turn = before.pop()[1] if before and before[-1][0] == self._ranks else 0
        self._place = self._begun = self._within(_Turn(int(state["epoch"]), tuple(before), turn))
        self._say_over()

    def _say_over(self) -> None:
        if self._rank == 0 and (over := self._of(self._place).num_over):
            _log.warning(
                "epoch %d: %d samples are in no batch, others in another epoch: after whole steps of %d ranks there are"
                " fewer left than one for each",
                self._place.epoch,
                over,
                self._ranks,
            )

    def _of(self, place: "_Turn") -> Groups:
        return self._groups.of(place.epoch, self._ranks, place.before)

    def _within(self, place: "_Turn") -> "_Turn":
        """The same place as that of a batch which is still to come: after the last one of an epoch, the next epoch."""
        while place.turn >= (num := len(self._of(place).steps)):
            place = _Turn(place.epoch + 1, (), place.turn - num)
        return place


class _Turn(NamedTuple):
    """A step of an epoch."""

    epoch: int = 0
    #: what other numbers of ranks had of it
    before: tuple[tuple[int, int], ...] = ()
    turn: int = 0
