"""The last stage: write metadata and page, run the checks, give the dataset its name, and show the results."""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

from energon_pack.config import OutputConfig
from energon_pack.config.stage_settings import PublishSettings
from energon_pack.dataset.destination import refuse_changed_yamls
from energon_pack.dataset.energon import dataset_yamls, manifest_of, write_metadata
from energon_pack.dataset.energon_check import check_job_of, check_readable, refuse_unplanned_counts
from energon_pack.dataset.files import LEDGER, MEDIA_SUMS_FILE, PAGE, PlanFile, join_checksums_of_shards
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.in_folder import FolderDestination
from energon_pack.dataset.ledger import (
    ledger_entries,
    ledger_path_of_unpublished,
    page_path_of_unpublished,
    read_lost_sample_ledger,
    refuse_to_publish,
    refuse_unpublishable_plan,
    why_too_much_bad_data,
)
from energon_pack.dataset.manifest import HASHED_FILES, MANIFEST, PACK_TOTALS_FILE, PROCESSOR_FOLDER, REPORT, hash_of
from energon_pack.dataset.plan_file import totals_of_written_plan
from energon_pack.dataset.shards import ShardJob
from energon_pack.errors import PackError, SamplesLost, amount
from energon_pack.lengths.audit import AuditResult
from energon_pack.lengths.measure import dropping_wrong_lengths, refuse_changed_shards
from energon_pack.plan.pack_lengths import try_pack_lengths
from energon_pack.plan.packs import empty_plan
from energon_pack.plan.report import Report, RunFacts
from energon_pack.report.advice import lengths_to_try_if_unset
from energon_pack.report.pages.html import Remark
from energon_pack.report.run_report import PageSummary, RunPageWriter
from energon_pack.report.terminal_summary import print_stage_times_and_memory, print_tried_lengths
from energon_pack.run.console import say
from energon_pack.run.files import META_FOLDER, reporting_full_disk, write_atomically
from energon_pack.run.progress import Progress
from energon_pack.run.workshop import Workshop
from energon_pack.samples.input_rules import INPUTS_FILE, TRIAL_FILE, InputRules
from energon_pack.stages.measuring import Measured
from energon_pack.stages.places import OutputPlace, Places
from energon_pack.stages.planning import Planned, check_media_files_unchanged
from energon_pack.stages.writing import Written
from energon_pack.templates.full_processor import small_files


def print_pack_len_trials(
    measured: Measured, page: RunPageWriter, path: Path, settings: PublishSettings, workshop: Workshop
) -> dict[str, Any]:
    """Print and write what packs of each length would drop and fill: the end of `stage=lengths`; return the figures.

    `path`: of the page.
    """
    packing = settings.packing
    with workshop.timed("plan"):
        lens = lengths_to_try_if_unset(settings.tried_lens, packing, measured.lengths.items, page.max_positions)
        choices = try_pack_lengths(measured.lengths, packing, lens, page.max_positions)
        page.add_tried_lengths(choices.lens)
    print_tried_lengths(choices, page.advise_on_pack_length(choices.lens))
    refusal = why_too_much_bad_data(choices, settings.max_skipped)
    skipped = ledger_entries(measured.lengths, empty_plan(measured.lengths.items), packing)
    write_page(path, page, skipped, refusal)
    refuse_unpublishable_plan(refusal, path, choices)
    return choices.to_json()


