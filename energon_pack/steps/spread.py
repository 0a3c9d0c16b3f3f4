"""How even steps are over the ranks that train on them: what a rank waits for the slowest.

    costs of packs, in the order in which all ranks together read them ──steps──► sums of ranks ──► max/mean

R packs in a row are read at once, one by each rank; M times that is a step. A step takes as long as its dearest rank.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from energon_pack.run.seeded import Ints, random_keys
from energon_pack.steps.cost import Floats

#: of the trained tokens of a step, away from the mean of all
_NEAR = 0.02


@dataclass(frozen=True)
class PackCosts:
    """What packs cost, an entry a pack."""

    #: of the language model, and of the vision encoder, in one unit
    lm: Floats
    vision: Floats
    #: tokens that the loss is of
    trained: Ints

    def __len__(self) -> int:
        return len(self.lm)

    def take(self, order: Ints) -> "PackCosts":
        """Some of them, in an order."""
        return replace(self, lm=self.lm[order], vision=self.vision[order], trained=self.trained[order])


@dataclass(frozen=True)
class Spread:
    """One cost over whole steps; a step's time is that of its dearest rank, and 1 where all ranks have the same."""

    #: time of an epoch relative to even: Σ max / Σ mean
    epoch: float
    #: max/mean of a step: the mean of all, and the worst
    mean: float
    worst: float
    #: no order of the same packs has a smaller `epoch`
    bound: float
    #: in no order has the step with the dearest pack a smaller max/mean
    worst_bound: float


def figures(costs: PackCosts, ranks: int, micro_batches: int = 1) -> dict[str, Any]:
    """How even the whole steps are, as in report.json.

    Args:
        costs: in the order in which all ranks together read the packs.
        ranks: that train, R.
        micro_batches: packs of each in a step, M. Ranks wait for each other after the last.

    Returns:
        `steps`, `left_over` packs; a `Spread` of `lm`, `vision`, and `both` together; `trained`: how far a step's
        trained tokens are from the mean, `worst`, and the share of steps that are `beyond` 2 %.
    """
    of = {"lm": costs.lm, "vision": costs.vision, "both": costs.lm + costs.vision}
    num = len(costs) // (ranks * micro_batches) * ranks * micro_batches
    return {
        "steps": num // (ranks * micro_batches),
        "left_over": len(costs) - num,
        **{name: asdict(spread_of(cost, ranks, micro_batches)) for name, cost in of.items()},
        "trained": _trained(costs.trained[:num], ranks * micro_batches),
    }


def compared(costs: PackCosts, order: Ints, ranks: int, micro_batches: int = 1) -> dict[str, Any]:
    """`figures` of an order, and of one by chance: `in_order` and `by_chance`."""
    chance = np.argsort(random_keys(len(costs), 0), kind="stable")
    orders = {"in_order": order, "by_chance": chance}
    return {name: figures(costs.take(packs), ranks, micro_batches) for name, packs in orders.items()}


def spread_of(cost: Floats, ranks: int, micro_batches: int = 1) -> Spread:
    """Of one cost of packs as they are read; steps that cost nothing are left out."""
    of_packs = cost[: len(cost) // (ranks * micro_batches) * ranks * micro_batches].reshape(-1, micro_batches, ranks)
    of_ranks = of_packs.sum(axis=1)
    of_ranks = of_ranks[of_ranks.any(axis=1)]
    if not len(of_ranks):
        return Spread(1.0, 1.0, 1.0, 1.0, 1.0)
    longest, mean = of_ranks.max(axis=1), of_ranks.mean(axis=1)
    bounds = _bounds(of_packs.ravel(), ranks, micro_batches)
    values = (longest.sum() / mean.sum(), (longest / mean).mean(), (longest / mean).max(), *bounds)
    return Spread(*(round(float(value), 4) for value in values))


def _bounds(cost: Floats, ranks: int, micro_batches: int) -> tuple[float, float]:
    """What any order of the same packs has at least: of the epoch, and of the step with the dearest pack.

    Of S steps of P packs, the k-th by its dearest pack has one at least as dear as pack (k - 1) · P + 1 by cost, for
    k - 1 steps hold no more. The rank that has it has M - 1 other packs: S · (M - 1) packs, no cheaper together than
    the cheapest. With M = 1 blocks of the sorted packs are as good as that.
    """
    dearest_first = np.sort(cost)[::-1]
    others = len(cost) // (ranks * micro_batches) * (micro_batches - 1)
    longest = dearest_first[:: ranks * micro_batches].sum() + dearest_first[len(cost) - others :].sum()
    rank = dearest_first[0] + dearest_first[len(cost) - (micro_batches - 1) :].sum()
    step = rank + dearest_first[1 : 1 + (ranks - 1) * micro_batches].sum()
    return max(1.0, ranks * longest / cost.sum()), max(1.0, ranks * rank / step)


def _trained(trained: Ints, size: int) -> dict[str, float]:
    steps = trained.reshape(-1, size).sum(axis=1)
    if not steps.any():
        return {"worst": 0.0, "beyond": 0.0}
    away = np.abs(steps / steps.mean() - 1)
    return {"worst": round(float(away.max()), 4), "beyond": round(float((away > _NEAR).mean()), 4)}
