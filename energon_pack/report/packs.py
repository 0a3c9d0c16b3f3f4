"""Count how full packs are, and how that changes over the time in which training reads them."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_pack.plan.items import AnyInts, Items
from energon_pack.plan.packs import PackPlan, costs_of_packs, features_of_packs, media_of_packs, split_of_packs, taken
from energon_pack.plan.splits import SPLITS
from energon_pack.plan.tally import Tally
from energon_pack.report.shapes import Histogram, linear_histogram
from energon_pack.run.scratch import blocks
from energon_pack.run.seeded import Ints, random_keys
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.steps.cost import CostModel
from energon_pack.steps.topology import Topology, stream

#: tokens, of which the report names multiples as a `pad_to`
WIDTH = 512
_STRETCHES = 40
_MOST_SHOWN = 1 << 20  # packs; of more, some stand for all

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Stretch:
    """Packs that training reads one after another."""

    tokens: dict[str, int]  # mean tokens of a pack, by medium of the samples
    cost: float  # mean cost of a pack, relative to the mean of all packs
    trained: float  # mean number of trained tokens of a pack, relative to the mean of all packs


@dataclass(frozen=True)
class PackFigures:
    """Figures of a plan's packs; histograms are by the packs' medium, and None where there is nothing to count."""

    fill: Histogram | None  # percent
    members: Histogram | None
    visual_tokens: Histogram | None
    attention_cost: Histogram | None
    spreads: dict[str, dict[str, int]]  # of the same figures: min, p50, p90, p99, max
    split: str | None  # the split that the stretches belong to
    stretches: list[Stretch]
    waits: dict[str, list[float]]  # percent that ranks wait in each stretch, `planned` and `by chance`; with a topology
    shapes: tuple[int, int] = (0, 0)  # of batches of one pack in an epoch: as long as it is, and in multiples of WIDTH


def figures_of_packs(
    items: Items, plan: PackPlan, cost: CostModel, topology: Topology, max_token_len: int
) -> PackFigures:
    """Count what the packs of a plan hold, and how training reads them; of very many packs, some stand for all."""
    split, stretches, waits = _over_time(items, plan, cost, topology)
    share = -(-plan.num_packs // _MOST_SHOWN)
    if share > 1:
        plan = taken(plan, [np.arange(0, plan.num_packs, share)])
    kind = media_of_packs(items, plan)
    features, tokens = features_of_packs(items, plan), plan.per_pack(items.lens)

    def by_kind(values: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        return {name: values[kind == code] for code, name in enumerate(MEDIA_TYPES) if (kind == code).any()}

    visual = {name: values for name, values in by_kind(features["visual_tokens"]).items() if name != "text"}
    return PackFigures(
        fill=linear_histogram(by_kind(100 * tokens / np.maximum(tokens, max_token_len)), share, most=100),
        members=linear_histogram(by_kind(features["members"]), share),
        visual_tokens=linear_histogram(visual, share),
        attention_cost=linear_histogram(by_kind(features["attention_cost"]), share),
        spreads={
            "tokens": spread(tokens),
            "members": spread(features["members"]),
            "visual tokens": spread(features["visual_tokens"]),
            "attention cost, Σ len²": spread(features["attention_cost"]),
        },
        split=split,
        stretches=stretches,
        waits=waits,
        shapes=(np.unique([tokens, features["members"]], axis=1).shape[1], len(np.unique(-(-tokens // WIDTH)))),
    )


def _over_time(
    items: Items, plan: PackPlan, model: CostModel, topology: Topology
) -> tuple[str | None, list[Stretch], dict[str, list[float]]]:
    """Cut the first split into stretches of packs that all ranks together read; count how long ranks wait in each."""
    if not plan.num_packs:
        return None, [], {}
    split = split_of_packs(items, plan)
    num = int((split == split[0]).sum())  # the packs of a split are neighbours, and the first split comes first
    order = stream(num, topology)
    if num > _MOST_SHOWN:
        step = topology.data_parallel * topology.micro_batches
        order = order[np.arange(num) // step % -(-num // _MOST_SHOWN) == 0]
    plan, num = taken(plan, [order]), len(order)
    cost, trained = costs_of_packs(items, plan, model).sum(axis=0), plan.per_pack(items.num_supervised)
    of_kinds = {
        name: tokens
        for code, name in enumerate(MEDIA_TYPES)
        if (tokens := plan.per_pack(items.media, items.lens, of=partial(_of_medium, code))).any()
    }
    bounds = _bounds(num)
    sizes = np.diff([*bounds, num])

    def relative(values: npt.NDArray[Any]) -> list[float]:
        mean = float(values.mean()) or 1.0
        return [float(value) for value in np.add.reduceat(values, bounds) / sizes / mean]

    means = {name: (np.add.reduceat(values, bounds) // sizes).tolist() for name, values in of_kinds.items()}
    stretches = [
        Stretch({name: means[name][i] for name in means}, *both)
        for i, both in enumerate(zip(relative(cost), relative(trained), strict=True))
    ]
    chance = cost[np.argsort(random_keys(num, 0), kind="stable")]
    waits = {"planned": _waits(cost, topology), "chance": _waits(chance, topology)}
    return SPLITS[split[0]], stretches, waits if waits["planned"] else {}


def _of_medium(code: int, media: AnyInts, lens: AnyInts) -> AnyInts:
    return np.where(media == code, lens, 0)


def _waits(cost: Floats, topology: Topology) -> list[float]:
    """Return how long a rank waits for the slowest, in percent of its time: the mean of each stretch of whole steps."""
    size = topology.data_parallel * topology.micro_batches
    num = len(cost) // size
    if topology.data_parallel == 1 or not num:
        return []
    of_ranks = cost[: num * size].reshape(num, topology.micro_batches, topology.data_parallel).sum(axis=1)
    longest, mean = of_ranks.max(axis=1), of_ranks.mean(axis=1)
    bounds = _bounds(num)
    both = np.add.reduceat(longest, bounds), np.add.reduceat(mean, bounds)
    return [float(100 * (1 - b / a)) if a else 0.0 for a, b in zip(*both, strict=True)]


def _bounds(num: int) -> Ints:
    """Return the first of each stretch, where `num` things in a row are cut into stretches."""
    return np.unique(np.linspace(0, num, min(_STRETCHES, num) + 1).astype(np.int64)[:-1])


def spread(values: AnyInts) -> dict[str, int]:
    """Return minimum, median, 90th and 99th percentile, and maximum."""
    tally = Tally()
    for block in blocks(len(values)):
        tally.add(values[block])
    return tally.spread()
