"""The plan that `stage=plan` leaves, so that any process can write any share of its shards by `stage=write`.

Beside the settings, the source and pack_plan.parquet, a job has:

    <staging folder>/.jobs/measured      of each sample, in the order of the plan's rows: `MEASURED_DTYPE`
                     .jobs/template/     the template, as `Template.save` wrote it
                     .jobs/about.json    written last: the run, its packages, the shards and their sizes
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from energon_pack.config import Stage
from energon_pack.config.naming import are_same_settings
from energon_pack.config.stage_settings import PlanSettings, ShardSettings
from energon_pack.dataset.destination import PlanMissing
from energon_pack.dataset.files import PLAN
from energon_pack.dataset.in_folder import FolderDestination
from energon_pack.dataset.ledger import refuse_unpublishable_plan
from energon_pack.dataset.shards import ShardJob
from energon_pack.dataset.staging_files import ABOUT_FILE, JOBS_FOLDER
from energon_pack.errors import PackError, amount
from energon_pack.lengths.measure import LengthsWrong, cache_keys_of, forget_lengths
from energon_pack.plan.splits import SPLITS
from energon_pack.run.console import say
from energon_pack.run.executors import EqualSizeParts, WorkPart
from energon_pack.run.executors.admission import why_packages_differ
from energon_pack.run.files import write_atomically
from energon_pack.run.packages import package_versions
from energon_pack.run.workshop import Workshop
from energon_pack.sources.find import Source
from energon_pack.sources.reader import SourceChanged
from energon_pack.sources.storage import absolute
from energon_pack.stages.places import Places, page_path_of_stage
from energon_pack.stages.planning import Planned
from energon_pack.stages.writing import (
    MEASURED_DTYPE,
    MethodFiles,
    WriteSize,
    checksums_and_places,
    items_of_shards,
    make_shard_job,
    write_shards,
)

_MEASURED_FILE, _TEMPLATE_FOLDER = "measured", "template"


@dataclass(frozen=True)
class ExpectedPlan:
    """The plan that a run expects where `stage=plan` left one: its settings, its source and its page."""

    settings: dict[str, Any]
    source: Source
    page: Path

    @classmethod
    def of(cls, settings: PlanSettings, places: Places) -> "ExpectedPlan":
        """Return the plan that a run with these settings makes, or finds."""
        recorded = {**settings.content, "places": settings.source_paths}
        return cls(recorded, places.source, page_path_of_stage(places.output.destination, Stage.plan))

    @property
    def source_hash(self) -> str:
        """Return a hash that changes when a file of the source changes."""
        files = sorted((absolute(shard.path), shard.size, shard.version) for shard in self.source.shards)
        return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def write_job_files(planned: Planned, expected: ExpectedPlan, staging: Path, refusal: str | None) -> None:
    """Write the files from which `stage=write` makes its jobs; `refusal`: why nothing could be published, or None."""
    folder, method = staging / JOBS_FOLDER, planned.method
    folder.mkdir(exist_ok=True)
    (folder / ABOUT_FILE).unlink(missing_ok=True)
    shutil.copytree(method.template_folder, folder / _TEMPLATE_FOLDER, dirs_exist_ok=True)
    with open(folder / _MEASURED_FILE, "wb") as file:
        for items in items_of_shards(planned):
            file.write(checksums_and_places(planned.lengths, items).tobytes())
    shards = planned.shards
    splits = [SPLITS[split] for split in shards.splits.tolist()]
    about = {
        "identity": planned.identity,
        "fingerprint": method.identity.fingerprint,
        "settings": expected.settings,
        "packages": package_versions(),
        "source": expected.source_hash,
        "lengths": cache_keys_of(planned.lengths.shards, method),
        "why_not": refusal,
        "decoded": [item.shard.name for item in planned.lengths.shards if item.shard.decodes_videos],
        "shards": [*zip(splits, np.diff(shards.bounds).tolist(), shards.sizes.tolist(), strict=True)],
    }
    write_atomically(folder / ABOUT_FILE, json.dumps(about).encode())


def refuse_other_plan(destination: FolderDestination, settings: Mapping[str, Any], overwrite: bool) -> None:
    """Raise PackError if a plan that `stage=plan` left has other settings, unless `output.overwrite` is true."""
    about = _plan_record(destination.find_plan_folder())
    if about is not None and not overwrite and not are_same_settings(about["settings"], settings):
        raise PackError(
            f"{destination.place} has a plan of another run, with other settings, whose shards are being written:"
            " output.overwrite=true removes it, output.name=NAME writes beside it"
        )


def num_planned_shards(destination: FolderDestination) -> int | None:
    """Return the number of shards in the plan that `stage=plan` left; None if there is no plan."""
    about = _plan_record(destination.find_plan_folder())
    return None if about is None else len(about["shards"])


def planned_jobs(
    destination: FolderDestination, expected: ExpectedPlan, settings: ShardSettings, num_parts: int, cache_dir: Path
) -> list[list[ShardJob]] | None:
    """Return the jobs of the plan that is expected, in `num_parts` parts; None: there is no such plan."""
    try:
        with destination.open_plan_folder() as staging:
            about = _checked_plan_record(expected, staging)
            spans = EqualSizeParts([size for *_, size in about["shards"]])
            parts = (spans.items_by_middle(WorkPart(number, num_parts)) for number in range(num_parts))
            write = partial(_planned_jobs, expected.source, settings, staging, about, cache_dir / _tokens_folder(about))
            return [[*write(chosen)] for chosen in parts]
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


def _checked_plan_record(expected: ExpectedPlan, staging: Path) -> dict[str, Any]:
    """Return what `write_job_files` wrote about a plan; raises PlanMissing or SamplesLost as `write_part` does."""
    if (about := _plan_record(staging)) is None:
        raise PlanMissing(f"the plan in {staging} was removed: stage=plan makes it anew")
    if not are_same_settings(about["settings"], expected.settings):
        raise PlanMissing(f"the plan in {staging} was made with other settings: stage=plan makes it anew")
    if about["source"] != expected.source_hash:
        raise PlanMissing(f"the plan in {staging} was made before its source changed: stage=plan makes it anew")
    if why := why_packages_differ(about["packages"]):
        raise PlanMissing(f"the plan in {staging} was made by other packages: {why}")
    refuse_unpublishable_plan(about["why_not"], expected.page)
    return about


def write_part(
    destination: FolderDestination, expected: ExpectedPlan, part: WorkPart, settings: ShardSettings, workshop: Workshop
) -> dict[str, Any]:
    """Write one part of the shards that `stage=plan` planned; return the numbers of `shards` and `samples`.

    Of the source, only the samples in these shards are read.

    Raises:
        PlanMissing: there is no plan, or it was made with other settings, of another source, or by other packages.
        SamplesLost: the plan leaves out too much to be published.
        SourceChanged: the source changed since it was measured; the plan is then useless, and is removed.
        LengthsWrong: a sample has not so many tokens as were measured; the plan and the lengths are then removed.
    """
    with destination.open_plan_folder() as staging, workshop.progress.timed("write"):
        about = _checked_plan_record(expected, staging)
        _, num_packs, sizes = zip(*about["shards"], strict=True) if about["shards"] else ((), (), ())
        chosen = EqualSizeParts(sizes).items_by_middle(part)
        tokens_folder = workshop.cache(*_tokens_folder(about).parts)
        jobs = _planned_jobs(expected.source, settings, staging, about, tokens_folder, chosen)
        total = WriteSize(len(chosen), sum(num_packs[n] for n in chosen), sum(sizes[n] for n in chosen))
        try:
            written = write_shards(jobs, destination, staging, total, workshop)
        except (SourceChanged, LengthsWrong) as error:
            (staging / JOBS_FOLDER / ABOUT_FILE).unlink(missing_ok=True)
            if isinstance(error, LengthsWrong):
                forget_lengths(about["lengths"], workshop)
            raise
    say(f"{amount(len(written), 'shard')} of {len(sizes)} written: part {part} of the plan of {destination.place}")
    return {"shards": len(written), "samples": sum(shard.num_samples for shard in written)}


def _tokens_folder(about: Mapping[str, Any]) -> Path:
    """Return the folder of the cache in which the tokens of a plan's samples are kept."""
    return Path("lengths", about["lengths"][0])


