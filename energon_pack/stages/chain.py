"""Run the stages as Slurm jobs: find which jobs are missing, submit them, and follow their progress."""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from energon_pack.config import PackConfig, Stage
from energon_pack.config.naming import cache_address, cache_folder
from energon_pack.config.stage_settings import ShardSettings, StageSettings
from energon_pack.dataset.destination import read_report_if_intact
from energon_pack.dataset.in_folder import FolderDestination
from energon_pack.errors import PackError
from energon_pack.run.console import say
from energon_pack.run.executors.admission import terms_with_mark_files
from energon_pack.run.executors.slurm import LENGTHS, PLAN, PUBLISH, WRITE, SlurmJobChain
from energon_pack.run.workshop import one_process_at_a_time
from energon_pack.stages.places import Places, prepare_places
from energon_pack.stages.plan_on_disk import (
    ExpectedPlan,
    num_planned_shards,
    planned_jobs,
    refuse_other_plan,
)

#: stages, and the numbers of the parts of each; None: the stage has no parts
MissingStages: TypeAlias = dict[str, Sequence[int] | None]


def run_stages_as_slurm_jobs(config: PackConfig, command: Sequence[str]) -> dict[str, Any]:
    """Submit the missing stages of a run as Slurm jobs, and wait for them unless `executor.wait=false`.

    Args:
        command: the command of each job, without the stage.

    Returns:
        The figures of report.json; empty if the run does not wait, or only shows the jobs' scripts.

    Raises:
        PackError: refused input; there is no Slurm, or it refuses; or a job failed.
    """
    if config.stage is not Stage.all:
        raise PackError(f"executor=slurm submits all stages: stage={config.stage.value} takes executor=local")
    if cache_address(config.cache_dir, config.output.dir) is not None:
        raise PackError(
            "executor=slurm with the cache on an object store: the jobs meet in it by files, so cache_dir=FOLDER has to"
            " be on a file system that all nodes see; output.dir may be a store"
        )
    places = prepare_places(config)
    destination = places.output.destination
    name = f"{destination.final.name}-{hashlib.sha256(destination.place.encode()).hexdigest()[:8]}"
    folder = cache_folder(config.cache_dir, config.output.dir).absolute() / "slurm" / name
    chain = SlurmJobChain(config.executor, folder, command)
    settings = StageSettings.of(config, places.source, places.processor)
    expected = ExpectedPlan.of(settings.plan, places)
    missing = partial(_missing_stages, places, expected, settings.shards, config.executor.num_tasks)
    if config.executor.show:
        for stage, script in chain.build_scripts_by_stage(missing()).items():
            for line in (f"# {folder / stage}.sh", *script.split("\n")):
                say(line)
        return {}
    with one_process_at_a_time(folder):
        jobs = _submit_or_find_jobs(places, chain, expected.settings, config.output.overwrite, missing)
    if not config.executor.wait:
        say("not waited for: the same command without executor.wait=false shows how far they are")
        return {}
    try:
        chain.wait(jobs, lambda: _progress(destination))
    except KeyboardInterrupt:
        say(f"not waited for any more; the jobs go on. To end them: scancel {' '.join(jobs.values())}")
        raise
    say(f"{'there already:' if places.published_report is not None else 'packed into'} {destination.place}")
    return read_report_if_intact(destination.place) or {}


def _submit_or_find_jobs(
    places: Places,
    chain: SlurmJobChain,
    settings: dict[str, Any],
    overwrite: bool,
    missing: Callable[[], MissingStages],
) -> dict[str, str]:
    """Return the ids of a run's Slurm jobs by stage: jobs that do this run already, or jobs that are submitted now."""
    run_settings = json.dumps(settings, sort_keys=True)
    if jobs := chain.find_submitted_jobs(run_settings):
        say(f"Slurm's jobs {', '.join(jobs.values())} do this run already; logs in {chain.folder}")
        return jobs
    refuse_other_plan(places.output.destination, settings, overwrite)
    stages = missing()
    chain.folder.mkdir(parents=True, exist_ok=True)
    with terms_with_mark_files(places.shared_folders, kept_as=chain.folder.name) as terms:
        jobs = chain.submit(stages, terms, run_settings)
    say(f"submitted as Slurm's jobs {', '.join(jobs.values())}; logs in {chain.folder}")
    return jobs


def _missing_stages(places: Places, expected: ExpectedPlan, settings: ShardSettings, num_tasks: int) -> MissingStages:
    """Return the stages that are still missing, and the missing parts of each."""
    all_parts = range(num_tasks)
    if places.published_report is not None:
        return {LENGTHS: all_parts, PUBLISH: None}
    jobs = planned_jobs(places.output.destination, expected, settings, len(all_parts), places.cache_dir)
    if jobs is None:
        return {LENGTHS: all_parts, PLAN: None, WRITE: all_parts, PUBLISH: None}
    has_shard = places.output.destination.has_shard
    parts = [part for part, jobs_of_part in enumerate(jobs) if not all(map(has_shard, jobs_of_part))]
    return {WRITE: parts, PUBLISH: None} if parts else {PUBLISH: None}


def _progress(destination: FolderDestination) -> str:
    """Return a text about how far a run is, by its files."""
    staging = destination.final.parent / ".staging" / destination.final.name
    num_done, num_shards = len([*staging.glob("*/*.tar.done")]), num_planned_shards(destination)
    return f"{num_done} of {num_shards} shards written" if num_shards else "no plan yet"
