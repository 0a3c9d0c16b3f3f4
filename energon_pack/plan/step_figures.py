"""Measure how even the steps of a plan are, for report.json."""

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