def _planned_jobs(
    source: Source,
    settings: ShardSettings,
    staging: Path,
    about: dict[str, Any],
    tokens_folder: Path,
    numbers: Iterable[int],
) -> Iterator[ShardJob]:
    """Yield the jobs of the shards with these numbers in the plan that `stage=plan` left."""
    decoded = about.get("decoded", ())  # an earlier version counted no videos so
    shards = {shard.name: replace(shard, decodes_videos=shard.name in decoded) for shard in source.shards}
    made = MethodFiles(str(staging / JOBS_FOLDER / _TEMPLATE_FOLDER), about["fingerprint"], tokens_folder)
    write = partial(make_shard_job, settings, made, staging, about["identity"])
    with pq.ParquetFile(staging / PLAN) as plan:
        sizes = [plan.metadata.row_group(number).num_rows for number in range(plan.num_row_groups)]
        ends = np.cumsum(sizes)
        for number in numbers:
            names = plan.read_row_group(number, ["shard"])["shard"].unique().to_pylist()
            start = (ends[number] - sizes[number]) * MEASURED_DTYPE.itemsize
            measured = np.fromfile(staging / JOBS_FOLDER / _MEASURED_FILE, MEASURED_DTYPE, sizes[number], offset=start)
            yield write(number, [shards[name] for name in names], about["shards"][number][0], measured)
