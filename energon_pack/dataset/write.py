"""From a plan to the shards of a dataset: pack_plan.parquet first, then a job a shard."""

from pathlib import Path

import numpy as np

from energon_pack.dataset.files import PLAN
from energon_pack.dataset.plan_file import ShardPlan, write_plan
from energon_pack.dataset.shards import ShardJob, WrittenShard, write_shard
from energon_pack.lengths.method import Method
from energon_pack.plan.items import Lengths
from energon_pack.plan.plan import PackPlan
from energon_pack.plan.splits import SPLITS
from energon_pack.run.context import Run


def write_shards(
    prefix: Path,
    lengths: Lengths,
    plan: PackPlan,
    shards: ShardPlan,
    method: Method,
    run: Run,
    stored: str | None = None,
) -> list[WrittenShard]:
    """Write `<prefix>-000000.tar` and those after it, and pack_plan.parquet beside them.

    Args:
        stored: address of a folder on an object store, in which the shards are written instead.

    Raises:
        SourceChanged: a source shard is not what was measured.
    """
    plan_file = prefix.with_name(PLAN)
    write_plan(plan_file, lengths, plan, shards)
    sources = [item.shard for item in lengths.shards]
    members = np.split(plan.items, plan.starts[shards.bounds[1:-1]])
    fingerprint = method.identity.fingerprint
    jobs = (
        ShardJob(
            path=prefix.with_name(f"{prefix.name}-{number:06d}.tar"),
            plan=plan_file,
            row_group=number,
            source={sources[n].name: sources[n] for n in np.unique(lengths.items.shard[items]).tolist()},
            settings=method.read,
            fingerprint=fingerprint,
            flavor=lengths.flavor,
            split=SPLITS[split],
            checksums=lengths.checksums[items],
            stored=stored,
        )
        for number, (items, split) in enumerate(zip(members, shards.splits.tolist(), strict=True))
    )
    written = []
    unit = f"packs in {len(members):,} shards"
    with run.progress.stage("write", plan.num_packs, unit, shards.num_bytes) as advance:
        for shard in run.executor.map(write_shard, jobs):
            written.append(shard)
            if not shard.was_there:
                run.progress.add(shard.num_samples, shard.num_bytes)
            advance(shard.num_packs, shard.num_bytes, is_new=not shard.was_there)
    return written
