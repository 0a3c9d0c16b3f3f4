"""Samplers that deal packs or samples to ranks in even steps, and resume from a state with any number of ranks.

`group_by_length` makes the batches and steps of `LengthGroupedSampler`:

    lengths ─shuffled into windows, sorted in each─► neighbours make a batch, neighbouring batches a step ─shuffled─►

Every other window is sorted downwards, so that no batch joins the longest samples of one window and the shortest of the
next.
"""

import logging
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from energon_pack.plan.bins.planned_bins import Bins
from energon_pack.plan.even_steps import order_packs_for_even_steps
from energon_pack.run.bounded_memory import LruCache
from energon_pack.run.seeded_random import Ints, epoch_seed, random_keys
from energon_pack.steps.position import PackOrder, Position, State, TakenNumbers
from energon_pack.steps.topology import Topology, reading_order, topology_of
from energon_pack.trainers.dealer import RankSampler, ranks_to_deal_to

__all__ = ["LengthGroupedSampler", "PackSampler"]


class LengthGroups(NamedTuple):
    """The batches of an epoch, and their order."""

    #: the samples of each batch: starts, and sample numbers
    batches: Bins
    #: int64[num_batches], the batches in the order in which all ranks together take them, step by step
    order: Ints

    def samples_at_order_index(self, order_index: int) -> Ints:
        """Return the sample numbers of the batch that is at index `order_index` of `order`."""
        batch, (starts, items) = self.order[order_index], self.batches
        samples: Ints = items[starts[batch] : starts[batch + 1]]
        return samples


def group_by_length(
    lens: Ints, num_ranks: int, batch_size: int | None, max_batch_tokens: int | None, window: float, seed: int
) -> LengthGroups:
    """Group samples of like lengths into batches, as many for each rank, in an order independent of length.

    Each sample is in one batch. To fill the last step, batches are made a sample smaller, or some are halved.
    Only if every batch is a single sample, fewer than `num_ranks` batches may stand behind the last whole step.

    Args:
        lens: int64[num] tokens; a sample longer than a batch may be is a batch of its own.
        batch_size, max_batch_tokens: samples, or samples × tokens of the longest; one of the two is None.
        window: how many samples are sorted together, perhaps a fraction; a smaller one mixes samples better and
            pads more.
    """
    order = _sorted_windows(lens, window, seed)
    num = len(order)
    if max_batch_tokens is not None:
        starts = _starts_by_tokens(lens[order], max_batch_tokens)
    else:
        starts = _starts_by_count(num, -(-num // (batch_size or 1)))
    num_batches = -(-(len(starts) - 1) // num_ranks) * num_ranks
    if num_batches > num:  # even batches of one sample do not make whole steps
        starts = np.arange(num + 1)
    elif max_batch_tokens is not None:
        starts = _halve_batches(starts, num_batches)
    else:
        starts = _starts_by_count(num, num_batches)
    by_chance, whole = np.argsort(random_keys(len(starts) - 1, seed, 31)), (len(starts) - 1) // num_ranks * num_ranks
    steps = np.sort(by_chance[:whole]).reshape(-1, num_ranks)
    whose = np.argsort(random_keys(steps.size, seed, 32).reshape(steps.shape), axis=1)
    steps = np.take_along_axis(steps, whose, axis=1)[np.argsort(random_keys(len(steps), seed, 33))]
    return LengthGroups(Bins(starts, order), np.concatenate((steps.ravel(), by_chance[whole:])))


def _sorted_windows(lens: Ints, window: float, seed: int) -> Ints:
    """Order the samples: windows of random samples, each sorted, so that neighbours have similar lengths."""
    num = len(lens)
    shuffled = np.argsort(random_keys(num, seed, 30))
    window_of = np.arange(num) * max(1, round(num / window)) // max(1, num)
    up_and_down: npt.NDArray[np.int64] = np.where(window_of % 2, -lens[shuffled], lens[shuffled])
    return shuffled[np.lexsort((up_and_down, window_of))]


def _starts_by_count(num: int, num_batches: int) -> Ints:
    """Return the starts of batches whose sizes differ by at most one sample."""
    return np.arange(num_batches + 1) * num // max(1, num_batches)


def _starts_by_tokens(lens: Ints, max_batch_tokens: int) -> Ints:
    """Return the starts of batches as large as allowed; a sample that alone is larger is a batch of its own."""
    starts, longest = [0], 0
    for number, length in enumerate(lens.tolist()):
        longest = max(longest, length)
        if number > starts[-1] and longest * (number - starts[-1] + 1) > max_batch_tokens:
            starts.append(number)
            longest = length
    return np.array([*starts, len(lens)])


def _halve_batches(starts: Ints, num_batches: int) -> Ints:
    """Halve the batches with most samples until there are `num_batches`."""
    while len(starts) - 1 < num_batches:
        sizes = np.diff(starts)
        most = int(sizes.argmax())
        starts = np.insert(starts, most + 1, starts[most] + sizes[most] // 2)
    return starts


_log = logging.getLogger(__name__)

#: random share added to a pack's cost, so that the same long packs do not share a step in every epoch
_COST_JITTER = 0.005

#: `overlong`: the treatment of a sample with more tokens than a batch may have, as a warning tells it
_OVERLONG_CHOICES = {"alone": "each is a batch of its own", "drop": "they are in no batch"}


class PackSampler(RankSampler[tuple[int, int]]):
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
        rank, ranks = ranks_to_deal_to(rank, world_size)
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
        return replace(position, before=TakenNumbers(-left_over if epoch else 0))

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
                order = order_packs_for_even_steps(costs, trained, topology, seed, _COST_JITTER)
            self._orders.put(epoch, order)
        return order


class LengthGroupedSampler(RankSampler[list[int]]):
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
        rank, ranks = ranks_to_deal_to(rank, world_size)
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
