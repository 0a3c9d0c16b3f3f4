"""The pipeline, from a source to a published dataset.

    resolve ──► index ──► measure ──► plan ──► write ──► check ──► publish

Each stage leaves its result in a file (lengths in the cache, the plan and the shards in a staging folder), and the
dataset appears under its name at the end, whole.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from energon_pack.config import ExecutorKind, MediaIn, OnDamaged, PackConfig, Stage, plain
from energon_pack.config.naming import content_settings, shards_identity
from energon_pack.config.resolve import Places, final_folder, meeting_of, resolve, stored_dataset
from energon_pack.dataset.check import check, get_ready, reconcile
from energon_pack.dataset.check import job_of as check_job
from energon_pack.dataset.energon import manifest_of, write_metadata
from energon_pack.dataset.files import LEDGER, PAGE
from energon_pack.dataset.finished import refuse_another
from energon_pack.dataset.losses import bad_data, dropped, foresee, kept_ledger, losses, page_beside, refuse_losses
from energon_pack.dataset.manifest import REPLAY, REPORT
from energon_pack.dataset.plan_file import ShardPlan, entries_of, ledger, plan_shards, write_ledger
from energon_pack.dataset.publish import (
    announce,
    appeared,
    discarding_shards,
    publish,
    refuse_little_space,
    refuse_unwritable,
    staging_folder,
)
from energon_pack.dataset.replay import start_replay
from energon_pack.dataset.shards import WrittenShard
from energon_pack.dataset.stored import begin_there, put_for_check
from energon_pack.dataset.write import Target, write_shards
from energon_pack.errors import SamplesLost, printable
from energon_pack.lengths.audit import Audit, finish, start
from energon_pack.lengths.changed_media import check_media
from energon_pack.lengths.index import IndexedShard, draw_samples, first_samples, index_shards
from energon_pack.lengths.measure import MeasuredShard, check_unchanged, forgetting_wrong, measured_by
from energon_pack.lengths.method import Method, prepare
from energon_pack.plan.compare_lens import print_choices, try_lens
from energon_pack.plan.items import Lengths
from energon_pack.plan.overlong import CUTTING, check_overlong, cut_overlong
from energon_pack.plan.plan import PackPlan, check_splits, no_plan, plan_packs
from energon_pack.plan.report import Report, RunFacts, print_plan, print_stages, summarize
from energon_pack.plan.splits import split_shares
from energon_pack.report.remark import Remark
from energon_pack.report.run_report import RunReport, Seen
from energon_pack.run.console import say
from energon_pack.run.context import Run
from energon_pack.run.executors import Executor
from energon_pack.run.executors.choose import drive, note_of, term_of
from energon_pack.run.files import META_FOLDER, naming_place, write_whole
from energon_pack.run.progress import Progress
from energon_pack.run.scratch import Scratch
from energon_pack.sources.draws import parse_slice
from energon_pack.steps.cost import CostModel, cost_model
from energon_pack.templates.folder import local_folder
from energon_pack.templates.settings import TemplateSettings

_BEFORE_WRITING = "index", "processor", "lengths", "plan"
#: of a run, by what it ends with
STAGES = {
    Stage.lengths: (*_BEFORE_WRITING, "report"),
    Stage.plan: (*_BEFORE_WRITING, "report"),
    Stage.all: (*_BEFORE_WRITING, "write", "verify", "check", "report", "publish"),
}


def pack(config: PackConfig, job: str = "") -> dict[str, Any]:
    """Pack a source; the figures of report.json, or those of the stage it ends with.

    Args:
        job: what it is called in a log, where several run at once.

    Raises:
        PackError: refused or wrong input. Nothing is published.
        SamplesLost: bad data cost more than `max_skipped`, or a whole modality. Nothing is published.
    """
    progress = Progress(STAGES[config.stage], job)
    return drive(config.executor, meeting_of(config), progress, partial(_pack, config, progress))


def _pack(config: PackConfig, progress: Progress, executor: Executor) -> dict[str, Any]:
    term, note = term_of(executor), note_of(executor)
    named = stored_dataset(config) or str(final_folder(config))
    if figures := appeared(note, named):
        return figures
    places = resolve(config)
    root = places.source.root if config.output.media is MediaIn.reference else None
    if config.stage is not Stage.all:
        refuse_unwritable("output.dir", places.output_dir)  # their page lies there
    executor.share(places.folders)
    run = Run(executor, progress, places.cache_dir, places.mirror)
    indexed = index_source(config, places, run)  # before the processor: a damaged tar stops the run at once
    method, cost = prepare_method(config, places, run)
    for line in method.lines(config.model.template):
        say(line)
    given, config = config, replace(config, model=replace(config.model, template=method.choice.template))
    measured, method = measure_source(config, places, indexed, method, run)
    page = RunReport(given, places.processor, measured.lengths, measured.num_repeated, method, run)
    if config.stage is Stage.lengths:
        return _choose(config, measured, page, run)
    planned = plan_source(config, measured, method, cost, run)
    print_plan(planned.report)
    page.add_plan(planned.lengths, planned.plan, planned.report, cost)
    why_not = _why_not(planned.report, config)
    if places.there is not None:
        refuse_another(places.there, planned.identity, places.named)
        if why_not is None:
            return _there_already(places.there, places, planned, page, method, run)
    if config.stage is Stage.plan:
        skipped = ledger(planned.lengths, planned.plan, config.packing)
        _write_page(page, skipped, why_not, config)
        print_stages(run.progress)
        foresee(why_not, page_of(config))
        return planned.report.to_json()
    with (
        naming_place("output.dir", places.output_dir),
        staging_folder(places.final, planned.identity, term) as staging,
        forgetting_wrong(planned.lengths.shards, method, run),
    ):
        if figures := appeared(note, named):  # of a driver that was away; from now on it finds nothing to publish
            return figures
        write_ledger(staging / LEDGER, planned.lengths, planned.plan, config.packing)
        if why_not:
            _leave_page(page, why_not, planned.report, staging / LEDGER, places.final)
        if places.stored:
            begin_there(places.stored, planned.identity)
        elif root is None:  # without media, packs are small
            refuse_little_space(staging, planned.shards.num_bytes)
        is_shared = config.executor.kind is not ExecutorKind.local
        replaying = start_replay(planned.lengths, planned.plan, method, config.seed, run)
        auditing = start(planned.lengths.shards, method, config.measure.verify, config.seed, run, is_shared)
        executor.start(get_ready, None)  # the imports of the check, while packs are written
        target = Target(staging, config.output.shard_prefix, root, places.stored, is_shared)
        written = _write(config, planned, method, target, run)
        with run.progress.timed("verify"):
            audit = finish(auditing, run)
            write_whole(staging / META_FOLDER / REPLAY, run.executor.result(replaying))
        _check(planned, written, target, run)
        report = replace(planned.report, run=_facts(given, planned, method, written, audit, run, root))
        write_whole(staging / REPORT, json.dumps(report.to_json(), indent=2).encode())
        skipped = entries_of(staging / LEDGER)
        seen = page.write(staging / PAGE, skipped, report.run, places.for_energon, LEDGER, None, staging, places.stored)
        with run.progress.timed("publish"):
            announce(note, staging / REPORT)
            publish(staging, places.final, places.overwrite, places.stored, planned.identity)
    print_stages(run.progress)
    _say_wrong(seen.wrong)
    load = f'load it with megatron.energon.get_train_dataset("{places.for_energon}", ...)'
    for line in (*audit.lines(), f"packed into {places.named}", f"see it: {places.named}/{PAGE}", load):
        say(line)
    return report.to_json()


def index_source(config: PackConfig, places: Places, run: Run) -> list[IndexedShard]:
    with run.timed("index"):
        return index_shards(places.source.shards, config.source.on_damaged is OnDamaged.keep, run)


def prepare_method(config: PackConfig, places: Places, run: Run) -> tuple[Method, CostModel]:
    with run.timed("processor"):
        folder = local_folder(replace(config.model, processor=places.processor))  # a hub id is looked up once
        model = replace(config.model, processor=os.fspath(folder))
        settings = TemplateSettings(model, config.media, config.labels)
        return prepare(settings, config.source.reading, config.measure.engine.value, run), cost_model(folder)


@dataclass(frozen=True)
class Measured:
    """The samples that are drawn from the source."""

    lengths: Lengths
    num_found: int  # samples in the source, those that its settings leave out among them
    num_repeated: int  # draws of samples that were drawn before


def measure_source(
    config: PackConfig, places: Places, indexed: list[IndexedShard], method: Method, run: Run
) -> tuple[Measured, Method]:
    """Measure the samples that are drawn; the method is another one where the shortcut was wrong."""
    source, limit = places.source, config.source.limit
    with run.timed("lengths"):
        drawn = draw_samples(indexed, parse_slice(config.source.slice), config.seed)
        num_excluded = sum(map(len, source.excluded.values()))
        measured, method = measured_by(first_samples(drawn, limit, num_excluded), method, run)
        flavor, shares = config.output.packed_flavor(), split_shares(plain(config.output.splits))
        return Measured(
            lengths=Lengths(measured, source.excluded, limit, flavor, shares, config.seed, Scratch(run.cache())),
            num_found=sum(item.num_rows for item in indexed) + source.num_left_out,
            num_repeated=sum(item.num_repeated for item in drawn),
        ), method


def _choose(config: PackConfig, measured: Measured, page: RunReport, run: Run) -> dict[str, Any]:
    """What each pack length would drop: the end of `stage=lengths`."""
    with run.timed("plan"):
        choices = try_lens(measured.lengths, config.packing, config.report.lens, page.most_positions)
        page.add_choices(choices.lens)
    print_choices(choices)
    why_not = bad_data(choices, config.max_skipped)
    skipped = ledger(measured.lengths, no_plan(measured.lengths.items), config.packing)
    _write_page(page, skipped, why_not, config)
    foresee(why_not, page_of(config))
    return choices.to_json()


def _why_not(report: Report, config: PackConfig) -> str | None:
    """Why nothing is published; a plan that drops much is there to be looked at, and to be swept over."""
    why = losses(report, config.max_skipped)
    return why or (dropped(report, config.packing) if config.stage is Stage.all else None)


def _leave_page(page: RunReport, why_not: str, report: Report, skipped: Path, final: Path) -> NoReturn:
    """End a run that publishes nothing, and leave its page and its ledger beside where the dataset would have been."""
    if not report.samples_in:
        raise SamplesLost(f"{why_not}: nothing is published")
    kept = kept_ledger(final)
    _say_seen(page.write(page_beside(final, PAGE), entries_of(skipped), ledger_name=kept.name, failed=why_not))
    refuse_losses(why_not, skipped, final)


def page_of(config: PackConfig) -> Path:
    """Where the page of a run is that ends well: in its dataset, or of another stage beside where one would be."""
    final = final_folder(config)
    return final / PAGE if config.stage is Stage.all else page_beside(final, f"{config.stage.value}.html")


def _write_page(page: RunReport, skipped: Iterable[Mapping[str, Any]], why_not: str | None, config: PackConfig) -> None:
    """The page of a stage that publishes no dataset."""
    path = page_of(config)
    with naming_place("output.dir", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        _say_seen(page.write(path, skipped, failed=why_not))
    say(f"see it: {path}")


def _say_seen(seen: Seen) -> None:
    """The first sample of each reason, where no dataset has a ledger of them; then what is wrong."""
    for reason, entries in seen.examples.items():
        say(printable(f"first {reason}: {entries[0]['sample_id']}: {entries[0]['detail']}"))
    _say_wrong(seen.wrong)


def _say_wrong(wrong: Iterable[Remark]) -> None:
    for remark in wrong:
        say(printable(f"wrong: {remark.what}: {remark.why}; {remark.knob}"))


@dataclass(frozen=True)
class Planned:
    """Which samples go into which pack, and which packs into which shard."""

    lengths: Lengths
    plan: PackPlan
    cost: CostModel  # of a sample
    shards: ShardPlan
    identity: str  # of all that the bytes of the shards depend on
    report: Report


def plan_source(config: PackConfig, measured: Measured, method: Method, cost: CostModel, run: Run) -> Planned:
    lengths, packing, output = measured.lengths, config.packing, config.output
    with run.timed("plan"):
        if packing.overlong in CUTTING:
            with forgetting_wrong(lengths.shards, method, run):
                lengths = cut_overlong(lengths, method, packing, run)
        plan = plan_packs(lengths.items, packing, config.seed, cost, lengths.scratch)
        check_overlong(lengths, plan, packing)
        check_splits(lengths, plan, split_shares(plain(output.splits)))
        run.progress.add(len(lengths.items))
        report = summarize(lengths, plan, packing, cost, measured.num_found, measured.num_repeated)
        by = (config.seed, config.source.slice, method.identity.fingerprint)
        shards = plan_shards(lengths, plan, output.max_shard_packs, output.max_shard_bytes, by)
        identity = shards_identity(config, shards.key_prefix, [_state(item) for item in lengths.shards])
    return Planned(lengths, plan, cost, shards, identity, report)


def _there_already(
    there: dict[str, Any], places: Places, planned: Planned, page: RunReport, method: Method, run: Run
) -> dict[str, Any]:
    """End a run that finds its dataset published: the source is looked at as by one that writes."""
    with forgetting_wrong(planned.lengths.shards, method, run):
        check_unchanged(planned.lengths.shards, run)
        _check_media(planned, run)
    _say_wrong(page.wrong())
    say(f"there already: {places.named}, packed of the same source with the same settings; nothing is written")
    say(f"see it: {places.named}/{PAGE}")
    return there


def _write(config: PackConfig, planned: Planned, method: Method, target: Target, run: Run) -> list[WrittenShard]:
    lengths, plan, output = planned.lengths, planned.plan, config.output
    with run.progress.timed("write"):
        check_unchanged(lengths.shards, run)
        written = write_shards(target, lengths, plan, planned.shards, method, run)
        manifest = manifest_of(lengths, plan, method.identity, planned.cost, content_settings(config))
        yaml, sqlite = output.dataset_yaml.value, output.sqlite
        write_metadata(target.staging, written, lengths.flavor, yaml, sqlite, manifest, output.sample_type)
    return written


def _check_media(planned: Planned, run: Run) -> None:
    measured = planned.lengths.shards
    check_media([item.shard for item in measured], [item.pieces for item in measured], run)


def _check(planned: Planned, written: list[WrittenShard], target: Target, run: Run) -> None:
    flavor = planned.lengths.flavor
    with run.progress.timed("check"), discarding_shards(target.staging, target.stored):
        _check_media(planned, run)
        reconcile(written, planned.plan.num_packs, len(planned.plan.items))
        folder = put_for_check(target.stored, written, flavor) if target.stored else target.staging
        run.executor.result(run.executor.start(check, check_job(folder, flavor, written, target.root)))


def _facts(
    config: PackConfig,
    planned: Planned,
    method: Method,
    written: list[WrittenShard],
    audit: Audit,
    run: Run,
    root: str | None,
) -> RunFacts:
    num_cached = sum(item.was_cached for item in planned.lengths.shards)
    return RunFacts(
        format=1,
        identity=planned.identity,
        config=plain(config),
        media_rules=asdict(method.choice),
        cwd=os.getcwd(),
        source_root=root,
        fingerprint=method.identity.fingerprint,
        seconds=run.progress.seconds,
        throughput=run.progress.throughput,
        peak_rss_bytes=max(run.progress.peak_rss_bytes.values()),
        peak_rss_bytes_by_stage=run.progress.peak_rss_bytes,
        bytes_read=sum(shard.num_bytes_read for shard in written),
        bytes_written=sum(shard.num_bytes for shard in written),
        cache={"shards_reused": num_cached, "shards_measured": len(planned.lengths.shards) - num_cached},
        samples_verified=audit.num_checked,
        samples_not_verified=audit.num_unchecked + audit.num_undecodable,
    )


def _state(item: MeasuredShard) -> tuple[str, int, str, str]:
    """What tells whether a killed run read the same: a file of lengths is written anew where media changed."""
    files = json.dumps([Path(piece.path).name for piece in item.pieces]) if item.shard.media_root else ""
    return item.shard.path, item.shard.size, item.shard.version, files
