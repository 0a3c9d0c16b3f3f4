"""The third stage: write a plan as the shards of a dataset: first pack_plan.parquet, then one job for each shard.

`stage=plan` leaves what a job has beside the settings, the source and the plan, so that any process can write any share
of the shards by `stage=write`:

    <staging folder>/.jobs/measured      of each sample, in the order of the plan's rows: `_MEASURED_DTYPE`
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
from energon_pack.config.naming import are_same_settings, content_settings
from energon_pack.config.output_dir import page_of
from energon_pack.dataset.destination import PlanMissing
from energon_pack.dataset.files import PLAN
from energon_pack.dataset.in_folder import DatasetInFolder
from energon_pack.dataset.plan_file import write_plan
from energon_pack.dataset.publish_limits import refuse_future_loss
from energon_pack.dataset.shards import ShardJob, WrittenShard, num_unfinished_bytes, shard_name
from energon_pack.dataset.staging_files import ABOUT_FILE, JOBS_FOLDER
from energon_pack.errors import PackError, amount
from energon_pack.lengths.measure import LengthsWrong, cache_keys_of, forget, method_key
from energon_pack.plan.items import Lengths
from energon_pack.plan.splits import SPLITS
from energon_pack.run.console import say
from energon_pack.run.executors.admission import package_versions, why_other_packages
from energon_pack.run.files import write_whole
from energon_pack.run.seeded_random import Ints
from energon_pack.run.work_parts import EqualSpans, Part
from energon_pack.sources.find import Source
from energon_pack.sources.media_map import media_map_of
from energon_pack.sources.reader import SourceChanged
from energon_pack.sources.shard import Shard
from energon_pack.sources.storage import absolute
from energon_pack.stages.pack_run import PackRun
from energon_pack.stages.planning import Planned

_MEASURED_FILE, _TEMPLATE_FOLDER = "measured", "template"
#: its checksum as measured, and where its tokens are kept
_MEASURED_DTYPE = np.dtype([("checksum", "<u4"), ("kept", "<u8")])


def write_plan_file(run: PackRun, planned: Planned, staging: Path) -> None:
    """Write pack_plan.parquet into the staging folder."""
    names = [shard_name(run.config.output.shard_prefix, number) for number in range(len(planned.shards.splits))]
    part = staging / f"{PLAN}.part"
    write_plan(part, planned.lengths, planned.plan, planned.shards, names)
    os.replace(part, staging / PLAN)


def shard_jobs(run: PackRun, planned: Planned, staging: Path, is_shared: bool) -> Iterator[ShardJob]:
    """Yield a job for each shard of a plan; `is_shared`: several processes write: each job marks its shard."""
    lengths, method = planned.lengths, planned.method
    sources = [item.shard for item in lengths.shards]
    identity = planned.identity if is_shared else None
    kept_in, fingerprint = method_key(method), method.identity.fingerprint
    write = partial(_job, run, staging, method.template_folder, kept_in, fingerprint, identity)
    for number, (items, split) in enumerate(
        zip(_items_of_shards(planned), planned.shards.splits.tolist(), strict=True)
    ):
        shards = [sources[n] for n in np.unique(lengths.items.shard[items]).tolist()]
        yield write(number, shards, SPLITS[split], _measured_rows(lengths, items))


def _measured_rows(lengths: Lengths, items: Ints) -> npt.NDArray[np.void]:
    measured = np.empty(len(items), _MEASURED_DTYPE)
    measured["checksum"], measured["kept"] = lengths.checksums[items], lengths.kept_token_places[items]
    return measured


def _items_of_shards(planned: Planned) -> list[Ints]:
    """Return the indexes of the items in each shard."""
    return np.split(planned.plan.items, planned.plan.starts[planned.shards.bounds[1:-1]])


def _job(
    run: PackRun,
    staging: Path,
    template_folder: str,
    kept_in: str,
    fingerprint: str,
    identity: str | None,
    number: int,
    shards: Iterable[Shard],
    split: str,
    measured: npt.NDArray[np.void],
) -> ShardJob:
    config = run.config
    return ShardJob(
        path=staging / shard_name(config.output.shard_prefix, number),
        plan=staging / PLAN,
        row_group=number,
        source={shard.name: shard for shard in shards},
        settings=config.source.reading,
        template_folder=template_folder,
        engine=config.measure.engine.value,
        fingerprint=fingerprint,
        flavor=config.flavor(),
        split=split,
        checksums=measured["checksum"],
        token_places=measured["kept"],
        tokens_folder=run.cache("lengths", kept_in),
        source_root=run.media_root,
        identity=identity,
        has_messages=config.output.messages,
    )


class WriteSize(NamedTuple):
    """How much a run writes."""

    num_shards: int
    num_packs: int
    num_bytes: int | None  # approximate; None: not known


def write_shards(run: PackRun, jobs: Iterable[ShardJob], staging: Path, total: WriteSize) -> list[WrittenShard]:
    """Write shards in the executor, and show the progress; finished shards are only checked.

    Raises:
        SourceChanged: a source shard is not what was measured.
    """
    written = []
    begun = None if total.num_bytes is None else partial(num_unfinished_bytes, staging)
    unit = f"packs in {amount(total.num_shards, 'shard')}"
    with run.progress.stage("write", total.num_packs, unit, total.num_bytes, begun) as advance:
        for shard in run.executor.map(run.destination.write_shard, jobs):
            written.append(shard)
            if not shard.was_there:
                run.progress.add(shard.num_samples, shard.num_bytes)
            advance(shard.num_packs, None if begun is None else shard.num_bytes, is_new=not shard.was_there)
    return written


def write_job_files(run: PackRun, planned: Planned, staging: Path, why_not: str | None) -> None:
    """Write the files from which `stage=write` makes its jobs; `why_not`: why nothing could be published, or None."""
    folder, method = staging / JOBS_FOLDER, planned.method
    folder.mkdir(exist_ok=True)
    (folder / ABOUT_FILE).unlink(missing_ok=True)
    shutil.copytree(method.template_folder, folder / _TEMPLATE_FOLDER, dirs_exist_ok=True)
    with open(folder / _MEASURED_FILE, "wb") as file:
        for items in _items_of_shards(planned):
            file.write(_measured_rows(planned.lengths, items).tobytes())
    shards = planned.shards
    splits = [SPLITS[split] for split in shards.splits.tolist()]
    about = {
        "identity": planned.identity,
        "fingerprint": method.identity.fingerprint,
        "settings": plan_settings(run.config),
        "packages": package_versions(),
        "source": _source_hash(run.source),
        "lengths": cache_keys_of(planned.lengths.shards, method),
        "why_not": why_not,
        "decoded": [item.shard.name for item in planned.lengths.shards if item.shard.decodes_videos],
        "shards": [*zip(splits, np.diff(shards.bounds).tolist(), shards.sizes.tolist(), strict=True)],
    }
    write_whole(folder / ABOUT_FILE, json.dumps(about).encode())


def _source_hash(source: Source) -> str:
    """Return a hash that changes when a file of the source changes."""
    files = sorted((absolute(shard.path), shard.size, shard.version) for shard in source.shards)
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def refuse_other_plan(run: PackRun) -> None:
    """Raise PackError if a plan that `stage=plan` left has other settings, unless `output.overwrite` is true."""
    config, destination = run.config, run.destination
    about = _plan_record(destination.plan_folder())
    if (
        about is not None
        and not config.output.overwrite
        and not are_same_settings(about["settings"], plan_settings(config))
    ):
        raise PackError(
            f"{destination.place} has a plan of another run, with other settings, whose shards are being written:"
            " output.overwrite=true removes it, output.name=NAME writes beside it"
        )


def num_planned_shards(destination: DatasetInFolder) -> int | None:
    """Return the number of shards in the plan that `stage=plan` left; None if there is no plan."""
    about = _plan_record(destination.plan_folder())
    return None if about is None else len(about["shards"])


def planned_jobs(run: PackRun, num_parts: int) -> list[list[ShardJob]] | None:
    """Return the jobs of a plan for these settings and this source, in `num_parts` parts; None: there is no plan."""
    try:
        with run.destination.open_plan() as staging:
            about = _checked_plan_record(run, staging)
            spans = EqualSpans([size for *_, size in about["shards"]])
            parts = (spans.items_in(Part(number, num_parts)) for number in range(num_parts))
            return [[*_planned_jobs(run, staging, about, chosen)] for chosen in parts]
    except PlanMissing:
        return None


def _plan_record(staging: Path | None) -> dict[str, Any] | None:
    """Return what `write_job_files` wrote about a plan; None if there is no plan, or it was removed meanwhile."""
    with suppress(FileNotFoundError):
        about: dict[str, Any] | None = (
            json.loads((staging / JOBS_FOLDER / ABOUT_FILE).read_bytes()) if staging else None
        )
        return about
    return None


def _checked_plan_record(run: PackRun, staging: Path) -> dict[str, Any]:
    """Return what `write_job_files` wrote about a plan; raises PlanMissing or SamplesLost as `write_part` does."""
    if (about := _plan_record(staging)) is None:
        raise PlanMissing(f"the plan in {staging} was removed: stage=plan makes it anew")
    if not are_same_settings(about["settings"], plan_settings(run.config)):
        raise PlanMissing(f"the plan in {staging} was made with other settings: stage=plan makes it anew")
    if about["source"] != _source_hash(run.source):
        raise PlanMissing(f"the plan in {staging} was made before its source changed: stage=plan makes it anew")
    if why := why_other_packages(about["packages"]):
        raise PlanMissing(f"the plan in {staging} was made by other packages: {why}")
    refuse_future_loss(about["why_not"], page_of(replace(run.config, stage=Stage.plan)))
    return about


def plan_settings(config: PackConfig) -> dict[str, Any]:
    """Return all settings that a plan depends on: the content settings, and the places of the source."""
    path, root, media_map = config.source.path, config.source.media_root, config.source.media_map
    paths = path if isinstance(path, list) else [path]
    places: list[Any] = [absolute(each) if isinstance(each, str) else each for each in (*paths, root) if each]
    return {**content_settings(config), "places": [*places, *media_map_of(media_map)]}


def write_part(run: PackRun, part: Part) -> dict[str, Any]:
    """Write one part of the shards that `stage=plan` planned; return the numbers of `shards` and `samples`.

    Of the source, only the samples in these shards are read.

    Raises:
        PlanMissing: there is no plan, or it was made with other settings, of another source, or by other packages.
        SamplesLost: the plan leaves out too much to be published.
        SourceChanged: the source changed since it was measured; the plan is then useless, and is removed.
        LengthsWrong: a sample has not so many tokens as were measured; the plan and the lengths are then removed.
    """
    with run.destination.open_plan() as staging, run.progress.timed("write"):
        about = _checked_plan_record(run, staging)
        _, num_packs, sizes = zip(*about["shards"], strict=True) if about["shards"] else ((), (), ())
        chosen = EqualSpans(sizes).items_in(part)
        jobs = _planned_jobs(run, staging, about, chosen)
        total = WriteSize(len(chosen), sum(num_packs[n] for n in chosen), sum(sizes[n] for n in chosen))
        try:
            written = write_shards(run, jobs, staging, total)
        except (SourceChanged, LengthsWrong) as error:
            (staging / JOBS_FOLDER / ABOUT_FILE).unlink(missing_ok=True)
            if isinstance(error, LengthsWrong):
                forget(about["lengths"], run)
            raise
    say(f"{amount(len(written), 'shard')} of {len(sizes)} written: part {part} of the plan of {run.destination.place}")
    return {"shards": len(written), "samples": sum(shard.num_samples for shard in written)}


def _planned_jobs(run: PackRun, staging: Path, about: dict[str, Any], numbers: Iterable[int]) -> Iterator[ShardJob]:
    """Yield the jobs of the shards with these numbers in the plan that `stage=plan` left."""
    decoded = about.get("decoded", ())  # an earlier version counted no videos so
    shards = {shard.name: replace(shard, decodes_videos=shard.name in decoded) for shard in run.source.shards}
    folder = str(staging / JOBS_FOLDER / _TEMPLATE_FOLDER)
    write = partial(_job, run, staging, folder, about["lengths"][0], about["fingerprint"], about["identity"])
    with pq.ParquetFile(staging / PLAN) as plan:
        sizes = [plan.metadata.row_group(number).num_rows for number in range(plan.num_row_groups)]
        ends = np.cumsum(sizes)
        for number in numbers:
            names = plan.read_row_group(number, ["shard"])["shard"].unique().to_pylist()
            start = (ends[number] - sizes[number]) * _MEASURED_DTYPE.itemsize
            measured = np.fromfile(staging / JOBS_FOLDER / _MEASURED_FILE, _MEASURED_DTYPE, sizes[number], offset=start)
            yield write(number, [shards[name] for name in names], about["shards"][number][0], measured)
