"""The third stage: write a plan as the shards of a dataset: first pack_plan.parquet, then one job for each shard.

`stage=plan` leaves the jobs in files, so that any process can write any share of the shards by `stage=write`:

    <staging folder>/.jobs/about.json           the run, its packages, the shards and their sizes
                     .jobs/packed-000000.tar    a pickled job, trusted like the plan itself
"""

import hashlib
import json
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from energon_pack.config import PackConfig, Stage, plain
from energon_pack.config.naming import are_same, content_settings
from energon_pack.dataset.destination import Destination, PlanMissing
from energon_pack.dataset.files import PLAN
from energon_pack.dataset.in_folder import JOBS
from energon_pack.dataset.losses import foresee
from energon_pack.dataset.plan_file import write_plan
from energon_pack.dataset.shards import ShardJob, WrittenShard, bytes_begun
from energon_pack.errors import amount
from energon_pack.lengths.method import Method
from energon_pack.plan.splits import SPLITS
from energon_pack.run.console import say
from energon_pack.run.context import Run
from energon_pack.run.executors.admission import packages, why_other_packages
from energon_pack.run.files import write_whole
from energon_pack.run.part import Part, Spans
from energon_pack.sources.reader import SourceChanged
from energon_pack.sources.shard import Source
from energon_pack.sources.storage import absolute
from energon_pack.stages.pages import page_of
from energon_pack.stages.planning import Planned

_ABOUT = "about.json"


def write_plan_file(config: PackConfig, planned: Planned, staging: Path) -> None:
    """Write pack_plan.parquet."""
    write_plan(staging / PLAN, planned.lengths, planned.plan, planned.shards, _names(config, planned))


def shard_jobs(
    config: PackConfig, planned: Planned, method: Method, staging: Path, root: str | None, is_shared: bool
) -> Iterator[ShardJob]:
    """Return the jobs that write `<prefix>-000000.tar` and the following shards.

    Args:
        root: the place of the source, if packs refer to media in it; None: media are copied.
        is_shared: other processes write shards, too: each shard is synced, and a file beside it says so.
    """
    lengths, plan, shards = planned.lengths, planned.plan, planned.shards
    sources = [item.shard for item in lengths.shards]
    members = np.split(plan.items, plan.starts[shards.bounds[1:-1]])
    chosen = zip(_names(config, planned), members, shards.splits.tolist(), strict=True)
    for number, (name, items, split) in enumerate(chosen):
        yield ShardJob(
            path=staging / name,
            plan=staging / PLAN,
            row_group=number,
            source={sources[n].name: sources[n] for n in np.unique(lengths.items.shard[items]).tolist()},
            settings=method.read,
            fingerprint=method.identity.fingerprint,
            flavor=lengths.flavor,
            split=SPLITS[split],
            checksums=lengths.checksums[items],
            root=root,
            identity=planned.identity if is_shared else None,
        )


def _names(config: PackConfig, planned: Planned) -> list[str]:
    return [f"{config.output.shard_prefix}-{number:06d}.tar" for number in range(len(planned.shards.splits))]


class Amount(NamedTuple):
    """The size of a write."""

    num_shards: int
    num_packs: int
    num_bytes: int | None  # approximate; None: not known


def write_shards(
    jobs: Iterable[ShardJob], destination: Destination, staging: Path, total: Amount, run: Run
) -> list[WrittenShard]:
    """Write shards; finished shards are only checked.

    Raises:
        SourceChanged: a source shard is not what was measured.
    """
    written = []
    begun = None if total.num_bytes is None else partial(bytes_begun, staging)
    unit = f"packs in {amount(total.num_shards, 'shard')}"
    with run.progress.stage("write", total.num_packs, unit, total.num_bytes, begun) as advance:
        for shard in run.executor.map(destination.write_shard, jobs):
            written.append(shard)
            if not shard.was_there:
                run.progress.add(shard.num_samples, shard.num_bytes)
            advance(shard.num_packs, None if begun is None else shard.num_bytes, is_new=not shard.was_there)
    return written


