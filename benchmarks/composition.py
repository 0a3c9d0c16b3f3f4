"""What each of 16 ranks × 2 workers sees of a plan: `python benchmarks/composition.py`.

100,000 synthetic samples of text, images and videos, packed into 8192 tokens, in shards of 512 packs; Energon's own
`Sharder` deals them to the workers. Beside it the order that all peers write: packs as packing leaves them, longest
samples first.
"""

import argparse
from typing import Any

import numpy as np
from megatron.energon import WorkerConfig
from megatron.energon.epathlib import EPath
from megatron.energon.flavors.webdataset.sharder import Sharder
from megatron.energon.flavors.webdataset.structs import ShardInfo
from rich.console import Console
from rich.table import Table

from energon_pack.plan.items import Items
from energon_pack.plan.packs import PackPlan, features_of_packs, media_type_of_packs
from energon_pack.plan.plan import plan_packs
from energon_pack.plan.settings import PackingConfig
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.steps.evenness import measure_cost_spread
from energon_pack.steps.topology import Topology, reading_order

NUM_RANKS, NUM_WORKERS, SHARD_PACKS = 16, 2, 512


def mixture(num: int, seed: int = 0) -> Items:
    """60 % text, 30 % images, 10 % videos; long-tailed."""
    rng = np.random.default_rng(seed)
    media = rng.choice(3, num, p=[0.6, 0.3, 0.1])
    num_images = np.where(media == 1, rng.choice([1, 1, 1, 2, 4], num), 0)
    visual = np.where(media == 1, num_images * rng.integers(64, 1024, num), 0)
    visual = np.where(media == 2, rng.integers(800, 7000, num), visual)
    lens = np.clip(rng.lognormal(5.4, 0.9, num), 20, 4000).astype(np.int64) + visual
    zeros = np.zeros(num, np.int64)
    counts = {"token_len": np.minimum(lens, 8192), "num_images": num_images, "num_visual_tokens": visual}
    return Items(counts, media, zeros, zeros, zeros, zeros + 1)


def slices(num_packs: int) -> list[list[int]]:
    """The packs that each worker of each rank gets from Energon."""
    counts = [min(SHARD_PACKS, num_packs - start) for start in range(0, num_packs, SHARD_PACKS)]
    shards = [ShardInfo(name=str(i), path=EPath(f"/{i}"), count=count) for i, count in enumerate(counts)]
    dealt = []
    for rank in range(NUM_RANKS):
        config = WorkerConfig(rank=rank, world_size=NUM_RANKS, num_workers=NUM_WORKERS)
        for offsets in Sharder.shard_workers(shards, config, max_samples_per_sequence=None):
            dealt.append(list(range(offsets[0], offsets[-1])))
    return dealt


def rows(items: Items, plan: PackPlan, order: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, list[float]]:
    """For each worker the means of its packs."""
    features = features_of_packs(items, plan)
    media = media_type_of_packs(items, plan)
    tokens = plan.sum_per_pack(items.lens)
    columns: dict[str, list[float]] = {}
    for mine in slices(plan.num_packs):
        packs = order[mine]
        members = features["members"][packs].sum()
        values = {
            "packs": len(packs),
            **{name: (media[packs] == code).mean() for code, name in enumerate(MEDIA_TYPES[:3])},
            "mean length": tokens[packs].sum() / members,
            "visual tokens": features["visual_tokens"][packs].mean(),
            "attention cost": features["attention_cost"][packs].mean() / 1e6,
        }
        for name, value in values.items():
            columns.setdefault(name, []).append(float(value))
    return columns


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    items = mixture(100_000)
    plan = plan_packs(items, PackingConfig(max_token_len=8192))
    ours = rows(items, plan, np.arange(plan.num_packs))
    longest = np.maximum.reduceat(items.lens[plan.items], plan.starts[:-1])
    theirs = rows(items, plan, np.lexsort((-longest, media_type_of_packs(items, plan))))

    console = Console(width=130)
    table = Table(
        box=None, pad_edge=False, title=f"{plan.num_packs:,} packs, {NUM_RANKS} ranks × {NUM_WORKERS} workers"
    )
    for name in ("rank.worker", *ours):
        table.add_column(name, justify="right")
    for i in range(NUM_RANKS * NUM_WORKERS):
        cells = [f"{values[i]:.1%}" if name in MEDIA_TYPES else f"{values[i]:,.1f}" for name, values in ours.items()]
        table.add_row(f"{i // NUM_WORKERS}.{i % NUM_WORKERS}", *cells)
    for label, columns in (("ours: max/min", ours), ("longest first: max/min", theirs)):
        ratios = [f"{max(values) / min(values):,.3f}" if min(values) else "∞" for values in columns.values()]
        table.add_row(label, *ratios, style="bold")
    console.print(table)
    for size in (8, 16):
        plan = plan_packs(items, PackingConfig(max_token_len=8192, topology=Topology(size)))
        by_chance = np.random.default_rng(0).permutation(plan.num_packs)
        together = reading_order(plan.num_packs, Topology(size))
        for name, values in features_of_packs(items, plan).items():
            if name != "members":
                even, chance = (
                    measure_cost_spread(values[order].astype(np.float64), size) for order in (together, by_chance)
                )
                said = f"{even.epoch:.4f} of a step, by chance {chance.epoch:.4f}, at least {even.bound:.4f}"
                console.print(f"packing.topology.data_parallel={size}, max/mean of {name} {said}")


if __name__ == "__main__":
    main()
