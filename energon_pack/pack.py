"""Pack a source: run all stages up to a published dataset.

    resolve ──► index ──► measure ──► plan ──► write ──► check ──► publish

Each stage writes its result to files: lengths to the cache, the plan and the shards to a staging folder. At the end the
whole dataset appears under its name. `stage=` runs one stage, `part=` a share of one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from energon_pack.config import ExecutorKind, Format, PackConfig, Stage
from energon_pack.config.output_dir import may_overwrite, page_of
from energon_pack.dataset.destination import refuse_other_dataset
from energon_pack.dataset.energon_check import cache_key_of, import_energon
from energon_pack.dataset.files import LEDGER
from energon_pack.dataset.publish_limits import refuse_future_loss
from energon_pack.dataset.skipped_file import ledger_entries, write_ledger
from energon_pack.lengths.audit import finish, start
from energon_pack.lengths.measure import check_unchanged, dropping_wrong_lengths
from energon_pack.report.run_report import RunReport
from energon_pack.report.terminal_summary import print_plan, print_stages
from energon_pack.run.console import say
from energon_pack.run.context import executor_of
from energon_pack.run.files import naming_full_disk
from energon_pack.run.progress import Progress
from energon_pack.run.work_parts import Part
from energon_pack.sources.source_path import source_format, source_line
from energon_pack.stages import measuring, pages, planning, publishing, writing
from energon_pack.stages.pack_run import PackRun, begin_run
from energon_pack.stages.planning import Planned

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
    part = Part.parse(config.part) if config.part else None
    with executor_of(config.executor) as executor:
        run = begin_run(config, executor, Progress(SHOWN_STAGES[config.stage], job))
        is_found = config.source.format == Format.auto and not config.source.is_demo
        run = _with_found_format(run)
        executor.share(run.shared_folders)
        if config.stage is Stage.write:
            return writing.write_part(run, part or Part(0, 1))
        return _pack(run, is_found) if part is None else measuring.measure_part(run, part)


def _with_found_format(run: PackRun) -> PackRun:
    """Return the run with the format that its source has in place of `source.format=auto`."""
    config = run.config
    if config.source.format != Format.auto:
        return run
    return replace(run, config=replace(config, source=replace(config.source, format=source_format(run.source).value)))


def _pack(run: PackRun, is_found: bool) -> dict[str, Any]:
    config = run.config
    indexed = measuring.index_source(run)  # before the processor: a damaged tar stops the run at once
    if is_found:
        num_samples = sum(item.num_rows for item in indexed)
        say(f"read as: {source_line(run.source, num_samples)}")
    method = measuring.prepare_method(run)
    for line in method.lines(config.model.template):
        say(line)
    measured = measuring.measure_source(run, indexed, method)
    page = RunReport(config, run.processor, measured.lengths, measured.num_repeated, measured.method, run)
    if config.stage is Stage.lengths:
        return pages.try_pack_lens(run, measured, page)
    planned = planning.plan_source(run, measured)
    print_plan(planned.report)
    page.add_plan(planned.lengths, planned.plan, planned.report)
    if run.published is not None:
        refuse_other_dataset(run.published, planned.identity, run.destination.place)
        if planning.why_unpublished(run, planned.report) is None:
            return publishing.end_already_published(run, planned, page, run.published)
    return (_end_with_plan if config.stage is Stage.plan else _write_and_publish)(run, planned, page)


def _end_with_plan(run: PackRun, planned: Planned, page: RunReport) -> dict[str, Any]:
    """End a run after its plan: write its page, and the files that `stage=write` needs."""
    why_not = planning.why_unpublished(run, planned.report)
    pages.write_page(run, page, ledger_entries(planned.lengths, planned.plan, run.config.packing), why_not)
    if why_not is None and (may_overwrite(run.config) or run.destination.is_free()):  # else nothing could be published
        with _staging(run, planned) as staging:
            run.destination.begin(staging, planned.identity, 0, may_overwrite(run.config))
            writing.write_plan_file(run, planned, staging)
            publishes = replace(run, config=replace(run.config, stage=Stage.publish))
            writing.write_job_files(run, planned, staging, planning.why_unpublished(publishes, planned.report))
    print_stages(run.progress)
    refuse_future_loss(why_not, page_of(run.config), planned.report)
    return planned.report.to_json()


@contextmanager
def _staging(run: PackRun, planned: Planned) -> Iterator[Path]:
    """Open the folder that the run writes into."""
    destination, check = run.destination, partial(writing.refuse_other_plan, run)
    with (
        naming_full_disk("output.dir", destination.final.parent),
        destination.staging(planned.identity, check) as staging,
    ):
        yield staging


def _write_and_publish(run: PackRun, planned: Planned, page: RunReport) -> dict[str, Any]:
    """Write shards, check and publish them; for `stage=publish`, other processes have written them."""
    config, destination, lengths, method = run.config, run.destination, planned.lengths, planned.method
    num_bytes = None if run.media_root else planned.shards.num_bytes  # without media, packs are small
    with _staging(run, planned) as staging, dropping_wrong_lengths(lengths.shards, method, run):
        write_ledger(staging / LEDGER, lengths, planned.plan, config.packing)
        if why_not := planning.why_unpublished(run, planned.report):
            pages.write_page_and_raise(run, page, why_not, planned.report, staging / LEDGER)
        destination.begin(staging, planned.identity, num_bytes or 0, may_overwrite(run.config))
        is_shared = config.stage is Stage.publish or config.executor.kind != ExecutorKind.local
        jobs = partial(writing.shard_jobs, run, planned, staging, is_shared)
        writing.write_plan_file(run, planned, staging)
        if config.stage is Stage.publish:
            publishing.refuse_missing_shards(run, jobs())
        auditing = start(lengths.shards, method, config.measure.verify, config.seed, run)
        cache_key = "" if destination.is_stored else cache_key_of(lengths.flavor, config.output.dataset_yaml.value)
        run.executor.start(import_energon, cache_key)  # the imports of the check, while packs are written
        with run.progress.timed("write"):
            check_unchanged(lengths.shards, run)
            total = writing.WriteSize(len(planned.shards.sizes), planned.plan.num_packs, num_bytes)
            written = writing.write_shards(run, jobs(), staging, total)
            publishing.write_nv_meta(run, planned, written, staging)
        with run.progress.timed("verify"):
            audit = finish(auditing, run)
        publishing.check_written(run, planned, written, staging)
        return publishing.publish(run, planned, page, written, audit, staging)