def write_page(path: Path, page: RunPageWriter, skipped: Iterable[Mapping[str, Any]], refusal: str | None) -> None:
    """Write the page of a stage that publishes no dataset; `refusal`: why none could be published, or None."""
    with reporting_full_disk("output.dir", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        _print_page_summary(page.write(path, skipped, failed=refusal))
    say(f"see it: {path}")


def write_page_and_raise(final: Path, page: RunPageWriter, refusal: str, report: Report, skipped: Path) -> NoReturn:
    """Write the page of a run that publishes nothing, and keep its ledger (`skipped`); raises SamplesLost.

    `final`: the folder that the dataset would be in.
    """
    if not report.samples_in:
        raise SamplesLost(f"{refusal}: nothing is published")
    kept = ledger_path_of_unpublished(final)
    _print_page_summary(
        page.write(
            page_path_of_unpublished(final, PAGE),
            read_lost_sample_ledger(skipped),
            ledger_name=kept.name,
            failed=refusal,
        )
    )
    refuse_to_publish(refusal, skipped, final, report)


def _print_remarks(wrong: Iterable[Remark]) -> None:
    """Print a line for each remark about something that looks wrong."""
    for remark in wrong:
        say(f"wrong: {remark.what}: {remark.why}; {remark.knob}")


def _print_page_summary(seen: PageSummary) -> None:
    """Print examples of skipped samples, if the run publishes no ledger of them; then the remarks that are errors."""
    for reason, entries in seen.examples.items():
        say(f"first {reason}: {entries[0]['sample_id']}: {entries[0]['detail']}")
    _print_remarks(seen.wrong)


#: ends of the names of files that only weights, chats or code need
_UNUSED_FILE_ENDS = (".index.json", ".jinja", ".py", "chat_template.json", "generation_config.json")


def refuse_missing_shards(destination: FolderDestination, jobs: Iterable[ShardJob]) -> None:
    """Raise PackError if a shard of the plan is missing, which `stage=write` should have written."""
    are_there = {job.path.name: destination.has_shard(job) for job in jobs}
    if missing := [name for name, is_there in are_there.items() if not is_there]:
        raise PackError(
            f"{destination.place}: {len(missing):,} of {amount(len(are_there), 'shard')} are not written, as"
            f" {missing[0]}: stage=write writes them, stage=all does everything"
        )


def write_nv_meta(planned: Planned, written: Written, output: OutputConfig) -> None:
    """Write `.nv-meta` of a dataset into its folder: what Energon and training read besides the shards."""
    method, mixture, folder = planned.method, planned.report.mixture, written.folder
    manifest = manifest_of(planned.lengths, planned.plan, method.identity, planned.cost_model, planned.content, mixture)
    manifest["key_prefix"] = planned.shards.key_prefix
    yaml, sqlite = output.dataset_yaml.value, output.sqlite
    _write_input_rules(folder, method.template_folder)
    sums = totals_of_written_plan(PlanFile(DatasetFolder(folder)), planned.cost_model)
    write_atomically(folder / META_FOLDER / PACK_TOTALS_FILE, sums.to_bytes())
    media_sums = join_checksums_of_shards([shard.media_sums for shard in written.shards])
    if media_sums is not None:
        write_atomically(folder / META_FOLDER / MEDIA_SUMS_FILE, media_sums)
    hashed = (*HASHED_FILES, *([] if media_sums is None else [MEDIA_SUMS_FILE]))
    manifest["hashes"] = {name: hash_of((folder / META_FOLDER / name).read_bytes()) for name in hashed}
    write_metadata(folder, written.shards, planned.lengths.flavor, yaml, sqlite, manifest, output.sample_type)


def check_written(planned: Planned, written: Written, destination: FolderDestination, workshop: Workshop) -> None:
    """Compare the written shards with the plan and the source, and let Energon read them; raises PackError."""
    flavor = planned.lengths.flavor
    with workshop.progress.timed("check"), destination.discard_shards_on_error(written.folder, planned.identity):
        check_media_files_unchanged(planned, workshop)
        refuse_unplanned_counts(written.shards, planned.plan.num_packs, len(planned.plan.items))
        folder = destination.prepare_for_check(written.folder, written.shards, flavor)
        job = check_job_of(folder, flavor, written.shards, written.media_root)
        workshop.executor.result(workshop.executor.start(check_readable, job))


def publish(
    planned: Planned,
    written: Written,
    audit: AuditResult,
    page: RunPageWriter,
    output: OutputPlace,
    settings: dict[str, Any],
    progress: Progress,
) -> dict[str, Any]:
    """Write the report and its page, publish the dataset, and print where it is; return the figures of report.json.

    Args:
        settings: all of the run's, for the report.
    """
    facts, staging = _run_facts(settings, planned, written, audit, progress), written.folder
    destination = output.destination
    manifest_hash = hash_of((staging / META_FOLDER / MANIFEST).read_bytes())
    report = {**replace(planned.report, run=facts).to_json(), "manifest_hash": manifest_hash}
    write_atomically(staging / REPORT, json.dumps(report, indent=2).encode())
    skipped = read_lost_sample_ledger(staging / LEDGER)
    named = DatasetFolder(destination.place).energon_path
    stored = destination.place if destination.is_stored else None
    seen = page.write(staging / PAGE, skipped, facts, named, LEDGER, None, staging, stored)
    with progress.timed("publish"):
        destination.publish(staging, planned.identity, output.may_overwrite)
    print_stage_times_and_memory(progress)
    _print_remarks(seen.wrong)
    load = f'load it with megatron.energon.get_train_dataset("{named}", ...)'
    packed = f"packed into {destination.place}"
    for line in (*audit.lines(), packed, f"see it: {destination.place}/{PAGE}", load):
        say(line)
    return report


def finish_published_run(
    planned: Planned, page: RunPageWriter, places: Places, output: OutputConfig, workshop: Workshop
) -> dict[str, Any]:
    """End a run whose dataset is already published: check its source as a writing run does; return its report."""
    destination, report = places.output.destination, places.published_report
    named = destination.place
    assert report is not None, "a run without it writes a dataset"
    refuse_changed_yamls(named, dataset_yamls(planned.lengths.flavor, output.dataset_yaml.value, output.sample_type))
    with dropping_wrong_lengths(planned.lengths.shards, planned.method, workshop):
        refuse_changed_shards(planned.lengths.shards, workshop)
        check_media_files_unchanged(planned, workshop)
    destination.remove_leftovers_of_killed_runs(planned.identity)
    _print_remarks(page.wrong())
    say(f"there already: {named}, packed of the same source with the same settings; nothing is written")
    say(f"see it: {named}/{PAGE}")
    return report


def _run_facts(
    settings: dict[str, Any], planned: Planned, written: Written, audit: AuditResult, progress: Progress
) -> RunFacts:
    """Return what report.json records of the run itself: settings, times, memory, bytes."""
    num_cached = sum(item.was_cached for item in planned.lengths.shards)
    return RunFacts(
        format=1,
        identity=planned.identity,
        config=settings,
        media_rules=asdict(planned.method.media_rules_choice),
        cwd=os.getcwd(),
        source_root=written.media_root,
        fingerprint=planned.method.identity.fingerprint,
        seconds=progress.seconds,
        throughput=progress.totals_by_stage,
        peak_rss_bytes=max(progress.peak_rss_bytes.values()),
        peak_rss_bytes_by_stage=progress.peak_rss_bytes,
        bytes_read=sum(shard.num_bytes_read for shard in written.shards),
        bytes_written=sum(shard.num_bytes for shard in written.shards),
        cache={"shards_reused": num_cached, "shards_measured": len(planned.lengths.shards) - num_cached},
        samples_verified=audit.num_checked,
        samples_not_verified=audit.num_unchecked + audit.num_undecodable,
        files_decoded=[item.shard.name for item in planned.lengths.shards if item.shard.decodes_videos],
    )


def _write_input_rules(folder: Path, template_folder: str) -> None:
    """Write the files that `dataset.manifest` reads: rules, test samples, and the processor if it takes media."""
    rules = InputRules.load(Path(template_folder))
    meta, of_processor = folder / META_FOLDER, Path(rules.folder)
    every = [path for path in small_files(of_processor) if path.parent == of_processor]
    chosen = [path for path in every if rules.media_tokens and not path.name.endswith(_UNUSED_FILE_ENDS)]
    (meta / PROCESSOR_FOLDER).mkdir(parents=True, exist_ok=True)
    for path in chosen:
        write_atomically(meta / PROCESSOR_FOLDER / path.name, path.read_bytes())
    has_code = any(path.suffix == ".py" for path in every)
    values = {
        **rules.to_json(),
        "files": {path.name: hash_of(path.read_bytes()) for path in chosen},
        "has_code": has_code,
    }
    shutil.copyfile(Path(template_folder, TRIAL_FILE), meta / TRIAL_FILE)
    write_atomically(meta / INPUTS_FILE, json.dumps(values, indent=1, sort_keys=True).encode())
