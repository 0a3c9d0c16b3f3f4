"""Put packs that exist already into one order: drawn by epochs, and laid out for steps. Pure.

    packs of several datasets ──times──► passes, with each pack at most once ──order_by_turns_and_steps──► their numbers

A pack that comes three times comes in three passes, so that no step has it twice. If passes would then have too few
steps, a pass has the pack more than once.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from energon_pack.plan.epoch_draws import num_draws_by_epoch
from energon_pack.plan.items import Items
from energon_pack.plan.packs import PackPlan, plan_packs_of_sizes, sizes_and_items_of_packs
from energon_pack.plan.plan import group_of_items, mix_packs_in_windows, order_by_turns_and_steps
from energon_pack.plan.settings import PackingConfig, costs_and_limits
from energon_pack.run.seeded_random import Ints, epoch_seed, random_keys
from energon_pack.steps.cost import CostModel

_MIN_STEPS_PER_PASS = 64  # steps of a pass at least, so that few packs are left over from whole steps


def num_draws_by_pass(
    times: Sequence[float], entry: Ints, trained: Ints, unit: int, seed: int = 0, num_epochs: int = 1
) -> Ints:
    """Decide how often each existing pack comes in each pass over the packs; an epoch has one or several passes.

    Args:
        times: for each dataset, how often its packs come in an epoch.
        entry: int64[num_packs] the dataset of each pack.
        trained: int64[num_packs] trained tokens.
        unit: packs in the smallest number of whole steps, as in `Topology`.

    Returns:
        int64[num_passes, num_packs].
    """
    num_drawn = np.bincount(entry, minlength=len(times)) @ np.array(times)
    of_epoch = max(1, min(ceil(max(times)), int(num_drawn) // (_MIN_STEPS_PER_PASS * unit)))
    counts = np.zeros((of_epoch * num_epochs, len(entry)), np.int64)
    for number, each in enumerate(times):
        packs = np.flatnonzero(entry == number)
        counts[:, packs] = num_draws_by_epoch(each / of_epoch, trained[packs], True, seed, number, len(counts))
    return counts


def order_existing_packs(
    items: Items, packs: PackPlan, counts: Ints, packing: PackingConfig, seed: int, cost: CostModel
) -> Ints:
    """Return the numbers of existing packs in the order in which a plan would write them.

    Args:
        counts: int64[num_passes, num_packs], how often each pack comes in each pass; passes follow one another.
    """
    turn, pack = (np.repeat(index.ravel(), counts.ravel()) for index in np.indices(counts.shape))
    sizes, members = sizes_and_items_of_packs(packs, pack)
    drawn = replace(items.take(members), turn=np.repeat(turn, sizes).astype(np.int32) if len(counts) > 1 else None)
    plan = order_by_turns_and_steps(plan_packs_of_sizes(sizes), drawn, packing, seed, cost)
    order: Ints = np.repeat(pack, sizes)[plan.items[plan.starts[:-1]]]
    return order


def exchange_members_for_epoch(
    plan: PackPlan, items: Items, packing: PackingConfig, seed: int, epoch: int, size: int = 1
) -> PackPlan:
    """Return the plan of a later epoch: as many packs, each as full as before, with other members, in another order.

    Items with equal costs (tokens, images, everything that is limited) that may be in the same packs change places at
    random, so nothing is measured or packed again. An item without trained tokens changes places only with another
    such item. Epoch 0 is the plan itself.

    Args:
        size: of `size` items that stand together in `plan`, none changes its place without the others: 2 for pairs.
    """
    if not epoch or not plan.num_packs:
        return plan
    seed = epoch_seed(seed, epoch)
    used = plan.items.reshape(-1, size)
    used = used[np.argsort(used[:, 0])]
    costs, _ = costs_and_limits(items.counts, packing)
    has_image, is_trained = items.counts["num_images"][used] > 0, items.num_supervised[used] > 0
    alike = [*costs[:, used].sum(axis=2), group_of_items(items, packing)[used[:, 0]]]
    alike += [has_image.any(axis=1), is_trained.any(axis=1)]
    by_chance = np.lexsort((random_keys(len(used), seed, 20), *alike))
    in_place = np.lexsort((np.arange(len(used)), *alike))
    other = np.empty((len(items), size), np.int64)
    other[used[in_place, 0]] = used[by_chance]
    return mix_packs_in_windows(replace(plan, items=other[plan.items[::size]].ravel()), items, packing, seed)
