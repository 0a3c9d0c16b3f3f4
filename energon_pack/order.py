"""In which order packs are written: every stretch looks like the whole, and packs of one step are alike.

    features of packs ──likeness──► a number; near numbers, like packs ──order_packs──► seeded, stratified order

Energon deals each rank and worker a contiguous stretch of the packs. Where media, lengths and costs are spread evenly
over the order, all of them train on the same mixture, whether it shuffles or not.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from energon_pack.bins import Ints, random_keys

_BITS = 16  # of a rank within a likeness


def likeness(features: Sequence[Ints]) -> npt.NDArray[np.uint64]:
    """One number a pack, near for packs alike in all of up to 4 features: the Morton code of their ranks.

    Args:
        features: int64[num_packs] each, the most important first.

    Source: Morton, "A Computer Oriented Geodetic Data Base", 1966.
    """
    code = np.zeros(len(features[0]), np.uint64)
    for place, feature in enumerate(features):
        rank = np.searchsorted(np.sort(feature), feature)
        scaled = (rank * (2**_BITS - 1) // max(1, len(rank) - 1)).astype(np.uint64)
        for bit in range(_BITS):
            at = np.uint64(bit * len(features) + len(features) - 1 - place)
            code |= ((scaled >> np.uint64(bit)) & np.uint64(1)) << at
    return code


def order_packs(
    alike: npt.NDArray[np.uint64], group: Ints, block: Ints, step_size: int = 1, seed: int = 0
) -> npt.NDArray[np.int64]:
    """The packs in the order they are written.

    Args:
        alike: uint64[num_packs] `likeness` of each pack.
        group: int64[num_packs]; groups are spread evenly over the order, each for itself.
        block: int64[num_packs]; packs of one block stay together, blocks come in random order.
        step_size: so many packs in a row are alike, as far as there are such; those left over come last.

    Returns:
        int64[num_packs] indices of packs. Within a block every stretch has about the mixture of the block.
    """
    place = np.empty(len(alike))
    keys = random_keys(len(alike), seed, 10)
    in_order = np.lexsort((keys, alike, group, block))
    kind = np.stack((block, group))[:, in_order]
    edges = np.flatnonzero((kind[:, 1:] != kind[:, :-1]).any(axis=0)) + 1
    for stream, packs in enumerate(np.split(in_order, edges)):
        if len(packs):
            place[packs] = _places(len(packs), step_size, seed, 20 + 3 * stream)
    blocks = np.unique(block)
    turn = random_keys(len(blocks), seed, 11)[np.searchsorted(blocks, block)]
    return np.lexsort((keys, place, turn))


def spread_of_steps(cost: Ints, step_size: int) -> dict[str, float]:
    """How unequal the packs of a step are, where `step_size` packs in a row make a step.

    Returns:
        Means over the steps: `max_over_mean`, the slowest rank's share over the mean, and `cv`.
    """
    num_steps = len(cost) // step_size
    steps = cost[: num_steps * step_size].reshape(num_steps, step_size).astype(np.float64)
    mean = steps.mean(axis=1)
    steps, mean = steps[mean > 0], mean[mean > 0]
    if not len(mean):
        return {"max_over_mean": 1.0, "cv": 0.0}
    return {
        "max_over_mean": round(float((steps.max(axis=1) / mean).mean()), 4),
        "cv": round(float((steps.std(axis=1) / mean).mean()), 4),
    }


def _places(num: int, step_size: int, seed: int, stream: int) -> npt.NDArray[np.float64]:
    """A place in [0, 1) for each of a group's packs, which come sorted by likeness; 2 for those left over.

    Each `step_size` packs in a row are a unit with one place. Units are cut into √n blocks of √n alike; those of a
    block are spread evenly over the whole, in random order.
    """
    num_units = num // step_size
    place = np.full(num, 2.0)
    if not num_units:
        return place
    block_size = math.isqrt(num_units - 1) + 1
    block = np.arange(num_units) // block_size
    keys = random_keys(num_units, seed, stream)
    dealt = np.lexsort((random_keys(num_units, seed, stream + 1), block))  # block by block, each shuffled
    within = np.empty(num_units, np.int64)
    within[dealt] = np.arange(num_units) % block_size
    jitter = (keys >> np.uint64(11)) * 2.0**-53
    rough = (within + jitter) / np.minimum(block_size, num_units - block * block_size)
    step = np.empty(num_units, np.int64)
    step[np.argsort(rough, kind="stable")] = np.arange(num_units)
    place[: num_units * step_size] = np.repeat((step + jitter) / num_units, step_size)
    return place