def leave_jobs(
    config: PackConfig, source: Source, planned: Planned, jobs: Iterable[ShardJob], staging: Path, why_not: str | None
) -> None:
    """Write the files that `stage=write` needs: one for each shard, and last, one about all of them.

    Args:
        why_not: why they would not be published; None: they may be written.
    """
    folder = staging / JOBS
    folder.mkdir(exist_ok=True)
    names = []
    for job in jobs:
        names.append(job.path.name)
        from_anywhere = {name: _from_anywhere(shard) for name, shard in job.source.items()}
        (folder / job.path.name).write_bytes(pickle.dumps(replace(job, source=from_anywhere)))
    shards = [*zip(names, np.diff(planned.shards.bounds).tolist(), planned.shards.sizes.tolist(), strict=True)]
    about = {
        "identity": planned.identity,
        "settings": plan_settings(config),
        "packages": packages(),
        "source": _state(source),
        "why_not": why_not,
        "shards": shards,
    }
    write_whole(folder / _ABOUT, json.dumps(about).encode())


def _state(source: Source) -> str:
    """Return a text that changes when a file of the source changes."""
    files = sorted((absolute(shard.path), shard.size, shard.version) for shard in source.shards)
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def _from_anywhere(shard: Any) -> Any:
    """Return a source shard with a path that works in any current folder."""
    return replace(shard, path=absolute(shard.path))


def planned_jobs(
    config: PackConfig, source: Source, destination: Destination, num_parts: int
) -> list[list[ShardJob]] | None:
    """Return the jobs of each part of a plan for these settings and this source; None: there is no plan."""
    try:
        with destination.planned() as staging:
            about = _read_about(config, staging)
            if about["source"] != _state(source):
                return None
            spans = Spans([size for _, _, size in about["shards"]])
            names = [name for name, *_ in about["shards"]]
            parts = (spans.within(Part(number, num_parts)) for number in range(num_parts))
            return [[*_read_jobs(staging, [names[n] for n in chosen])] for chosen in parts]
    except PlanMissing:
        return None


def _read_about(config: PackConfig, staging: Path) -> dict[str, Any]:
    """Read the file about all shards that `leave_jobs` wrote; raises like `write_share`."""
    try:
        about: dict[str, Any] = json.loads((staging / JOBS / _ABOUT).read_bytes())
    except FileNotFoundError:  # its process was killed
        raise PlanMissing(f"the plan in {staging} is not whole: stage=plan makes it anew") from None
    if not are_same(about["settings"], plan_settings(config)):
        raise PlanMissing(f"the plan in {staging} was made with other settings: stage=plan makes it anew")
    if why := why_other_packages(about["packages"]):
        raise PlanMissing(f"the plan in {staging} was made by other packages: {why}")
    foresee(about["why_not"], page_of(replace(config, stage=Stage.plan)))
    return about


def plan_settings(config: PackConfig) -> dict[str, Any]:
    """Return everything a plan depends on: the settings, and the places of the source."""
    paths = config.source.path if isinstance(config.source.path, list) else [config.source.path]
    places: list[Any] = [absolute(path) for path in (*paths, config.source.media_root) if path is not None]
    if config.source.mixture is not None:
        places.append(plain(config.source.mixture))
    return {**content_settings(config), "places": places}


def write_share(config: PackConfig, destination: Destination, part: Part, run: Run) -> dict[str, Any]:
    """Write one part of the shards that `stage=plan` planned; of the source, only the samples in them are read.

    Raises:
        PlanMissing: there is no plan, or it was made with other settings or by other packages.
        SamplesLost: the plan leaves out too much to be published.
        SourceChanged: the source changed since it was measured; the plan is then useless, and is removed.
    """
    with destination.planned() as staging, run.progress.timed("write"):
        about = _read_about(config, staging)
        names, num_packs, sizes = zip(*about["shards"], strict=True) if about["shards"] else ((), (), ())
        chosen = Spans(sizes).within(part)
        jobs = _read_jobs(staging, [names[n] for n in chosen])
        total = Amount(len(chosen), sum(num_packs[n] for n in chosen), sum(sizes[n] for n in chosen))
        try:
            written = write_shards(jobs, destination, staging, total, run)
        except SourceChanged:
            (staging / JOBS / _ABOUT).unlink(missing_ok=True)
            raise
    say(f"{amount(len(written), 'shard')} of {len(names)} written: part {part} of the plan of {destination.named}")
    return {"shards": len(written), "samples": sum(shard.num_samples for shard in written)}


def _read_jobs(staging: Path, names: Iterable[str]) -> Iterator[ShardJob]:
    """Read jobs that `leave_jobs` wrote, adapted to where the staging folder is now."""
    for name in names:
        job = pickle.loads((staging / JOBS / name).read_bytes())
        yield replace(job, path=staging / name, plan=staging / PLAN)
