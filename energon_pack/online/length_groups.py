"""Which samples make a batch where nothing is packed: some of like lengths, and as many batches for each rank. Pure.

    lengths ─shuffled into windows, sorted in each─► neighbours make a batch, neighbouring batches a step ─shuffled─►

Windows are sorted up and down by turns, so that no batch has the longest of one and the shortest of the next.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from energon_pack.plan.bins.base import Bins
from energon_pack.run.seeded import Ints, random_keys, seed_of


class Groups(NamedTuple):
    """The batches of an epoch."""

    #: samples of each batch
    batches: Bins
    #: int64[num_steps, num_ranks], the batch of each rank in each step
    steps: Ints
    #: samples that are in no batch: fewer than ranks, where no batch has two
    num_over: int

    def samples(self, batch: int) -> Ints:
        """Those of a batch."""
        starts, items = self.batches
        found: Ints = items[starts[batch] : starts[batch + 1]]
        return found


class Limits(NamedTuple):
    """How large a batch may be: one of the two is given."""

    #: samples
    batch_size: int | None = None
    #: samples × tokens of the longest; a sample that is longer is a batch of its own
    max_batch_tokens: int | None = None

    def check(self) -> None:
        """Raises ValueError: none or both are given."""
        given = f"batch_size={self.batch_size}, max_batch_tokens={self.max_batch_tokens}"
        if (self.batch_size is None) is (self.max_batch_tokens is None):
            raise ValueError(f"{given}: give one of the two")
        if (self.batch_size or self.max_batch_tokens or 0) < 1:
            raise ValueError(f"{given}: at least 1")

    def are_exceeded(self, lens: Ints) -> npt.NDArray[np.bool_]:
        """bool[num], whether a sample alone is longer than a batch may be."""
        longest = self.max_batch_tokens
        return np.zeros(len(lens), np.bool_) if longest is None else np.greater(lens, longest)

    def samples(self, lens: Ints) -> float:
        """How many samples a batch has, about."""
        return self.batch_size or (self.max_batch_tokens or 1) / max(1.0, float(lens.mean()))


def group(lens: Ints, num_ranks: int, limits: Limits, window: float, seed: int) -> Groups:
    """Batches of samples of like lengths, as many for each rank, in an order that says nothing of their lengths.

    Each sample is in one batch. Where their number does not come to whole steps, batches are a sample smaller, or some
    are halved; only where each batch is a single sample, fewer than `num_ranks` of them are over.

    Args:
        lens: int64[num] tokens; a sample that is longer than a batch may be is one alone.
        window: samples that are sorted together; fewer: more chance in who meets whom, more padding.
    """
    order = _by_windows(lens, window, seed)
    num = len(order)
    if limits.max_batch_tokens is not None:
        starts = _cut(lens[order], limits.max_batch_tokens)
    else:
        starts = _evenly(num, -(-num // (limits.batch_size or 1)))
    wanted = -(-(len(starts) - 1) // num_ranks) * num_ranks
    if wanted > num:  # a sample each does not come to whole steps
        starts, wanted = np.arange(num + 1), num // num_ranks * num_ranks
    elif limits.max_batch_tokens is not None:
        starts = _halved(starts, wanted)
    else:
        starts = _evenly(num, wanted)
    chosen = np.sort(np.argsort(random_keys(len(starts) - 1, seed, 31))[:wanted])
    steps = chosen.reshape(-1, num_ranks)
    whose = np.argsort(random_keys(steps.size, seed, 32).reshape(steps.shape), axis=1)
    steps = np.take_along_axis(steps, whose, axis=1)[np.argsort(random_keys(len(steps), seed, 33))]
    return Groups(Bins(starts, order), steps, len(starts) - 1 - wanted)


#: of an epoch that others began: so many ranks had so many steps of it, one after the other
Before = Sequence[tuple[int, int]]


class EpochGroups:
    """The batches of each epoch, also of one that was begun with another number of ranks.

    Args:
        window: batches whose samples are sorted together.
        samples: int64[num], numbers of those that are in batches; by default all.
    """

    def __init__(self, lens: Ints, limits: Limits, window: int, seed: int, samples: Ints | None = None):
        if window < 1:
            raise ValueError(f"window={window}: at least 1 batch")
        self._lens, self._limits, self._seed = lens, limits, seed
        self._samples = np.arange(len(lens)) if samples is None else samples
        self._window = window * limits.samples(lens[self._samples])
        self._kept: dict[tuple[int, tuple[tuple[int, int], ...], int], Groups] = {}

    def of(self, epoch: int, num_ranks: int, before: Before = ()) -> Groups:
        """The batches of an epoch, or what is left of it for these ranks."""
        key = epoch, tuple(before), num_ranks
        if key not in self._kept:
            while len(self._kept) > 1:
                self._kept.pop(next(iter(self._kept)))
            left, seed = self._samples, seed_of(self._seed, epoch)
            for ranks, num_steps in before:
                had = group(self._lens[left], ranks, self._limits, self._window, seed)
                gone = [had.samples(batch) for batch in had.steps[:num_steps].ravel().tolist()]
                left = np.delete(left, np.concatenate(gone))
            batches, steps, num_over = group(self._lens[left], num_ranks, self._limits, self._window, seed)
            self._kept[key] = Groups(batches._replace(items=left[batches.items]), steps, num_over)
        return self._kept[key]


def padding(lens: Ints, groups: Groups) -> float:
    """The share of padding in batches that are as wide as their longest sample."""
    starts, items = groups.batches
    used = np.zeros(len(starts) - 1, bool)
    used[groups.steps.ravel()] = True
    sizes, longest = np.diff(starts)[used], np.maximum.reduceat(lens[items], starts[:-1])[used]
    return 1 - float(np.add.reduceat(lens[items], starts[:-1])[used].sum()) / float((sizes * longest).sum())


def _by_windows(lens: Ints, window: float, seed: int) -> Ints:
    """The samples in an order in which neighbours are of like lengths, and windows follow each other by chance."""
    num = len(lens)
    shuffled = np.argsort(random_keys(num, seed, 30))
    of = np.arange(num) * max(1, round(num / window)) // max(1, num)
    up_and_down: npt.NDArray[np.int64] = np.where(of % 2, -lens[shuffled], lens[shuffled])
    return shuffled[np.lexsort((up_and_down, of))]


def _evenly(num: int, num_batches: int) -> Ints:
    """Starts of batches whose sizes differ by one at most."""
    return np.arange(num_batches + 1) * num // max(1, num_batches)


def _cut(lens: Ints, max_batch_tokens: int) -> Ints:
    """Starts of batches that are as large as they may be; of one sample where that alone is larger."""
    starts, longest = [0], 0
    for number, length in enumerate(lens.tolist()):
        longest = max(longest, length)
        if number > starts[-1] and longest * (number - starts[-1] + 1) > max_batch_tokens:
            starts.append(number)
            longest = length
    return np.array([*starts, len(lens)])


def _halved(starts: Ints, num_batches: int) -> Ints:
    """So many batches: those with most samples in two."""
    while len(starts) - 1 < num_batches:
        sizes = np.diff(starts)
        most = int(sizes.argmax())
        starts = np.insert(starts, most + 1, starts[most] + sizes[most] // 2)
    return starts
