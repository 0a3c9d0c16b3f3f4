"""Measure how even steps are over the ranks that train on them, and how long ranks wait for the slowest.

    costs of packs, in the order in which all ranks together read them ──steps──► sums of ranks ──► max/mean

R neighbouring packs are read at once, one by each rank; M such rows are a step. A step takes as long as its slowest
rank.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from energon_pack.run.seeded_random import Ints
from energon_pack.steps.cost import Floats

#: steps count as even if their trained tokens are within this share of the mean
_NEAR_THE_MEAN = 0.02


@dataclass(frozen=True)
class CostSpreadOverRanks:
    """How unevenly one cost (FLOPs) is spread over the ranks of each whole step; every field is 1 if it is even.

    Ranks wait for the slowest, so a step lasts max/mean: the largest cost of a rank divided by the mean over ranks.
    """

    #: time of an epoch relative to even steps: Σ max / Σ mean
    epoch: float
    #: max/mean of a step: the mean over all steps, and the worst
    mean: float
    worst: float
    #: lower bound of `epoch` over all orders of the same packs
    bound: float
    #: lower bound of `worst` over all orders of the same packs
    worst_bound: float


def evenness_figures(
    costs: Floats, trained: Ints, ranks: int, micro_batches: int = 1, read: Ints | slice = np.s_[:]
) -> dict[str, Any]:
    """Measure how even the whole steps are over ranks, for report.json.

    Args:
        costs: float64[2, num_packs] of the language model, and of the encoder of images and videos, in one unit.
        trained: int64[num_packs] trained tokens.
        ranks: number of training ranks, R.
        micro_batches: packs per rank in a step, M. Ranks wait for each other after the last.
        read: the packs in the order in which all ranks together read them; by default as they stand.

    Returns:
        `steps`, the number of whole steps; `left_over`, the packs after them; `cost`, summed over the slowest ranks of
        all steps; a `CostSpreadOverRanks` for each of `lm`, `vision`, and `both` together; and `trained` with three
        shares: `worst`, the largest distance of a step's trained tokens from the mean; `bound`, the least `worst` that
        any order of the packs could have; `beyond`, the share of steps that are more than 2 % off the mean.
    """
    (lm, vision), size = costs[:, read], ranks * micro_batches
    cost_of = {"lm": lm, "vision": vision, "both": lm + vision}
    slowest = _rank_costs(cost_of["both"], ranks, micro_batches).max(axis=1).sum()
    return {
        "steps": len(lm) // size,
        "left_over": len(lm) % size,
        "cost": float(f"{slowest:.6g}"),
        **{name: asdict(measure_cost_spread(cost, ranks, micro_batches)) for name, cost in cost_of.items()},
        "trained": _trained_figures(trained[read], size),
    }


def measure_cost_spread(pack_costs: Floats, ranks: int, micro_batches: int = 1) -> CostSpreadOverRanks:
    """Return the spread of packs' costs, float64[num_packs] in reading order; steps that cost nothing are left out."""
    of_ranks = _rank_costs(pack_costs, ranks, micro_batches)
    num = of_ranks.size * micro_batches
    of_ranks = of_ranks[of_ranks.any(axis=1)]
    if not len(of_ranks):
        return CostSpreadOverRanks(1.0, 1.0, 1.0, 1.0, 1.0)
    bounds = _max_over_mean_bounds(pack_costs[:num], ranks, micro_batches)
    ratios = of_ranks.max(axis=1) / of_ranks.mean(axis=1)
    values = (epoch_slowdown(pack_costs, ranks, micro_batches), ratios.mean(), ratios.max(), *bounds)
    return CostSpreadOverRanks(*(round(float(value), 4) for value in values))


def epoch_slowdown(pack_costs: Floats, ranks: int, micro_batches: int = 1) -> float:
    """Return the time of an epoch relative to even steps: Σ max / Σ mean over ranks, of whole steps; 1 if it costs 0.

    `pack_costs`: float64[num_packs], in the order in which all ranks together read packs.
    """
    of_ranks = _rank_costs(pack_costs, ranks, micro_batches)
    total = float(of_ranks.sum())
    return float(of_ranks.max(axis=1).sum()) * ranks / total if total else 1.0


def largest_trained_deviation(trained: Ints, size: int) -> float:
    """Return the largest distance of a step's trained tokens from the mean over steps of `size` packs; 0.1 is 10 %."""
    return float(_trained_deviations(trained, size).max(initial=0))


def _rank_costs(cost: Floats, ranks: int, micro_batches: int) -> Floats:
    """Return the cost of each rank's packs in each whole step, float64[num_steps, ranks]."""
    num = len(cost) // (ranks * micro_batches) * ranks * micro_batches
    sums: Floats = cost[:num].reshape(-1, micro_batches, ranks).sum(axis=1)
    return sums


def _max_over_mean_bounds(cost: Floats, ranks: int, micro_batches: int) -> tuple[float, float]:
    """Return lower bounds over all orders of the same packs: for the epoch, and for the worst step.

    Sort S steps of P packs by their most expensive pack. The k-th step has a pack that costs at least as much as pack
    (k - 1) · P + 1 by cost, because k - 1 steps hold no more. The rank with that pack has M - 1 other packs. Over all
    steps these are S · (M - 1) packs, which cost at least as much as the cheapest S · (M - 1). With M = 1, blocks of
    the sorted packs reach the bound.
    """
    dearest_first = np.sort(cost)[::-1]
    num_others = len(cost) // (ranks * micro_batches) * (micro_batches - 1)
    longest = dearest_first[:: ranks * micro_batches].sum() + dearest_first[len(cost) - num_others :].sum()
    rank = dearest_first[0] + dearest_first[len(cost) - (micro_batches - 1) :].sum()
    step = rank + dearest_first[1 : 1 + (ranks - 1) * micro_batches].sum()
    return max(1.0, ranks * longest / cost.sum()), max(1.0, ranks * rank / step)


def _trained_figures(trained: Ints, size: int) -> dict[str, float]:
    off = _trained_deviations(trained, size)
    if not len(off):
        return {"worst": 0.0, "bound": 0.0, "beyond": 0.0}
    shares = {
        "worst": off.max(),
        "bound": _trained_deviation_bound(trained[: len(off) * size], size),
        "beyond": (off > _NEAR_THE_MEAN).mean(),
    }
    return {name: round(float(value), 4) for name, value in shares.items()}


def _trained_deviations(trained: Ints, size: int) -> Floats:
    """Return the distance of each whole step's trained tokens from their mean; empty if nothing is trained."""
    steps = trained[: len(trained) // size * size].reshape(-1, size).sum(axis=1)
    return np.abs(steps / steps.mean() - 1) if steps.any() else np.zeros(0)


def _trained_deviation_bound(trained: Ints, size: int) -> float:
    """Return a lower bound, over all orders, on the largest distance from the mean: the pack that trains on most, or
    least, has to be in some step, at best with packs that make up for it.
    """
    ordered = np.sort(trained)
    mean = trained.sum() * size / len(trained)
    most, least = ordered[-1] + ordered[: size - 1].sum(), ordered[0] + ordered[len(ordered) - size + 1 :].sum()
    return max(0.0, float(most / mean - 1), float(1 - least / mean))
