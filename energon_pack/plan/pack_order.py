"""Order packs, or steps of packs, so that every stretch looks like the whole.

    features of packs ──similarity_codes──► a number; near numbers, like packs ──order_packs──► seeded, stratified order

Energon deals each rank and worker a contiguous stretch of the packs. If media, lengths and costs are spread evenly
over the order, all ranks and workers train on the same mixture, with or without a shuffle.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from energon_pack.run.seeded_random import Ints, random_keys

Floats = npt.NDArray[np.float64]

_STRETCH_SIZES = (16, 64)  # packs of a stretch; each such stretch has about the shares of a mixture
_SHARE_LEVELS = 8  # levels of the share of a pack's largest kind: more levels would tell like packs apart
_SWAP_ROUNDS = 6
_MAX_TRIED_PACKS = 24  # packs of each step that are tried for a swap
_MANY_PACKS = 500_000  # packs: if there are more, half as many are tried
_TOTAL_WEIGHT = 0.3  # weight of even numbers of trained tokens, relative to even shares
_PAIRS_AT_ONCE = 512  # pairs of steps that are handled together


def similarity_codes(features: Sequence[Ints], num_bits: int = 16) -> npt.NDArray[np.uint64]:
    """Return a number for each pack, near for packs that are alike in all features: the Morton code of their ranks."""
    code = np.zeros(len(features[0]), np.uint64)
    for place, feature in enumerate(features):
        by_value = np.argsort(feature, kind="stable")
        rank = np.empty(len(feature), np.int64)
        rank[by_value] = np.searchsorted(feature[by_value], feature[by_value])  # equal values get equal ranks
        scaled = (rank * (2**num_bits - 1) // max(1, len(rank) - 1)).astype(np.uint64)
        for bit in range(num_bits):
            shift = np.uint64(bit * len(features) + len(features) - 1 - place)
            code |= ((scaled >> np.uint64(bit)) & np.uint64(1)) << shift
    return code


def mix_packs_evenly(
    features: Sequence[Ints], group: Ints, seed: int = 0, entry_tokens: npt.NDArray[np.float64] | None = None
) -> npt.NDArray[np.int64]:
    """Order packs, at random by the seed, so that every stretch of them looks like the whole.

    Args:
        features: int64[num_packs] each; made even over the order.
        group: int64[num_packs]; each group is spread evenly over the order by itself.
        entry_tokens: float64[num_packs, num_kinds], for example the trained tokens of each entry: of each kind, every
            stretch has its share, as nearly as packs allow; None: only features are made even.

    Returns:
        int64[num_packs] indices of packs, in the order in which they are written.
    """
    num = len(group)
    kinds, kind = np.unique(group, return_inverse=True)
    # Kind and likeness in one number, so that one sort is enough.
    num_bits = min(16, (64 - len(kinds).bit_length()) // len(features))
    code = similarity_codes(features, num_bits) | kind.astype(np.uint64) << np.uint64(num_bits * len(features))
    in_order = np.argsort(code, kind="stable") if entry_tokens is None else _sort_by_amounts(entry_tokens, code, kind)
    keys = random_keys(num, seed, 10)
    place = np.empty(num)
    for stream, packs in enumerate(np.split(in_order, np.cumsum(np.bincount(kind))[:-1])):
        of_packs = None if entry_tokens is None else entry_tokens[packs]
        dealt = packs[_order_by_halves(len(packs), seed, 1000 * (1 + stream), of_packs)]
        jitter = (keys[dealt] >> np.uint64(11)) * 2.0**-53
        place[dealt] = (np.arange(len(packs)) + jitter) / max(1, len(packs))
    order = np.argsort(place, kind="stable")
    if entry_tokens is not None:
        for size in _STRETCH_SIZES:
            order = even_out_shares_of_steps(order, size, entry_tokens)
    return order


def _order_by_halves(
    num: int, seed: int, stream: int, amounts: npt.NDArray[np.float64] | None = None
) -> npt.NDArray[np.int64]:
    """Order `num` units, which come sorted by likeness, so that both halves are alike, and the halves of these, too.

    Each half takes one of every two neighbours: the left half takes the first of one pair and the second of the next.
    With amounts, the choice in each pair keeps the amounts of both halves about equal.
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
        first = pair + chance[half]
        if amounts is not None:
            first = _first_of_pairs(amounts[order], sizes, num_pairs[half], start)
        goes_right = (place ^ first & 1) & ~is_alone
        halved = np.empty_like(order)
        halved[start + pair + goes_right * num_pairs[half]] = order
        order = halved
        sizes = np.stack((num_pairs, sizes - num_pairs), axis=1).ravel()
        sizes = sizes[sizes > 0]
        level += 1
    return order


def _sort_by_amounts(amounts: npt.NDArray[np.float64], code: npt.NDArray[np.uint64], kind: Ints) -> Ints:
    """Sort the packs of each kind so that neighbours have like amounts: by their largest amount, and its share."""
    largest = amounts.argmax(axis=1)
    share = amounts.max(axis=1) / np.maximum(1.0, amounts.sum(axis=1))
    return np.lexsort((code, (share * _SHARE_LEVELS).astype(np.int64), largest, kind))


