"""Pack a source: run all stages up to a published dataset.

    find places ──► index ──► processor ──► lengths ──► plan ──► write ──► verify ──► check ──► publish

    stage        returns             what happens to a sample
    find places  Places
    index        list[IndexedShard]  It is found in its file, and drawn or not by the ratio of this file.
    processor    Method
    lengths      Measured            The lengths of the conversations that it becomes are measured. Its tokens are kept.
    plan         Planned             A mixture draws it. It is cut, left out, or gets a place in a pack and a shard.
    write        Written             Its kept tokens are written there, with its JSON and its media, or references.
    verify       AuditResult         If it is one of the few that are chosen, the full processor tokenizes it again.
    check                            Its shard is compared with the plan, and Energon reads it.
    publish      figures             Its dataset appears under its name, with report.json, which has these figures.

Each stage writes its result to files: lengths and tokens to the cache, the plan and the shards to a staging folder.
`stage=` runs one stage, `part=` a share of one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from energon_pack.config import Format, PackConfig, Stage
from energon_pack.config.stage_settings import StageSettings
from energon_pack.config.validate import checked_config
from energon_pack.dataset.destination import refuse_changed_identity
from energon_pack.dataset.energon_check import hash_yamls_and_versions, import_energon_if_needed
from energon_pack.dataset.files import LEDGER
from energon_pack.dataset.in_folder import FolderDestination
from energon_pack.dataset.ledger import ledger_entries, refuse_unpublishable_plan, why_unpublished, write_ledger
from energon_pack.lengths import audit
from energon_pack.lengths.measure import dropping_wrong_lengths, refuse_changed_shards
from energon_pack.report.run_report import RunPageWriter
from energon_pack.report.terminal_summary import print_plan_summary, print_stage_times_and_memory
from energon_pack.run.console import say
from energon_pack.run.executors import WorkPart
from energon_pack.run.files import reporting_full_disk
from energon_pack.run.progress import Progress
from energon_pack.run.workshop import Workshop, executor_of
from energon_pack.sources.source_path import source_format, source_summary
from energon_pack.stages import measuring, planning, publishing, writing
from energon_pack.stages.places import Places, prepare_places
from energon_pack.stages.plan_on_disk import ExpectedPlan, refuse_other_plan, write_job_files, write_part
from energon_pack.stages.planning import Planned
from energon_pack.stages.writing import Written

_STAGES_BEFORE_WRITING = "index", "processor", "lengths", "plan"
_ALL_STAGES = (*_STAGES_BEFORE_WRITING, "write", "verify", "check", "report", "publish")
#: the stages that a run shows with their times, by its last stage
SHOWN_STAGES = {
    Stage.lengths: (*_STAGES_BEFORE_WRITING, "report"),
    Stage.plan: (*_STAGES_BEFORE_WRITING, "report"),
    Stage.write: ("write",),
    Stage.publish: _ALL_STAGES,
    Stage.all: _ALL_STAGES,
}


def pack(config: PackConfig, job: str = "") -> dict[str, Any]:
    """Pack a source; return the figures of report.json, or of the stage that the run ends with.

    Args:
        job: name of this job in its lines of progress, if several run at once.

    Raises:
        PackError: refused or wrong input. Nothing is published.
        SamplesLost: bad data cost more than `max_skipped`, or a whole modality. Nothing is published.
    """
    config = checked_config(config)  # one that was made in Python has not been checked yet
    part = WorkPart.parse(config.part) if config.part else None
    with executor_of(config.executor) as executor:
        progress, places = Progress(SHOWN_STAGES[config.stage], job), prepare_places(config)
        format_is_guessed = config.source.format == Format.auto and not config.source.is_demo
        if config.source.format == Format.auto:
            config = replace(config, source=replace(config.source, format=source_format(places.source).value))
        executor.share(places.shared_folders)
        workshop = places.workshop(executor, progress)
        settings = StageSettings.of(config, places.source, places.processor)
        if config.stage is Stage.write:
            expected = ExpectedPlan.of(settings.plan, places)
            return write_part(places.output.destination, expected, part or WorkPart(0, 1), settings.shards, workshop)
        if part is not None:
            return measuring.measure_part_of_source(places.source, part, settings.method, settings.lengths, workshop)
        return _run_stages(settings, places, format_is_guessed, workshop)


def _run_stages(settings: StageSettings, places: Places, format_is_guessed: bool, workshop: Workshop) -> dict[str, Any]:
    """Run the stages in a row up to the one that the run ends with.

    Args:
        format_is_guessed: the user gave no format, and a line says which one the source has.
    """
    source, end = places.source, settings.end
    # before the processor: a damaged tar stops the run at once, unless `source.on_damaged` keeps the rest of it
    indexed = measuring.index_source(source.shards, settings.method.keep_damaged, settings.plan.seed, workshop)
    if format_is_guessed:
        num_samples = sum(item.num_rows for item in indexed)
        say(f"read as: {source_summary(source, num_samples)}")
    method = measuring.prepare_measuring_method(settings.method, workshop)
    for line in method.template_lines(settings.method.template.model.template):
        say(line)
    measured = measuring.measure_source(source, indexed, method, settings.lengths, workshop)
    run_report = RunPageWriter(
        end, places.processor, measured.lengths, measured.num_repeated, measured.method, workshop
    )
    if end.stage is Stage.lengths:
        return publishing.print_pack_len_trials(measured, run_report, places.output.page, end, workshop)
    planned = planning.plan_source(measured, settings.plan, workshop)
    print_plan_summary(planned.report)
    run_report.add_plan(planned.lengths, planned.plan, planned.report)
    refusal = why_unpublished(planned.report, end.max_skipped, end.packing if places.output.publishes else None)
    if places.published_report is not None:
        refuse_changed_identity(places.published_report, planned.identity, places.output.destination.place)
        if refusal is None:
            return publishing.finish_published_run(planned, run_report, places, end.output, workshop)
    if end.stage is Stage.plan:
        return _end_with_plan(settings, places, planned, run_report, refusal, workshop)
    return _write_and_publish(settings, places, planned, run_report, refusal, workshop)


def _end_with_plan(
    settings: StageSettings,
    places: Places,
    planned: Planned,
    run_report: RunPageWriter,
    refusal: str | None,
    workshop: Workshop,
) -> dict[str, Any]:
    """End a run after its plan: write its page, and the files that `stage=write` needs."""
    output, end, expected = places.output, settings.end, ExpectedPlan.of(settings.plan, places)
    publishing.write_page(output.page, run_report, ledger_entries(planned.lengths, planned.plan, end.packing), refusal)
    if refusal is None and (output.may_overwrite or output.destination.is_free()):  # else nothing could be published
        with _staging(output.destination, planned.identity, expected, end.output.overwrite) as staging:
            output.destination.begin_writing(staging, planned.identity, 0, output.may_overwrite)
            writing.write_plan_file(planned, staging, settings.shards.prefix)
            refusal_of_dataset = why_unpublished(planned.report, end.max_skipped, end.packing)
            write_job_files(planned, expected, staging, refusal_of_dataset)
    print_stage_times_and_memory(workshop.progress)
    refuse_unpublishable_plan(refusal, output.page, planned.report)
    return planned.report.to_json()


@contextmanager
def _staging(destination: FolderDestination, identity: str, expected: ExpectedPlan, overwrite: bool) -> Iterator[Path]:
    """Open the folder that the run writes into; `overwrite`: the plan of another run that is there goes."""
    check = partial(refuse_other_plan, destination, expected.settings, overwrite)
    with (
        reporting_full_disk("output.dir", destination.final.parent),
        destination.open_staging(identity, check) as staging,
    ):
        yield staging


def _write_and_publish(
    settings: StageSettings,
    places: Places,
    planned: Planned,
    run_report: RunPageWriter,
    refusal: str | None,
    workshop: Workshop,
) -> dict[str, Any]:
    """Write shards, check and publish them; for `stage=publish`, other processes have written them."""
    output, end, lengths, method = places.output, settings.end, planned.lengths, planned.method
    destination, expected = output.destination, ExpectedPlan.of(settings.plan, places)
    num_bytes = None if settings.shards.media_root else planned.shards.num_bytes  # without media, packs are small
    with (
        _staging(destination, planned.identity, expected, end.output.overwrite) as staging,
        dropping_wrong_lengths(lengths.shards, method, workshop),
    ):
        write_ledger(staging / LEDGER, lengths, planned.plan, end.packing)
        if refusal:
            publishing.write_page_and_raise(destination.final, run_report, refusal, planned.report, staging / LEDGER)
        destination.begin_writing(staging, planned.identity, num_bytes or 0, output.may_overwrite)
        jobs = partial(writing.make_shard_jobs, planned, staging, settings.shards, workshop)
        writing.write_plan_file(planned, staging, settings.shards.prefix)
        if end.stage is Stage.publish:
            publishing.refuse_missing_shards(destination, jobs())
        auditing = audit.start(lengths.shards, method, settings.lengths.verify, settings.lengths.seed, workshop)
        cache_key = (
            "" if destination.is_stored else hash_yamls_and_versions(lengths.flavor, end.output.dataset_yaml.value)
        )
        # the imports of the check, while packs are written
        workshop.executor.start(import_energon_if_needed, cache_key)
        with workshop.progress.timed("write"):
            refuse_changed_shards(lengths.shards, workshop)
            total = writing.WriteSize(len(planned.shards.sizes), planned.plan.num_packs, num_bytes)
            shards = writing.write_shards(jobs(), destination, staging, total, workshop)
            written = Written(shards, staging, settings.shards.media_root)
            publishing.write_nv_meta(planned, written, end.output)
        with workshop.progress.timed("verify"):
            audited = audit.finish(auditing, workshop)
        publishing.check_written(planned, written, destination, workshop)
        return publishing.publish(planned, written, audited, run_report, output, end.everything, workshop.progress)
