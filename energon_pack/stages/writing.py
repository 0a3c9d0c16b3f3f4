"""The third stage: write a plan as the shards of a dataset: first pack_plan.parquet, then one job for each shard.

`stage=plan` leaves what a job has beside the settings, the source and the plan, so that any process can write any share
of the shards by `stage=write`:

    <staging folder>/.jobs/checksums     of each sample as measured, in the order of the plan's rows: uint32
                     .jobs/template/     the template, as `Template.save` wrote it
                     .jobs/about.json    written last: the run, its packages, the shards and their sizes
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from energon_pack.config import PackConfig, Stage
from energon_pack.config.naming import are_same, content_settings
from energon_pack.config.resolve import Places
from energon_pack.dataset.destination import Destination, PlanMissing
from energon_pack.dataset.files import PLAN
from energon_pack.dataset.in_folder import ABOUT, JOBS
from energon_pack.dataset.losses import foresee
from energon_pack.dataset.plan_file import write_plan
from energon_pack.dataset.shards import ShardJob, WrittenShard, bytes_begun
from energon_pack.errors import PackError, amount
from energon_pack.lengths.measure import LengthsWrong, cached_as, forget
from energon_pack.lengths.method import Method
from energon_pack.plan.splits import SPLITS
from energon_pack.run.console import say
from energon_pack.run.context import Run
from energon_pack.run.executors.admission import packages, why_other_packages
from energon_pack.run.files import write_whole
from energon_pack.run.part import Part, Spans
from energon_pack.run.seeded import Ints
from energon_pack.sources.reader import SourceChanged
from energon_pack.sources.shard import Shard, Source
from energon_pack.sources.storage import absolute
from energon_pack.stages.pages import page_of
from energon_pack.stages.planning import Planned

_CHECKSUMS, _CHECKSUM, _TEMPLATE = "checksums", "<u4", "template"


def write_plan_file(config: PackConfig, planned: Planned, staging: Path) -> None:
    """Write pack_plan.parquet."""
    names = [_name(config, number) for number in range(len(planned.shards.splits))]
    part = staging / f"{PLAN}.part"
    write_plan(part, planned.lengths, planned.plan, planned.shards, names)
    os.replace(part, staging / PLAN)


def shard_jobs(
    config: PackConfig, planned: Planned, method: Method, staging: Path, root: str | None, is_shared: bool
) -> Iterator[ShardJob]:
    """Return the jobs that write `<prefix>-000000.tar` and the following shards.

    Args:
        root: the place of the source, if packs refer to media in it; None: media are copied.
        is_shared: other processes write shards, too: each shard is synced, and a file beside it says so.
    """
    lengths = planned.lengths
    sources = [item.shard for item in lengths.shards]
    identity = planned.identity if is_shared else None
    write = partial(_job, config, staging, method.template_folder, method.identity.fingerprint, root, identity)
    for number, (items, split) in enumerate(zip(_members(planned), planned.shards.splits.tolist(), strict=True)):
        shards = [sources[n] for n in np.unique(lengths.items.shard[items]).tolist()]
        yield write(number, shards, SPLITS[split], lengths.checksums[items])


def _members(planned: Planned) -> list[Ints]:
    """Return the items of each shard."""
    return np.split(planned.plan.items, planned.plan.starts[planned.shards.bounds[1:-1]])


def _job(
    config: PackConfig,
    staging: Path,
    template_folder: str,
    fingerprint: str,
    root: str | None,
    identity: str | None,
    number: int,
    shards: Iterable[Shard],
    split: str,
    checksums: npt.NDArray[np.uint32],
) -> ShardJob:
    return ShardJob(
        path=staging / _name(config, number),
        plan=staging / PLAN,
        row_group=number,
        source={shard.name: shard for shard in shards},
        settings=config.source.reading,
        template_folder=template_folder,
        engine=config.measure.engine.value,
        fingerprint=fingerprint,
        flavor=config.flavor(),
        split=split,
        checksums=checksums,
        root=root,
        identity=identity,
        has_messages=config.output.messages,
    )


def _name(config: PackConfig, number: int) -> str:
    return f"{config.output.shard_prefix}-{number:06d}.tar"


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
    config: PackConfig, source: Source, planned: Planned, method: Method, staging: Path, why_not: str | None
) -> None:
    """Write the files that `stage=write` needs.

    Args:
        why_not: why the shards would not be published; None: they may be written.
    """
    folder = staging / JOBS
    folder.mkdir(exist_ok=True)
    (folder / ABOUT).unlink(missing_ok=True)
    shutil.copytree(method.template_folder, folder / _TEMPLATE, dirs_exist_ok=True)
    with open(folder / _CHECKSUMS, "wb") as file:
        for items in _members(planned):
            file.write(planned.lengths.checksums[items].astype(_CHECKSUM).tobytes())
    shards = planned.shards
    splits = [SPLITS[split] for split in shards.splits.tolist()]
    about = {
        "identity": planned.identity,
        "fingerprint": method.identity.fingerprint,
        "settings": plan_settings(config),
        "packages": packages(),
        "source": _state(source),
        "lengths": cached_as(planned.lengths.shards, method),
        "why_not": why_not,
        "shards": [*zip(splits, np.diff(shards.bounds).tolist(), shards.sizes.tolist(), strict=True)],
    }
    write_whole(folder / ABOUT, json.dumps(about).encode())


def _state(source: Source) -> str:
    """Return a text that changes when a file of the source changes."""
    files = sorted((absolute(shard.path), shard.size, shard.version) for shard in source.shards)
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def refuse_other_plan(config: PackConfig, destination: Destination) -> None:
    """Raise PackError if a plan with other settings waits there for `stage=write`, and may not be replaced."""
    about = _about(destination.plan())
    if about is not None and not config.output.overwrite and not are_same(about["settings"], plan_settings(config)):
        raise PackError(
            f"{destination.named} has a plan of another run, with other settings, whose shards are being written:"
            " output.overwrite=true removes it, output.name=NAME writes beside it"
        )


def num_planned(destination: Destination) -> int | None:
    """Return the number of shards of the plan that waits there for `stage=write`; None: there is no plan."""
    about = _about(destination.plan())
    return None if about is None else len(about["shards"])


def planned_jobs(config: PackConfig, places: Places, num_parts: int) -> list[list[ShardJob]] | None:
    """Return the jobs of each part of a plan for these settings and this source; None: there is no plan."""
    try:
        with places.destination.planned() as staging:
            about = _read_about(config, places.source, staging)
            spans = Spans([size for *_, size in about["shards"]])
            parts = (spans.within(Part(number, num_parts)) for number in range(num_parts))
            return [[*_planned_jobs(config, places, staging, about, chosen)] for chosen in parts]
    except PlanMissing:
        return None


def _about(staging: Path | None) -> dict[str, Any] | None:
    """Return what `leave_jobs` wrote about a plan; None: there is none, or it was removed meanwhile."""
    with suppress(FileNotFoundError):
        about: dict[str, Any] | None = json.loads((staging / JOBS / ABOUT).read_bytes()) if staging else None
        return about
    return None


def _read_about(config: PackConfig, source: Source, staging: Path) -> dict[str, Any]:
    """Read what `leave_jobs` wrote; raises like `write_share`."""
    if (about := _about(staging)) is None:
        raise PlanMissing(f"the plan in {staging} was removed: stage=plan makes it anew")
    if not are_same(about["settings"], plan_settings(config)):
        raise PlanMissing(f"the plan in {staging} was made with other settings: stage=plan makes it anew")
    if about["source"] != _state(source):
        raise PlanMissing(f"the plan in {staging} was made before its source changed: stage=plan makes it anew")
    if why := why_other_packages(about["packages"]):
        raise PlanMissing(f"the plan in {staging} was made by other packages: {why}")
    foresee(about["why_not"], page_of(replace(config, stage=Stage.plan)))
    return about


def plan_settings(config: PackConfig) -> dict[str, Any]:
    """Return everything a plan depends on: the settings, and the places of the source."""
    path, root = config.source.path, config.source.media_root
    paths = path if isinstance(path, list) else [path]
    places: list[Any] = [absolute(each) if isinstance(each, str) else each for each in (*paths, root) if each]
    return {**content_settings(config), "places": places}


def write_share(config: PackConfig, places: Places, part: Part, run: Run) -> dict[str, Any]:
    """Write one part of the shards that `stage=plan` planned; of the source, only the samples in them are read.

    Raises:
        PlanMissing: there is no plan, or it was made with other settings, of another source, or by other packages.
        SamplesLost: the plan leaves out too much to be published.
        SourceChanged: the source changed since it was measured; the plan is then useless, and is removed.
        LengthsWrong: a sample has not so many tokens as were measured; the plan and the lengths are then removed.
    """
    destination = places.destination
    with destination.planned() as staging, run.progress.timed("write"):
        about = _read_about(config, places.source, staging)
        _, num_packs, sizes = zip(*about["shards"], strict=True) if about["shards"] else ((), (), ())
        chosen = Spans(sizes).within(part)
        jobs = _planned_jobs(config, places, staging, about, chosen)
        total = Amount(len(chosen), sum(num_packs[n] for n in chosen), sum(sizes[n] for n in chosen))
        try:
            written = write_shards(jobs, destination, staging, total, run)
        except (SourceChanged, LengthsWrong) as error:
            (staging / JOBS / ABOUT).unlink(missing_ok=True)
            if isinstance(error, LengthsWrong):
                forget(about["lengths"], replace(run, cache_dir=places.cache_dir, mirror=places.mirror))
            raise
    say(f"{amount(len(written), 'shard')} of {len(sizes)} written: part {part} of the plan of {destination.named}")
    return {"shards": len(written), "samples": sum(shard.num_samples for shard in written)}


def _planned_jobs(
    config: PackConfig, places: Places, staging: Path, about: dict[str, Any], numbers: Iterable[int]
) -> Iterator[ShardJob]:
    """Return the jobs of these shards of a plan."""
    shards = {shard.name: shard for shard in places.source.shards}
    folder, root = str(staging / JOBS / _TEMPLATE), places.media_root(config)
    write = partial(_job, config, staging, folder, about["fingerprint"], root, about["identity"])
    with pq.ParquetFile(staging / PLAN) as plan:
        sizes = [plan.metadata.row_group(number).num_rows for number in range(plan.num_row_groups)]
        ends = np.cumsum(sizes)
        for number in numbers:
            names = plan.read_row_group(number, ["shard"])["shard"].unique().to_pylist()
            start = (ends[number] - sizes[number]) * np.dtype(_CHECKSUM).itemsize
            checksums = np.fromfile(staging / JOBS / _CHECKSUMS, _CHECKSUM, sizes[number], offset=start)
            yield write(number, [shards[name] for name in names], about["shards"][number][0], checksums)
