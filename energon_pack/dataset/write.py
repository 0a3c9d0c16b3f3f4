"""From a plan to the shards of a dataset: pack_plan.parquet first, then a job a shard."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from energon_pack.dataset.files import PLAN
from energon_pack.dataset.plan_file import ShardPlan, write_plan
from energon_pack.dataset.put_shard import put_shard
from energon_pack.dataset.shards import ShardJob, WrittenShard, bytes_begun, write_shard
from energon_pack.errors import amount
from energon_pack.lengths.method import Method
from energon_pack.plan.items import Lengths
from energon_pack.plan.plan import PackPlan
from energon_pack.plan.splits import SPLITS
from energon_pack.run.context import Run


@dataclass(frozen=True)
class Target:
    """Where packs are written."""

    staging: Path
    prefix: str  # of the names of shards
    root: str | None  # of the source: packs refer to media in it; None: media are copied
    stored: str | None  # address of the dataset, where its shards are put on an object store; else they are in staging
    is_shared: bool = False  # other machines write there, too


def write_shards(
    target: Target, lengths: Lengths, plan: PackPlan, shards: ShardPlan, method: Method, run: Run
) -> list[WrittenShard]:
    """Write `<prefix>-000000.tar` and those after it; pack_plan.parquet before them.

    Raises:
        SourceChanged: a source shard is not what was measured.
    """
    root, stored, plan_file = target.root, target.stored, target.staging / PLAN
    names = [f"{target.prefix}-{number:06d}.tar" for number in range(len(shards.splits))]
    write_plan(plan_file, lengths, plan, shards, names)
    sources = [item.shard for item in lengths.shards]
    members = np.split(plan.items, plan.starts[shards.bounds[1:-1]])
    fingerprint = method.identity.fingerprint
    jobs = (
        ShardJob(
            path=target.staging / names[number],
            plan=plan_file,
            row_group=number,
            source={sources[n].name: sources[n] for n in np.unique(lengths.items.shard[items]).tolist()},
            settings=method.read,
            fingerprint=fingerprint,
            flavor=lengths.flavor,
            split=SPLITS[split],
            checksums=lengths.checksums[items],
            root=root,
            stored=stored,
            is_synced=target.is_shared,
        )
        for number, (items, split) in enumerate(zip(members, shards.splits.tolist(), strict=True))
    )
    written = []
    unit = f"packs in {amount(len(members), 'shard')}"
    cost, begun = (shards.num_bytes, partial(bytes_begun, target.staging)) if root is None else (None, None)
    with run.progress.stage("write", plan.num_packs, unit, cost, begun) as advance:
        for shard in run.executor.map(write_shard if stored is None else put_shard, jobs):
            written.append(shard)
            if not shard.was_there:
                run.progress.add(shard.num_samples, shard.num_bytes)
            advance(shard.num_packs, shard.num_bytes if root is None else None, is_new=not shard.was_there)
    return written
