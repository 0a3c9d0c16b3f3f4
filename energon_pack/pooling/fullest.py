"""The fullest pack that some samples make, with all its limits. Pure."""

from collections.abc import Iterable, Sequence

from energon_pack.plan.bins.subset_sum import fullest_sum

Costs = Sequence[int]


def fullest(costs: Sequence[Costs], limits: Costs) -> list[int]:
    """The first sample, and those with which a pack that holds it is fullest, earlier ones before later.

    Without other limits than tokens no choice is fuller. Where that choice breaks another limit, it is made among
    those that all together keep to it, taken as they came, or taken by how little they ask of it for a token.

    Args:
        costs: of each sample what it takes of each limit, tokens first; each alone fits.

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
    """What a sample takes of each limit but tokens, and the limit: one of nothing is as good as one of 1."""
    return [(a, max(b, 1)) for a, b in zip(cost[1:], limits[1:], strict=True)]


def _together(order: Sequence[int], costs: Sequence[Costs], left: Costs) -> list[int]:
    """Those that, one after the other, keep to all limits but that of tokens."""
    room, chosen = list(left[1:]), []
    for i in order:
        after = [a - b for a, b in zip(room, costs[i][1:], strict=True)]
        if min(after) >= 0:
            room = after
            chosen.append(i)
    return chosen


def _fill(items: Sequence[int], costs: Sequence[Costs], room: int) -> list[int]:
    """Those of the items whose tokens come nearest to the room; of several choices the one whose last is earliest."""
    return [items[number] for number in fullest_sum((costs[i][0] for i in items), room)]
