"""Measure how even the steps of a plan are, for report.json and for the lines of a run."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from energon_pack.plan.items import Items
from energon_pack.plan.packs import PackPlan, costs_of_packs, split_of_packs
from energon_pack.plan.splits import SPLITS
from energon_pack.steps.cost import CostModel
from energon_pack.steps.spread import PackCosts, compared, figures
from energon_pack.steps.topology import Topology, stream

#: costs of a step, and their names
STEP_COSTS = {"lm": "language model", "vision": "vision encoder", "both": "both"}


def figures_of_steps(items: Items, plan: PackPlan, topology: Topology, cost: CostModel) -> dict[str, Any] | None:
    """Return how even a topology's steps are in the first split: laid out, without layout, and in random order."""
    if not topology.has_steps or not plan.num_packs:
        return None
    split = split_of_packs(items, plan)
    mine = split == split[0]
    (lm, vision), trained = costs_of_packs(items, plan, cost)[:, mine], plan.per_pack(items.num_supervised)[mine]
    costs, order = PackCosts(lm, vision, trained), stream(len(trained), topology)
    world = topology.data_parallel, topology.micro_batches
    found = {"split": SPLITS[split[0]], "cost": cost.source, **compared(costs, order, *world)}
    if plan.places is not None:
        found["without"] = figures(costs.take(np.argsort(plan.places[mine])[order]), *world)
    return found


def said_of_steps(steps: dict[str, Any]) -> Iterator[str]:
    """Yield lines about waiting of ranks, if packs were laid out."""
    ordered, without = steps["in_order"], steps["without"]
    if not ordered["steps"]:
        yield f"none is whole, for {ordered['left_over']:,} packs of {steps['split']} are fewer than a step has"
        return
    beside = "(without layout; at least)"
    yield f"{ordered['steps']:,} of {steps['split']}; 1 is the time of an epoch without waiting {beside}"
    costs = {what: (ordered[name], without[name]) for name, what in STEP_COSTS.items()}
    yield ", ".join(
        f"{what} {laid['epoch']:.3f} ({plain['epoch']:.3f}; {laid['bound']:.3f})"
        for what, (laid, plain) in costs.items()
    )
    trained = ordered["trained"], without["trained"]
    worst, before, least = trained[0]["worst"], trained[1]["worst"], trained[0]["bound"]
    yield f"trained tokens of a step are off the mean by up to {worst:.1%} ({before:.1%}; {least:.1%})"
