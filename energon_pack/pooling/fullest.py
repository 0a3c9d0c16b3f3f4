"""Choose the samples that make the fullest pack within all limits. Pure."""

from collections.abc import Iterable, Sequence

from energon_pack.plan.bins.base import fullest_sum

Costs = Sequence[int]


def fullest(costs: Sequence[Costs], limits: Costs) -> list[int]:
    """Choose the samples that make the fullest pack with the first sample, earlier ones before later.

    If tokens are the only limit, no choice is fuller. If that choice breaks another limit, the choice is made among
    samples that together keep within all: collected in the order they came, or by least cost a token.

    Args:
        costs: for each sample its cost for each limit, tokens first; each sample fits alone.

    Returns:
        Indices, ascending; the first is 0.
    """
    left = [limit - cost for limit, cost in zip(limits, costs[0], strict=True)]
    fits = [i for i in range(1, len(costs)) if not _breaks(costs[i], left)]
    best = _fill(fits, costs, left[0])
    if _breaks(_sums(best, costs, len(left)), left):
        best, most = [], 0
        frugal = sorted(
            fits, key=lambda i: max(cost / limit for cost, limit in _others(costs[i], limits)) / costs[i][0]
        )
        for order in (fits, frugal):
            chosen = _fill(_together(order, costs, left), costs, left[0])
            tokens = sum(costs[i][0] for i in chosen)
            if tokens > most:
                best, most = chosen, tokens
    return [0, *sorted(best)]


def _breaks(cost: Costs, left: Costs) -> bool:
    return any(a > b for a, b in zip(cost, left, strict=True))


def _sums(chosen: Iterable[int], costs: Sequence[Costs], num_limits: int) -> list[int]:
    sums = [0] * num_limits
    for i in chosen:
        sums = [a + b for a, b in zip(sums, costs[i], strict=True)]
    return sums


def _others(cost: Costs, limits: Costs) -> list[tuple[int, int]]:
    """Pair a sample's costs other than tokens with their limits; a limit of 0 is replaced by 1."""
    return [(a, max(b, 1)) for a, b in zip(cost[1:], limits[1:], strict=True)]


def _together(order: Sequence[int], costs: Sequence[Costs], left: Costs) -> list[int]:
    """Collect samples in this order as long as they keep within every limit but tokens."""
    room, chosen = list(left[1:]), []
    for i in order:
        after = [a - b for a, b in zip(room, costs[i][1:], strict=True)]
        if min(after) >= 0:
            room = after
            chosen.append(i)
    return chosen


def _fill(items: Sequence[int], costs: Sequence[Costs], room: int) -> list[int]:
    """Choose items whose tokens fill the room best; between equal choices, the one whose last item is earliest."""
    return [items[number] for number in fullest_sum((costs[i][0] for i in items), room)]
