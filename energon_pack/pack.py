"""Pack a source: run all stages up to a published dataset.

    resolve ──► index ──► measure ──► plan ──► write ──► check ──► publish

Each stage writes its result to files: lengths to the cache, the plan and the shards to a staging folder. At the end the
whole dataset appears under its name. `stage=` runs one stage, `part=` a share of one.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from energon_pack.config import ExecutorKind, Format, PackConfig, Stage
from energon_pack.config.resolve import Places, resolve
from energon_pack.dataset.check import claim_of, get_ready
from energon_pack.dataset.files import LEDGER
from energon_pack.dataset.finished import refuse_another
from energon_pack.dataset.losses import foresee
from energon_pack.dataset.plan_file import ledger, write_ledger
from energon_pack.errors import amount
from energon_pack.lengths.audit import finish, start
from energon_pack.lengths.measure import check_unchanged, forgetting_wrong
from energon_pack.lengths.method import Method
from energon_pack.report.printed import print_plan, print_stages
from energon_pack.report.run_report import RunReport
from energon_pack.run.console import say
from energon_pack.run.context import Run
from energon_pack.run.executors.choose import executor_of
from energon_pack.run.files import naming_place
from energon_pack.run.part import Part
from energon_pack.run.progress import Progress
from energon_pack.sources.described import read_as
from energon_pack.sources.forms import format_of
from energon_pack.sources.shard import Source
from energon_pack.stages import measuring, pages, planning, publishing, writing
from energon_pack.stages.planning import Planned

_BEFORE_WRITING = "index", "processor", "lengths", "plan"
_WHOLE = (*_BEFORE_WRITING, "write", "verify", "check", "report", "publish")
#: the stages that a run shows with their times, by its last stage
STAGES = {
    Stage.lengths: (*_BEFORE_WRITING, "report"),
    Stage.plan: (*_BEFORE_WRITING, "report"),
    Stage.write: ("write",),
    Stage.publish: _WHOLE,
    Stage.all: _WHOLE,
}


def pack(config: PackConfig, job: str = "") -> dict[str, Any]:
    """Pack a source; return the figures of report.json, or of the stage that the run ends with.

    Args:
        job: its name in a log, if several run at once.

    Raises:
        PackError: refused or wrong input. Nothing is published.
        SamplesLost: bad data cost more than `max_skipped`, or a whole modality. Nothing is published.
    """
    part = Part.parse(config.part) if config.part else None
    with executor_of(config.executor) as executor:
        run = Run(executor, Progress(STAGES[config.stage], job))
        places = resolve(config)
        is_found = config.source.format == Format.auto and not config.source.is_demo
        config = _as_found(config, places.source)
        executor.share(places.folders)
        if config.stage is Stage.write:
            return writing.write_share(config, places, part or Part(0, 1), run)
        run = replace(run, cache_dir=places.cache_dir, mirror=places.mirror)
        if part is None:
            return _pack(config, places, is_found, run)
        number = measuring.measure_share(config, places, part, run)
        say(f"the lengths of {amount(number, 'sample')} are in {places.cache_dir}: part {part} of the source")
        return {"samples": number}


def _as_found(config: PackConfig, source: Source) -> PackConfig:
    """Return the config with the format that the source was found to have."""
    if config.source.format != Format.auto:
        return config
    return replace(config, source=replace(config.source, format=format_of(source).value))


def _pack(config: PackConfig, places: Places, is_found: bool, run: Run) -> dict[str, Any]:
    indexed = measuring.index_source(config, places, run)  # before the processor: a damaged tar stops the run at once
    if is_found:
        num_samples = sum(item.num_rows for item in indexed)
        say(f"read as: {read_as(places.source, config.source.reading, num_samples)}")
    method, cost = measuring.prepare_method(config, places, run)
    for line in method.lines(config.model.template):
        say(line)
    given, config = config, replace(config, model=replace(config.model, template=method.choice.template))
    measured, method = measuring.measure_source(config, places, indexed, method, run)
    page = RunReport(given, places.processor, measured.lengths, measured.num_repeated, method, run)
    if config.stage is Stage.lengths:
        return pages.try_pack_lens(config, measured, page, run)
    planned = planning.plan_source(config, measured, method, cost, run)
    print_plan(planned.report)
    page.add_plan(planned.lengths, planned.plan, planned.report, cost)
    why_not = planning.why_unpublished(planned.report, config)
    if places.there is not None:
        refuse_another(places.there, planned.identity, places.destination.named)
        if why_not is None:
            return publishing.there_already(places.there, places.destination, planned, page, method, run)
    if config.stage is Stage.plan:
        return _leave_plan(given, config, places, planned, page, method, run)
    return _write(given, config, places, planned, page, method, run)


def _leave_plan(
    given: PackConfig, config: PackConfig, places: Places, planned: Planned, page: RunReport, method: Method, run: Run
) -> dict[str, Any]:
    """End a run after its plan: write its page, and the files that `stage=write` needs."""
    why_not = planning.why_unpublished(planned.report, config)
    pages.write_page(page, ledger(planned.lengths, planned.plan, config.packing), why_not, config)
    destination = places.destination
    if why_not is None and (places.overwrite or destination.is_free()):  # else nothing could be published
        check = partial(writing.refuse_other_plan, given, destination)
        with naming_place("output.dir", places.output_dir), destination.staging(planned.identity, check) as staging:
            destination.begin(staging, planned.identity, 0, places.overwrite)
            writing.write_plan_file(config, planned, staging)
            never = planning.why_unpublished(planned.report, replace(config, stage=Stage.publish))
            writing.leave_jobs(given, places.source, planned, method, staging, never)
    print_stages(run.progress)
    foresee(why_not, pages.page_of(config))
    return planned.report.to_json()


def _write(
    given: PackConfig, config: PackConfig, places: Places, planned: Planned, page: RunReport, method: Method, run: Run
) -> dict[str, Any]:
    """Write shards, check and publish them; for `stage=publish`, other processes have written them."""
    destination, root, lengths = places.destination, places.media_root(config), planned.lengths
    with (
        naming_place("output.dir", places.output_dir),
        destination.staging(planned.identity, partial(writing.refuse_other_plan, given, destination)) as staging,
        forgetting_wrong(lengths.shards, method, run),
    ):
        write_ledger(staging / LEDGER, lengths, planned.plan, config.packing)
        if why_not := planning.why_unpublished(planned.report, config):
            pages.leave_page(page, why_not, planned.report, staging / LEDGER, places.final)
        destination.begin(staging, planned.identity, 0 if root else planned.shards.num_bytes, places.overwrite)
        is_shared = config.stage is Stage.publish or config.executor.kind != ExecutorKind.local
        jobs = partial(writing.shard_jobs, config, planned, method, staging, root, is_shared)
        writing.write_plan_file(config, planned, staging)
        if config.stage is Stage.publish:
            publishing.refuse_unwritten(jobs(), destination)
        auditing = start(lengths.shards, method, config.measure.verify, config.seed, run, is_shared)
        claim = "" if destination.address else claim_of(lengths.flavor, config.output.dataset_yaml.value)
        run.executor.start(get_ready, claim)  # the imports of the check, while packs are written
        with run.progress.timed("write"):
            check_unchanged(lengths.shards, run)
            num_bytes = None if root else planned.shards.num_bytes  # without media, packs are small
            total = writing.Amount(len(planned.shards.sizes), planned.plan.num_packs, num_bytes)
            written = writing.write_shards(jobs(), destination, staging, total, run)
            publishing.write_beside(config, planned, method, written, staging)
        with run.progress.timed("verify"):
            audit = finish(auditing, run)
        publishing.check_written(planned, written, destination, staging, root, run)
        facts = publishing.facts_of(given, planned, method, written, audit, root, run)
        return publishing.publish(places, planned, page, facts, audit, staging, run)
