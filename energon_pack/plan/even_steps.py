"""The order of packs in which every step is even over the ranks that train on it, for `packing.topology`.

    packs ──alike──► rows of packs of like cost, one of each worker ──steps──► rows that train evenly much together
          ──evened──► each worker's sum alike ──order_packs──► steps in an order in which every stretch is alike
          ──stream──► where Energon's loader reads them together

A rank waits for the slowest of its step, twice where vision encoder and language model are apart, so both costs are to
be even at once. For packs of one cost, and steps of one pack a rank, blocks of the sorted packs are the best there is.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from energon_pack.plan.order import order_packs
from energon_pack.run.seeded import Ints, random_keys
from energon_pack.steps.topology import Topology, by_halves, stream

Floats = npt.NDArray[np.float64]
_TURNS = 32  # of swaps: after some twenty little changes


def lay_out(costs: Floats, trained: Ints, topology: Topology, seed: int) -> Ints:
    """The packs in the order in which they are written.

    Args:
        costs: float64[num_costs, num_packs], each to be even over the ranks of a step.
        trained: int64[num_packs] tokens, to be even over the steps where these have several rows.

    Returns:
        int64[num_packs] numbers of packs. What is left over from whole steps is read last, and of middling cost.
    """
    num, unit = len(trained), topology.unit
    costs, trains = _shares(costs), _shares(trained[None])
    by_chance = np.argsort(random_keys(num, seed, 20), kind="stable")  # equal costs say nothing of the data they are of
    in_order = by_chance[np.argsort(costs.sum(axis=0)[by_chance], kind="stable")]
    first = (num - num % unit) // 2
    read = over = _left_over(in_order[first : first + num % unit], topology.row, seed)
    if num >= unit:
        units = _units(costs, trains, np.delete(in_order, np.s_[first : first + num % unit]), topology)
        of_units = [(cost * 1e6).astype(np.int64)[units].sum(axis=1) for cost in (*costs, *trains)]
        nothing = np.zeros(len(units), np.int64)
        read = np.concatenate((units[order_packs(of_units, nothing, seed)].ravel(), over))
    written = np.empty(num, np.int64)
    written[stream(num, topology)] = read
    return written


def _left_over(in_order: Ints, row: int, seed: int) -> Ints:
    """Packs that make no whole step: rows of like cost, which come by chance, and of what makes no row each pack."""
    rest = len(in_order) % row
    middle = slice((len(in_order) - rest) // 2, (len(in_order) + rest) // 2)
    rows, over = np.delete(in_order, middle).reshape(-1, row), in_order[middle]
    rows, over = (found[np.argsort(random_keys(len(found), seed, 21), kind="stable")] for found in (rows, over))
    return np.concatenate((rows.ravel(), over))


def _shares(costs: npt.NDArray[Any]) -> Floats:
    """Costs about 1."""
    shares: Floats = costs / np.maximum(costs.sum(axis=1, keepdims=True) / max(1, costs.shape[1]), 1e-9)
    return shares


def _units(costs: Floats, trains: Floats, packs: Ints, topology: Topology) -> Ints:
    """Packs as units of whole rows, each in the order in which it is read: int64[num_units, topology.unit]."""
    rows = alike(costs, packs, topology.row).reshape(-1, topology.row)
    if topology.rows_per_step == 1:
        return _by_worker(alike(costs, rows.ravel(), topology.data_parallel, topology.row), topology)
    steps = _steps(trains[:, rows].sum(axis=2), topology.rows_per_step)
    return evened(costs, rows[steps]).swapaxes(0, 1).reshape(-1, topology.unit)


def alike(costs: Floats, packs: Ints, size: int, start: int | None = None) -> Ints:
    """Packs in an order in which each `size` in a row are alike in all costs.

    Halves the packs, at a multiple of `size`, by the cost of which a rank would wait longest for the largest, and each
    half again. Source: Bentley, "Multidimensional binary search trees used for associative searching", 1975.

    Args:
        packs: a multiple of `size`.
        start: halve blocks of so many of them, each for itself; None: all.
    """
    edges = np.arange(0, len(packs) + 1, max(1, start or len(packs)))
    while np.diff(edges).max(initial=0) > size:
        sizes = np.diff(edges)
        mine = costs[:, packs]
        waits = np.maximum.reduceat(mine, edges[:-1], axis=1) - np.add.reduceat(mine, edges[:-1], axis=1) / sizes
        block = np.repeat(np.arange(len(sizes)), sizes)
        packs = packs[np.lexsort((mine[waits.argmax(axis=0)[block], np.arange(len(packs))], block))]
        edges = np.union1d(edges, edges[:-1] + -(-sizes // (2 * size)) * size)
    return packs


def _steps(trains: Floats, num_rows: int) -> Ints:
    """Rows dealt to steps of `num_rows`, so that steps train about as many tokens: int64[num_rows, num_steps]."""
    most_first = np.argsort(-trains[0], kind="stable")
    return evened(trains, most_first.reshape(num_rows, 1, -1), across=True)[:, 0]


def evened(costs: Floats, rounds: Ints, across: bool = False) -> Ints:
    """Items dealt to bins, one of each round to each, so that the bins' sums of all costs are even.

    Round after round, of the cost in which bins and items differ most, the largest goes to the bin that has least; then
    bins that have much and little swap what they have of a round, where that makes them more even.

    Args:
        costs: float64[num_costs, num_items], each about 1.
        rounds: int64[num_rounds, num_sets, num_bins] items; the bins of a set are made even.
        across: an item may end in another round.

    Returns:
        int64[num_rounds, num_sets, num_bins], the items of each round and set in another order.
    """
    dealt = np.empty_like(rounds)
    total = np.zeros((len(costs), *rounds.shape[1:]))
    sets = np.arange(rounds.shape[1])
    for place, items in enumerate(rounds):
        mine = costs[:, items]
        chosen = (np.ptp(total, axis=2) + np.ptp(mine, axis=2)).argmax(axis=0)
        least_first = np.argsort(total[chosen, sets], axis=1, kind="stable")
        largest_first = np.argsort(-mine[chosen, sets], axis=1, kind="stable")
        np.put_along_axis(dealt[place], least_first, np.take_along_axis(items, largest_first, 1), 1)
        total += costs[:, dealt[place]]
    for turn in range(_TURNS):
        _swap(costs, dealt, total, turn, turn % len(rounds) if across else 0)
    return dealt


def _swap(costs: Floats, dealt: Ints, total: Floats, turn: int, later: int) -> None:
    """Swap items between bins that have much and bins that have little of the least even cost, in place.

    Args:
        later: what a bin has of a round for what the other has of one so many rounds later.
    """
    half = dealt.shape[2] // 2
    sets = np.arange(dealt.shape[1])
    by_total = np.argsort(total[np.ptp(total, axis=2).argmax(axis=0), sets], axis=1, kind="stable")
    least, most = np.roll(by_total[:, :half], turn, axis=1), by_total[:, ::-1][:, :half]
    pair = sets[:, None]
    gap = total[:, pair, most] - total[:, pair, least]
    of_other = np.roll(np.arange(len(dealt)), -later)
    moved = costs[:, dealt[:, pair, most]] - costs[:, dealt[of_other][:, pair, least]]  # [costs, rounds, sets, pairs]
    left = ((gap[:, None] - 2 * moved) ** 2).sum(axis=0)
    best = left.argmin(axis=0)
    at = np.nonzero(np.take_along_axis(left, best[None], 0)[0] < (gap**2).sum(axis=0))
    place, of_set, high, low = best[at], at[0], most[at], least[at]
    change = moved[:, place, at[0], at[1]]
    total[:, of_set, high] -= change
    total[:, of_set, low] += change
    here, there = (place, of_set, high), (of_other[place], of_set, low)
    dealt[here], dealt[there] = dealt[there], dealt[here]


def _by_worker(packs: Ints, topology: Topology) -> Ints:
    """Rows in which the ranks' first workers have like packs, then their second, and so on: int64[num_rows, row].

    Halves of the workers have neighbours, so that ranks with half as many workers have like packs at a time, too.
    """
    blocks = packs.reshape(-1, topology.workers, topology.data_parallel)
    dealt = np.empty_like(blocks)
    dealt[:, by_halves(np.arange(topology.workers))] = blocks
    return dealt.reshape(-1, topology.row)
