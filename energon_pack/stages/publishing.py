"""The last stage: write metadata and page, run the checks, and give the dataset its name."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from energon_pack.config import PackConfig, plain
from energon_pack.config.naming import content_settings
from energon_pack.config.resolve import Places
from energon_pack.dataset.check import check, reconcile
from energon_pack.dataset.check import job_of as check_job
from energon_pack.dataset.destination import Destination
from energon_pack.dataset.energon import manifest_of, write_metadata
from energon_pack.dataset.files import LEDGER, PAGE, PlanFile
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.manifest import HASHED, PACKS, REPORT, hash_of
from energon_pack.dataset.plan_counts import pack_sums
from energon_pack.dataset.plan_file import entries_of
from energon_pack.dataset.shards import ShardJob, WrittenShard
from energon_pack.errors import PackError, amount
from energon_pack.lengths.audit import Audit
from energon_pack.lengths.measure import check_unchanged, forgetting_wrong
from energon_pack.lengths.method import Method
from energon_pack.plan.report import RunFacts, print_stages
from energon_pack.report.run_report import RunReport
from energon_pack.run.console import say
from energon_pack.run.context import Run
from energon_pack.run.files import META_FOLDER, write_whole
from energon_pack.stages.inputs import write_inputs
from energon_pack.stages.pages import say_wrong
from energon_pack.stages.planning import Planned, check_media_of


def refuse_unwritten(jobs: Iterable[ShardJob], destination: Destination) -> None:
    """Raise PackError if `stage=write` has not written every shard of the plan."""
    are_there = {job.path.name: destination.has_shard(job) for job in jobs}
    if missing := [name for name, is_there in are_there.items() if not is_there]:
        raise PackError(
            f"{destination.named}: {len(missing):,} of {amount(len(are_there), 'shard')} are not written, as"
            f" {missing[0]}: stage=write writes them, stage=all does everything"
        )


def write_beside(
    config: PackConfig, planned: Planned, method: Method, written: list[WrittenShard], folder: Path
) -> None:
    """Write the metadata that Energon and training read."""
    output = config.output
    manifest = manifest_of(planned.lengths, planned.plan, method.identity, planned.cost, content_settings(config))
    manifest["key_prefix"] = planned.shards.key_prefix
    yaml, sqlite = output.dataset_yaml.value, output.sqlite
    write_inputs(folder, method.template_folder)
    sums = pack_sums(PlanFile(DatasetFolder(folder)), planned.cost)
    write_whole(folder / META_FOLDER / PACKS, sums.to_bytes())
    manifest["hashes"] = {name: hash_of((folder / META_FOLDER / name).read_bytes()) for name in HASHED}
    write_metadata(folder, written, planned.lengths.flavor, yaml, sqlite, manifest, output.sample_type)


def check_written(
    planned: Planned, written: list[WrittenShard], destination: Destination, staging: Path, root: str | None, run: Run
) -> None:
    """Compare the written shards with the plan and the source, and have Energon read them; raises PackError."""
    flavor = planned.lengths.flavor
    with run.progress.timed("check"), destination.discarding(staging, planned.identity):
        check_media_of(planned, run)
        reconcile(written, planned.plan.num_packs, len(planned.plan.items))
        folder = destination.for_check(staging, written, flavor)
        run.executor.result(run.executor.start(check, check_job(folder, flavor, written, root)))


def publish(
    places: Places, planned: Planned, page: RunReport, facts: RunFacts, audit: Audit, staging: Path, run: Run
) -> dict[str, Any]:
    """Write the report and its page, publish the dataset, and print where it is; return the figures of report.json."""
    destination = places.destination
    report = replace(planned.report, run=facts)
    write_whole(staging / REPORT, json.dumps(report.to_json(), indent=2).encode())
    skipped = entries_of(staging / LEDGER)
    named = destination.for_energon
    seen = page.write(staging / PAGE, skipped, facts, named, LEDGER, None, staging, destination.address)
    with run.progress.timed("publish"):
        destination.publish(staging, planned.identity, places.overwrite)
    print_stages(run.progress)
    say_wrong(seen.wrong)
    load = f'load it with megatron.energon.get_train_dataset("{named}", ...)'
    packed = f"packed into {destination.named}"
    for line in (*audit.lines(), packed, f"see it: {destination.named}/{PAGE}", load):
        say(line)
    return report.to_json()


def there_already(
    report: dict[str, Any], destination: Destination, planned: Planned, page: RunReport, method: Method, run: Run
) -> dict[str, Any]:
    """End a run whose dataset is published already, after the same checks of the source as in a run that writes.

    Args:
        report: report.json of the dataset.
    """
    with forgetting_wrong(planned.lengths.shards, method, run):
        check_unchanged(planned.lengths.shards, run)
        check_media_of(planned, run)
    say_wrong(page.wrong())
    say(f"there already: {destination.named}, packed of the same source with the same settings; nothing is written")
    say(f"see it: {destination.named}/{PAGE}")
    return report


def facts_of(
    config: PackConfig,
    planned: Planned,
    method: Method,
    written: list[WrittenShard],
    audit: Audit,
    root: str | None,
    run: Run,
) -> RunFacts:
    """Return the facts about this run.

    Args:
        config: the composed config.
    """
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
