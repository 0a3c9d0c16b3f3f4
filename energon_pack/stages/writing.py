"""The third stage: write a plan as the shards of a dataset: first pack_plan.parquet, then one job for each shard."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from energon_pack.config.stage_settings import ShardSettings
from energon_pack.dataset.files import PLAN
from energon_pack.dataset.in_folder import FolderDestination
from energon_pack.dataset.plan_file import write_plan
from energon_pack.dataset.shards import ShardJob, WrittenShard, num_unfinished_bytes, shard_name
from energon_pack.errors import amount
from energon_pack.lengths.measure import method_key
from energon_pack.plan.items import Lengths
from energon_pack.plan.splits import SPLITS
from energon_pack.run.seeded_random import Ints
from energon_pack.run.workshop import Workshop
from energon_pack.sources.shard import Shard
from energon_pack.stages.planning import Planned

#: of a sample: its checksum as measured, and where its tokens are kept
MEASURED_DTYPE = np.dtype([("checksum", "<u4"), ("kept", "<u8")])


def write_plan_file(planned: Planned, staging: Path, prefix: str) -> None:
    """Write pack_plan.parquet into the staging folder; `prefix`: the beginning of the shards' names."""
    names = [shard_name(prefix, number) for number in range(len(planned.shards.splits))]
    part = staging / f"{PLAN}.part"
    write_plan(part, planned.lengths, planned.plan, planned.shards, names)
    os.replace(part, staging / PLAN)


def make_shard_jobs(planned: Planned, staging: Path, settings: ShardSettings, workshop: Workshop) -> Iterator[ShardJob]:
    """Yield a job for each shard of a plan; if several processes write, each job marks its shard."""
    lengths, method = planned.lengths, planned.method
    sources = [item.shard for item in lengths.shards]
    identity = planned.identity if settings.is_shared else None
    made = MethodFiles(
        method.template_folder, method.identity.fingerprint, workshop.cache("lengths", method_key(method))
    )
    write = partial(make_shard_job, settings, made, staging, identity)
    for number, (items, split) in enumerate(zip(items_of_shards(planned), planned.shards.splits.tolist(), strict=True)):
        shards = [sources[n] for n in np.unique(lengths.items.shard[items]).tolist()]
        yield write(number, shards, SPLITS[split], checksums_and_places(lengths, items))


def checksums_and_places(lengths: Lengths, items: Ints) -> npt.NDArray[np.void]:
    """Return rows of `MEASURED_DTYPE` for these samples."""
    measured = np.empty(len(items), MEASURED_DTYPE)
    measured["checksum"], measured["kept"] = lengths.checksums[items], lengths.kept_token_places[items]
    return measured


def items_of_shards(planned: Planned) -> list[Ints]:
    """Return the indexes of the items in each shard."""
    return np.split(planned.plan.items, planned.plan.starts[planned.shards.bounds[1:-1]])


class MethodFiles(NamedTuple):
    """Where measuring left what writing needs: the template with its fingerprint (see `Method`), and kept tokens."""

    template_folder: str
    fingerprint: str
    tokens_folder: Path


def make_shard_job(
    settings: ShardSettings,
    method_files: MethodFiles,
    staging: Path,
    identity: str | None,
    shard_number: int,
    shards: Iterable[Shard],
    split: str,
    measured_rows: npt.NDArray[np.void],
) -> ShardJob:
    """Return the job of a shard; `shards`: of the source; `measured_rows`: rows of `MEASURED_DTYPE` for its samples."""
    return ShardJob(
        path=staging / shard_name(settings.prefix, shard_number),
        plan=staging / PLAN,
        row_group=shard_number,
        source={shard.name: shard for shard in shards},
        settings=settings.read,
        template_folder=method_files.template_folder,
        engine=settings.engine,
        fingerprint=method_files.fingerprint,
        flavor=settings.flavor,
        split=split,
        checksums=measured_rows["checksum"],
        token_places=measured_rows["kept"],
        tokens_folder=method_files.tokens_folder,
        source_root=settings.media_root,
        identity=identity,
        has_messages=settings.has_messages,
    )


class WriteSize(NamedTuple):
    """How much a run writes."""

    num_shards: int
    num_packs: int
    num_bytes: int | None  # approximate; None: not known


@dataclass(frozen=True)
class Written:
    """The shards of a plan, in a folder that is not published yet."""

    shards: list[WrittenShard]
    folder: Path
    media_root: str | None  # the place of the source, whose media packs refer to; None: packs hold their media


def write_shards(
    jobs: Iterable[ShardJob], destination: FolderDestination, staging: Path, total: WriteSize, workshop: Workshop
) -> list[WrittenShard]:
    """Write shards in the executor, and show the progress; finished shards are only checked.

    Raises:
        SourceChanged: a source shard is not what was measured.
    """
    written = []
    begun = None if total.num_bytes is None else partial(num_unfinished_bytes, staging)
    unit = f"packs in {amount(total.num_shards, 'shard')}"
    with workshop.progress.stage("write", total.num_packs, unit, total.num_bytes, begun) as advance:
        for shard in workshop.executor.map(destination.write_shard, jobs):
            written.append(shard)
            if not shard.was_there:
                workshop.progress.add(shard.num_samples, shard.num_bytes)
            advance(shard.num_packs, None if begun is None else shard.num_bytes, is_new=not shard.was_there)
    return written