def _first_of_pairs(
    amounts: npt.NDArray[np.float64], sizes: npt.NDArray[np.int64], num_pairs: Ints, start: Ints
) -> npt.NDArray[np.int64]:
    """Choose for each unit whether the second unit of its pair goes left: 0 or 1.

    Args:
        amounts: float64[num, num_kinds] of the units, in order.
        sizes: units of each half; the units of a half are neighbours.
        num_pairs, start: for each unit, the pairs of its half and where they start.
    """
    begin = np.cumsum(sizes) - sizes
    most = int((sizes + 1).max() // 2)
    pairs = begin[:, None] + 2 * np.arange(most)
    is_pair = 2 * np.arange(most) + 1 < sizes[:, None]
    last = len(amounts) - 1
    apart = amounts[pairs.clip(0, last)] - amounts[(pairs + 1).clip(0, last)]
    apart *= is_pair[..., None]
    alone = np.where((sizes % 2 == 1)[:, None], amounts[(begin + sizes - 1).clip(0, last)], 0.0)
    is_turned = _choose_flips(apart, alone)
    half = np.repeat(np.arange(len(sizes)), sizes)
    first: npt.NDArray[np.int64] = is_turned[half, (np.arange(len(amounts)) - start) // 2].astype(np.int64)
    return first


def _choose_flips(apart: npt.NDArray[np.float64], start: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Choose which vectors of each row to flip, so that their sum is short: first within blocks, then whole blocks.

    Args:
        apart: float64[num_rows, num, num_kinds].
        start: float64[num_rows, num_kinds] sums to start from.

    Returns:
        bool[num_rows, num].
    """
    num_rows, num, num_kinds = apart.shape
    num_blocks = max(1, int(num**0.5))
    size = -(-num // num_blocks)
    padded = np.zeros((num_rows, num_blocks * size, num_kinds))
    padded[:, :num] = apart
    blocks = padded.reshape(num_rows, num_blocks, size, num_kinds)
    turned = np.zeros((num_rows, num_blocks, size), np.bool_)
    sums = np.zeros((num_rows, num_blocks, num_kinds))
    for place in range(size):
        vector = blocks[:, :, place]
        turned[:, :, place] = (sums * vector).sum(-1) > 0
        sums += np.where(turned[:, :, place, None], -vector, vector)
    total = start.copy()
    for number in range(num_blocks):
        turns = (total * sums[:, number]).sum(-1) > 0
        turned[turns, number] ^= True
        total += np.where(turns[:, None], -sums[:, number], sums[:, number])
    return turned.reshape(num_rows, -1)[:, :num]


def even_out_shares_of_steps(order: Ints, packs_per_step: int, entry_tokens: Floats) -> Ints:
    """Swap packs between neighbouring steps until each step has about the shares of the whole; return the new order.

    Neighbouring steps form pairs: first steps 0 and 1, 2 and 3, …, then 1 and 2, 3 and 4, … In each pair two packs
    change places if that brings both steps nearer to the shares.

    Args:
        packs_per_step: packs of a step.
        entry_tokens: float64[num_packs, num_kinds], for example the trained tokens of each entry of a mixture.
    """
    num = len(order) // packs_per_step
    steps = order[: num * packs_per_step].reshape(num, packs_per_step).copy()
    total = entry_tokens.sum(axis=1)
    mean = max(1e-9, float(total.mean()))
    off = (entry_tokens - np.outer(total, entry_tokens.sum(axis=0) / max(1e-9, float(total.sum())))) / mean
    tried = min(packs_per_step, _MAX_TRIED_PACKS if len(order) <= _MANY_PACKS else _MAX_TRIED_PACKS // 2)
    off = np.column_stack((off, _TOTAL_WEIGHT * (total - mean) / mean))
    for number in range(_SWAP_ROUNDS):
        first = np.arange(number % 2, num - 1, 2)
        places = (np.arange(tried) * max(1, packs_per_step // tried) + number * 5) % packs_per_step
        for start in range(0, len(first), _PAIRS_AT_ONCE):
            _swap_packs(steps, first[start : start + _PAIRS_AT_ONCE], places, off)
    return np.concatenate((steps.ravel(), order[num * packs_per_step :]))


def _swap_packs(steps: Ints, first: Ints, places: Ints, off: Floats) -> None:
    """Swap a pack of each step in `first` with a pack of the next step if that brings both nearer to the shares, in
    place."""
    one, other = steps[first], steps[first + 1]
    gap = (off[one].sum(axis=1) - off[other].sum(axis=1)) / 2
    ones, next_ones = one[:, places], other[:, places]
    distance = np.zeros((len(first), len(places), len(places)))
    for kind in range(off.shape[1]):  # a sum over an axis would round differently on other machines
        moved = off[ones, kind][:, :, None] - off[next_ones, kind][:, None, :]
        distance += (gap[:, kind, None, None] - moved) ** 2
    flat = distance.reshape(len(first), -1)
    best = flat.argmin(axis=1)
    rows = np.flatnonzero(flat[np.arange(len(first)), best] < (gap**2).sum(axis=1))
    here, partner = (places[place[rows]] for place in np.divmod(best, len(places)))
    steps[first[rows], here], steps[first[rows] + 1, partner] = other[rows, partner], one[rows, here]
