"""Draw the packs of an epoch anew from packs that exist already. Pure."""

from dataclasses import replace

import numpy as np

from energon_pack.plan import caps
from energon_pack.plan.items import Items
from energon_pack.plan.packs import PackPlan
from energon_pack.plan.plan import groups, in_order
from energon_pack.plan.settings import PackingConfig
from energon_pack.run.seeded import Ints, random_keys, seed_of


def packs_of(sizes: Ints) -> PackPlan:
    """Return packs of these sizes, with the items in order."""
    num = int(sizes.sum())
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    return PackPlan(starts, np.arange(num), np.zeros(num, np.int8), 0)


def plan_of_epoch(plan: PackPlan, items: Items, packing: PackingConfig, seed: int, epoch: int) -> PackPlan:
    """Return a plan with as many packs, each as full as before.

    Items with equal costs (tokens, images, everything that is limited) that may be in the same packs change places at
    random, so nothing is measured or packed again; one of which nothing is trained only with another such. Then all
    packs are put in a new order. Epoch 0 is the plan itself.
    """
    if not epoch or not plan.num_packs:
        return plan
    seed = seed_of(seed, epoch)
    used = np.sort(plan.items)
    costs, _ = caps.costs(items.counts, packing)
    has_image, is_trained = items.counts["num_images"][used] > 0, items.num_supervised[used] > 0
    alike = [*costs[:, used], groups(items, packing)[used], has_image, is_trained]
    by_chance = np.lexsort((random_keys(len(used), seed, 20), *alike))
    in_place = np.lexsort((np.arange(len(used)), *alike))
    other = np.empty(len(items), np.int64)
    other[used[in_place]] = used[by_chance]
    return in_order(replace(plan, items=other[plan.items]), items, packing, seed)
