"""In which order packs, or steps of packs, are written: every stretch looks like the whole.

    features of packs ──likeness──► a number; near numbers, like packs ──order_packs──► seeded, stratified order

Energon deals each rank and worker a contiguous stretch of the packs. Where media, lengths and costs are spread evenly
over the order, all of them train on the same mixture, whether it shuffles or not.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from energon_pack.run.seeded import Ints, random_keys


def likeness(features: Sequence[Ints], num_bits: int = 16) -> npt.NDArray[np.uint64]:
    """One number a pack, near for packs alike in all features: the Morton code of their ranks.

    Args:
        features: int64[num_packs] each, the most important first.
        num_bits: of each rank in the code.

    Source: Morton, "A Computer Oriented Geodetic Data Base", 1966.
    """
    code = np.zeros(len(features[0]), np.uint64)
    for place, feature in enumerate(features):
        by_value = np.argsort(feature, kind="stable")
        rank = np.empty(len(feature), np.int64)
        rank[by_value] = np.searchsorted(feature[by_value], feature[by_value])  # the same for equal ones
        scaled = (rank * (2**num_bits - 1) // max(1, len(rank) - 1)).astype(np.uint64)
        for bit in range(num_bits):
            at = np.uint64(bit * len(features) + len(features) - 1 - place)
            code |= ((scaled >> np.uint64(bit)) & np.uint64(1)) << at
    return code


def order_packs(features: Sequence[Ints], group: Ints, seed: int = 0) -> npt.NDArray[np.int64]:
    """The packs in the order they are written.

    Args:
        features: int64[num_packs] each; what is to be even over the order.
        group: int64[num_packs]; groups are spread evenly over the order, each for itself.

    Returns:
        int64[num_packs] indices of packs. Every stretch has about the mixture of the whole.
    """
    num = len(group)
    kinds, kind = np.unique(group, return_inverse=True)
    # Kind and likeness in one number, so that one sort does.
    num_bits = min(16, (64 - len(kinds).bit_length()) // len(features))
    code = likeness(features, num_bits) | kind.astype(np.uint64) << np.uint64(num_bits * len(features))
    in_order = np.argsort(code, kind="stable")
    keys = random_keys(num, seed, 10)
    place = np.empty(num)
    for stream, packs in enumerate(np.split(in_order, np.cumsum(np.bincount(kind))[:-1])):
        dealt = packs[_halved(len(packs), seed, 1000 * (1 + stream))]
        jitter = (keys[dealt] >> np.uint64(11)) * 2.0**-53
        place[dealt] = (np.arange(len(packs)) + jitter) / max(1, len(packs))
    return np.argsort(place, kind="stable")


def _halved(num: int, seed: int, stream: int) -> npt.NDArray[np.int64]:
    """An order of `num` units, which come sorted by likeness, in which both halves are alike, and so are their halves.

    Each half takes one of every two neighbours: the left one the first of one pair and the second of the next.
    """
    order = np.arange(num)
    sizes = np.array([num])
    level = 0
    while sizes.max() > 1:
        half = np.repeat(np.arange(len(sizes)), sizes)
        start, num_pairs = (np.cumsum(sizes) - sizes)[half], (sizes + 1) // 2
        pair, place = np.divmod(np.arange(num) - start, 2)
        chance = (random_keys(len(sizes), seed, stream + level) >> np.uint64(63)).astype(np.int64)
        is_alone = 2 * pair + 1 == sizes[half]
        goes_right = (place ^ (pair + chance[half]) & 1) & ~is_alone
        halved = np.empty_like(order)
        halved[start + pair + goes_right * num_pairs[half]] = order
        order = halved
        sizes = np.stack((num_pairs, sizes - num_pairs), axis=1).ravel()
        sizes = sizes[sizes > 0]
        level += 1
    return order
