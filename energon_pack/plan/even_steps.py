"""Order packs so that every step is even over the ranks that train on it, for `packing.topology`.

    packs ──put_alike_costs_together──► rows of packs of like cost, one of each worker
          ──steps──► rows that train evenly much together ──deal_evenly──► each worker's sum alike
          ──order_packs──► steps in an order in which every stretch is alike
          ──reading_order──► to where Energon's loader reads them together ──► or unchanged, if that was more even

A rank waits for the slowest rank of its step, twice if vision encoder and language model run one after the other. So
both costs have to be even at once, and a FLOP of either counts the same. With one pack per rank in a step, alike packs
are the best possible; trained tokens of the steps limit how alike they may be.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_pack.plan.pack_order import even_out_shares_of_steps, mix_packs_evenly
from energon_pack.plan.similar_packs import Floats, even_out_trained_tokens, put_alike_costs_together
from energon_pack.run.seeded_random import Ints, random_keys
from energon_pack.steps.evenness import epoch_slowdown, largest_trained_deviation
from energon_pack.steps.topology import Topology, interleave_halves, reading_order

_SWAP_ROUNDS = 32  # rounds of swaps: after some twenty, little changes
_EVEN_ENOUGH = 1.02  # waits that steps with the shares of a mixture may have; their trained tokens may be as far off
_LAYOUT_TRIES = 8  # tries to find a layout in which steps train on evenly many tokens
_LIMIT_FACTOR = 0.95  # each try has a limit narrower by this factor than the last result suggests


def order_packs_for_even_steps(
    costs: Floats,
    trained_tokens: Ints,
    topology: Topology,
    seed: int,
    jitter: float = 0.0,
    entry_tokens: Floats | None = None,
) -> Ints:
    """Order packs so that the ranks of each training step have even costs, and steps have evenly many trained tokens.

    Args:
        costs: float64[2, num_packs] of the language model and of the vision encoder, in one unit; each is made even
            over the ranks of a step.
        trained_tokens: int64[num_packs] trained tokens, made even over the steps.
        jitter: relative noise added to costs, so that with each seed other packs of about the same cost meet.
        entry_tokens: float64[num_packs, num_kinds], as of each entry of a mixture. Steps get the shares of the whole,
            as nearly as even costs allow; packs come in an order that has these shares. None: no mixture.

    Returns:
        int64[num_packs] numbers of packs, in the order in which they are written; unchanged if that is more even. Packs
        left over from whole steps are read last, and have middling costs.
    """
    num = len(trained_tokens)
    together = reading_order(num, topology)
    as_they_come = _Evenness(costs, trained_tokens, together, topology)
    has_any = num >= topology.data_parallel * topology.micro_batches
    most_off = as_they_come.off if has_any else np.inf
    chance = (random_keys(costs.size, seed, 30) >> np.uint64(11)).reshape(costs.shape) * 2.0**-53
    most_waits = as_they_come.waits
    layouts = _candidate_orders(costs * (1 + jitter * chance), trained_tokens, topology, seed, most_off, entry_tokens)
    if entry_tokens is not None and topology.micro_batches > 1:
        most_waits, most_off = np.maximum(most_waits, _EVEN_ENOUGH), max(most_off, _EVEN_ENOUGH - 1)
        in_steps = even_out_shares_of_steps(
            np.arange(num), topology.data_parallel * topology.micro_batches, entry_tokens
        )
        layouts = chain([_deal_within_steps(_relative_to_mean(costs), topology, in_steps)], layouts)
    for read in layouts:
        evenness = _Evenness(costs, trained_tokens, read, topology)
        if evenness.off <= most_off and not (evenness.waits > most_waits).any():
            written = np.empty(num, np.int64)
            written[together] = read
            return written
    return np.arange(num)


class _Evenness:
    """How even the whole steps of a reading order are.

    waits: float64[2], for each cost the time of an epoch relative to even steps.
    off: the largest distance of a step's trained tokens from the mean, as a share of it.
    """

    def __init__(self, costs: Floats, trained: Ints, read: Ints, topology: Topology):
        ranks, micro_batches = topology.data_parallel, topology.micro_batches
        self.waits = np.array([epoch_slowdown(cost[read], ranks, micro_batches) for cost in costs])
        self.off = largest_trained_deviation(trained[read], ranks * micro_batches)


def _candidate_orders(
    costs: Floats,
    trained: Ints,
    topology: Topology,
    seed: int,
    most_off: float,
    amounts: Floats | None,
) -> Iterator[Ints]:
    """Yield candidate orders in which packs are read; the first that is even enough is to be taken."""
    trains, each = _relative_to_mean(trained[None]), _relative_to_mean(costs)
    if topology.rows_per_step > 1:
        yield _order_by_units(each, trains, topology, seed, most_off, amounts)
        yield _deal_within_steps(each, topology, reading_order(len(trained), topology))
        return
    for shares in (costs / max(costs.sum() / max(1, len(trained)), 1e-9), each):
        within = most_off
        for _ in range(_LAYOUT_TRIES):
            read = _order_by_units(shares, trains, topology, seed, within, amounts)
            if topology.micro_batches == 1:
                read = even_out_trained_tokens(shares, trained, read, topology.data_parallel, most_off)
            yield read
            off = largest_trained_deviation(trained[read], topology.data_parallel * topology.micro_batches)
            if off <= most_off or not within:
                break
            within *= _LIMIT_FACTOR * most_off / off


def _order_by_units(
    costs: Floats, trains: Floats, topology: Topology, seed: int, most_off: float, amounts: Floats | None
) -> Ints:
    """Lay out all packs, and return them in the order in which all ranks together read them."""
    num, unit = trains.shape[1], topology.unit_size
    by_chance = np.argsort(random_keys(num, seed, 20), kind="stable")  # packs of equal cost may come from any data
    in_order = by_chance[np.argsort(costs.sum(axis=0)[by_chance], kind="stable")]
    over = _middle_packs(trains[0, in_order], num % unit)
    size = min(topology.row_size, topology.data_parallel * topology.micro_batches)
    over_packs = _order_left_over(costs, trains[0], in_order[over], size, seed, most_off)
    if num < unit:
        return over_packs
    units = _group_into_units(costs, trains, np.delete(in_order, over), topology, seed, most_off)
    of_units = [(cost * 1e6).astype(np.int64)[units].sum(axis=1) for cost in (*costs, *trains)]
    nothing = np.zeros(len(units), np.int64)
    in_units = None if amounts is None else amounts[units].sum(axis=1)
    return np.concatenate((units[mix_packs_evenly(of_units, nothing, seed, in_units)].ravel(), over_packs))


def _middle_packs(trains: Floats, num: int) -> slice:
    """Return the place of `num` packs, in a row and near the mean in `trains`, in the middle half of packs by cost."""
    quarter = (len(trains) - num) // 4
    upto = np.concatenate(([0], np.cumsum(trains)))[quarter : len(trains) + 1 - quarter]
    first = quarter + int(np.abs(upto[num:] - upto[: len(upto) - num] - num).argmin())
    return slice(first, first + num)


def _order_left_over(costs: Floats, trains: Floats, in_order: Ints, size: int, seed: int, most_off: float) -> Ints:
    """Order the packs that make no whole unit: rows of `size` packs of like cost, shuffled, then single packs."""
    rest = len(in_order) % size
    middle = slice((len(in_order) - rest) // 2, (len(in_order) + rest) // 2)
    rows, over = (
        put_alike_costs_together(costs, np.delete(in_order, middle), size, None, trains, most_off),
        in_order[middle],
    )
    mixed = (
        group[np.argsort(random_keys(len(group), seed, 21), kind="stable")].ravel()
        for group in (rows.reshape(-1, size), over)
    )
    return np.concatenate([*mixed])


def _deal_within_steps(costs: Floats, topology: Topology, read: Ints) -> Ints:
    """Deal the packs of each step to its ranks again, for even costs; packs come and go in reading order."""
    step = topology.data_parallel * topology.micro_batches
    num = len(read) // step * step
    rounds = read[:num].reshape(-1, topology.micro_batches, topology.data_parallel).swapaxes(0, 1)
    return np.concatenate((deal_items_evenly_to_bins(costs, rounds).swapaxes(0, 1).ravel(), read[num:]))


def _relative_to_mean(costs: npt.NDArray[Any]) -> Floats:
    """Return each row of costs, [num_costs, num_packs], divided by its mean."""
    shares: Floats = costs / np.maximum(costs.sum(axis=1, keepdims=True) / max(1, costs.shape[1]), 1e-9)
    return shares


def _group_into_units(
    costs: Floats, trains: Floats, packs: Ints, topology: Topology, seed: int, most_off: float
) -> Ints:
    """Group packs into units of whole rows, each in reading order: int64[num_units, topology.unit_size]."""
    if topology.rows_per_step == 1:
        rows = put_alike_costs_together(costs, packs, topology.row_size, None, trains[0], most_off)
        packs = put_alike_costs_together(costs, rows, topology.data_parallel, topology.row_size, trains[0], most_off)
        return _rows_by_worker(packs, topology, seed)
    rows = put_alike_costs_together(costs, packs, topology.row_size).reshape(-1, topology.row_size)
    steps = _deal_rows_to_steps(trains[:, rows].sum(axis=2), topology.rows_per_step)
    return deal_items_evenly_to_bins(costs, rows[steps]).swapaxes(0, 1).reshape(-1, topology.unit_size)


def _deal_rows_to_steps(trains: Floats, num_rows: int) -> Ints:
    """Deal rows to steps of `num_rows`, so that steps train about as many tokens: int64[num_rows, num_steps]."""
    most_first = np.argsort(-trains[0], kind="stable")
    return deal_items_evenly_to_bins(trains, most_first.reshape(num_rows, 1, -1), may_change_round=True)[:, 0]


def deal_items_evenly_to_bins(costs: Floats, items_by_round: Ints, may_change_round: bool = False) -> Ints:
    """Deal items to bins, one item of each round to each bin, so that all bins of a set cost about the same.

    In each round the cost in which bins and items differ most decides: the largest item goes to the bin that has least.
    Then bins that have much and bins that have little swap their items of a round, if that makes them more even.

    Args:
        costs: float64[num_costs, num_items], each relative to its mean.
        items_by_round: int64[num_rounds, num_sets, num_bins] items; the bins of a set are made even.
        may_change_round: items may move to another round.

    Returns:
        int64[num_rounds, num_sets, num_bins]: the items of each round and set in a new order.
    """
    dealt = np.empty_like(items_by_round)
    total = np.zeros((len(costs), *items_by_round.shape[1:]))
    sets = np.arange(items_by_round.shape[1])
    for place, items in enumerate(items_by_round):
        of_items = costs[:, items]
        chosen = (np.ptp(total, axis=2) + np.ptp(of_items, axis=2)).argmax(axis=0)
        least_first = np.argsort(total[chosen, sets], axis=1, kind="stable")
        largest_first = np.argsort(-of_items[chosen, sets], axis=1, kind="stable")
        np.put_along_axis(dealt[place], least_first, np.take_along_axis(items, largest_first, 1), 1)
        total += costs[:, dealt[place]]
    for number in range(_SWAP_ROUNDS):
        _swap_items(costs, dealt, total, number, number % len(items_by_round) if may_change_round else 0)
    return dealt


def _swap_items(costs: Floats, dealt: Ints, total: Floats, shift: int, later: int) -> None:
    """Swap items, in place, between bins that have much and bins that have little of the least even cost."""
    half = dealt.shape[2] // 2
    sets = np.arange(dealt.shape[1])
    by_total = np.argsort(total[np.ptp(total, axis=2).argmax(axis=0), sets], axis=1, kind="stable")
    least, most = np.roll(by_total[:, :half], shift, axis=1), by_total[:, ::-1][:, :half]
    pair = sets[:, None]
    gap = total[:, pair, most] - total[:, pair, least]
    of_other = np.roll(np.arange(len(dealt)), -later)
    moved = costs[:, dealt[:, pair, most]] - costs[:, dealt[of_other][:, pair, least]]  # [costs, rounds, sets, pairs]
    distance = ((gap[:, None] - 2 * moved) ** 2).sum(axis=0)
    best = distance.argmin(axis=0)
    swapped = np.nonzero(np.take_along_axis(distance, best[None], 0)[0] < (gap**2).sum(axis=0))
    place, of_set, high, low = best[swapped], swapped[0], most[swapped], least[swapped]
    change = moved[:, place, swapped[0], swapped[1]]
    total[:, of_set, high] -= change
    total[:, of_set, low] += change
    here, partner = (place, of_set, high), (of_other[place], of_set, low)
    dealt[here], dealt[partner] = dealt[partner], dealt[here]


def _rows_by_worker(packs: Ints, topology: Topology, seed: int) -> Ints:
    """Make rows in which the ranks' first workers have like packs, then their second, and so on: int64[num_rows, row].

    The two halves of the workers get neighbouring packs, so ranks with half as many workers also have like packs at a
    time. Which rank gets which pack is random: a rank that always got the most expensive would train on other data.
    """
    blocks = packs.reshape(-1, topology.workers, topology.data_parallel)
    by_chance = np.argsort(random_keys(blocks.size, seed, 22).reshape(blocks.shape), axis=2, kind="stable")
    dealt = np.empty_like(blocks)
    dealt[:, interleave_halves(np.arange(topology.workers))] = np.take_along_axis(blocks, by_chance, axis=2)
    return dealt.reshape(-1, topology.row_size)
