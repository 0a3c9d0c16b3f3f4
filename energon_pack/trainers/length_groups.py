"""Batch samples of like lengths for training without packing, as many batches for each rank. Pure.

    lengths ─shuffled into windows, sorted in each─► neighbours make a batch, neighbouring batches a step ─shuffled─►

Every other window is sorted downwards, so that no batch joins the longest samples of one window and the shortest of the
next.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from energon_pack.plan.bins.planned_bins import Bins
from energon_pack.run.seeded_random import Ints, random_keys


class LengthGroups(NamedTuple):
    """The batches of an epoch, and their order."""

    #: the samples of each batch: starts, and sample numbers
    batches: Bins
    #: int64[num_batches], the batches in the order in which all ranks together take them, step by step
    order: Ints

    def samples_at_order_index(self, place: int) -> Ints:
        """Return the sample numbers of the batch that is at index `place` of `order`."""
        batch, (starts, items) = self.order[place], self.batches
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
