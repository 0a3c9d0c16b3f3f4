"""The pipeline, from a source to a published dataset.

    read ──► measure ──► plan ──► write ──► check ──► publish

Each stage leaves its result in a file (lengths in the cache, the plan and the shards in a staging folder), and the
dataset appears under its name at the end, whole.
"""

import json
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from energon_pack import report
from energon_pack.audit import AuditJob, draw, finish, is_known, remember, start
from energon_pack.bins import Ints
from energon_pack.check import check, get_ready, reconcile
from energon_pack.check import job_of as check_job
from energon_pack.choice import print_choices, try_lens
from energon_pack.config import Format, OnDamaged, PackConfig, SourceConfig, Stage, plain
from energon_pack.current import check_media
from energon_pack.cutting import CUTTING, cut_overlong
from energon_pack.demo import NUM_SAMPLES, make_demo
from energon_pack.draws import parse_slice
from energon_pack.errors import PackError
from energon_pack.executor import LocalExecutor
from energon_pack.files import write_whole
from energon_pack.items import Lengths
from energon_pack.lengths import (
    MeasuredShard,
    check_unchanged,
    draw_samples,
    first_samples,
    forgetting_wrong,
    index_shards,
    measure_shards,
)
from energon_pack.metadata import write_metadata
from energon_pack.naming import content_settings, shards_identity
from energon_pack.plan import PackingSettings, PackPlan, plan_packs, split_counts, split_of_packs
from energon_pack.plan_file import (
    check_overlong,
    check_splits,
    key_prefix,
    ledger,
    pack_bytes,
    shard_bounds,
    write_plan,
)
from energon_pack.progress import Progress
from energon_pack.publish import (
    bad_data,
    discarding_shards,
    foresee,
    losses,
    naming_place,
    publish,
    refuse_existing,
    refuse_little_space,
    refuse_losses,
    refuse_source,
    refuse_unwritable,
    staging_folder,
)
from energon_pack.record import ReadSettings
from energon_pack.shards import ShardJob, WrittenShard, write_shard
from energon_pack.sources.find import Source, find_shards
from energon_pack.sources.meta import find_lines
from energon_pack.splits import SPLITS, split_shares
from energon_pack.templates import (
    Identity,
    ModelSettings,
    identity_of,
    local_folder,
    prepare_template,
    saved_template,
)

Settings = TypeVar("Settings")


def pack(config: PackConfig) -> dict[str, Any]:
    """Pack a source; the figures of report.json.

    Raises:
        PackError: refused or wrong input. Nothing is published.
        SamplesLost: bad data cost more than `max_skipped`, or a whole modality. Nothing is published.
    """
    if config.output.name is None:
        raise PackError("output.name must be set")
    output_dir = Path(config.output.dir).expanduser()
    cache_dir = Path(config.cache_dir).expanduser() if config.cache_dir else output_dir / ".cache"
    final = output_dir / config.output.name
    is_whole_run = config.stage is Stage.all
    overwrite = config.output.overwrite or config.source.path is None  # the demo may run again and again
    if is_whole_run:
        refuse_existing(final, overwrite)
    source_path, processor = config.source.path, config.model.processor or config.model.hub_id
    if source_path is None and config.source.format is Format.jsonl:
        raise PackError(
            "source=jsonl needs source.path: a *.jsonl file, a folder, a glob, a meta file, or a list of these"
        )
    if source_path is None:
        if config.model.processor is None and config.model.template != "qwen_vl":
            raise PackError(f"the built-in demo is for qwen2_5_vl; +model={config.model.name} needs source.path")
        with naming_place("cache_dir", cache_dir):
            source_path, processor = _demo(cache_dir, config.model.processor)
    if processor is None:
        raise PackError(f"+model={config.model.name} needs model.processor, a folder or a hub id")
    source = _find(source_path, config.source)
    refuse_source(final, cache_dir, source)
    refuse_unwritable("cache_dir" if config.cache_dir else "output.dir", cache_dir)
    if is_whole_run:
        refuse_unwritable("output.dir", output_dir)

    progress = Progress()
    read = _settings(ReadSettings, config.source)
    packing = _settings(PackingSettings, config.packing, seed=config.seed)
    with LocalExecutor(config.executor.num_workers) as executor:
        # Before the processor: a damaged tar stops the run at once.
        with progress.measured("lengths"), naming_place("cache_dir", cache_dir):
            keep_damaged = config.source.on_damaged is OnDamaged.keep
            indexed = index_shards(source.shards, keep_damaged, cache_dir, executor, progress)

        with progress.measured("processor"), naming_place("cache_dir", cache_dir):
            more = {"processor": processor, "media": plain(config.media), "train_on": config.labels.train_on.value}
            model = _settings(ModelSettings, config.model, **more)
            model = replace(model, processor=str(local_folder(model)))  # a hub id is looked up once
            template_folder = saved_template(model, cache_dir)
            if template_folder is None:
                prepare = partial(prepare_template, cache_dir=cache_dir)  # imports transformers
                template_folder = executor.result(executor.start(prepare, model))
            template = identity_of(template_folder)

        with progress.measured("lengths"), naming_place("cache_dir", cache_dir):
            num_excluded = sum(map(len, source.excluded.values()))
            drawn_samples = draw_samples(indexed, parse_slice(config.source.slice), config.seed)
            chosen = first_samples(drawn_samples, config.source.limit, num_excluded)
            engine = config.measure.engine.value
            measured = measure_shards(chosen, template_folder, read, engine, cache_dir, executor, progress)

        if is_whole_run:
            executor.start(get_ready, None)
        with progress.measured("plan"):
            shares = split_shares(plain(config.output.splits))
            flavor = config.output.flavor.value
            lengths = Lengths(measured, source.excluded, config.source.limit, flavor, shares, config.seed)
            choices = try_lens(lengths, packing, config.report.lens) if config.stage is Stage.lengths else None
        if choices is not None:
            print_choices(choices)
            foresee(bad_data(choices, config.max_skipped))
            return choices
        with progress.measured("plan"), naming_place("cache_dir", cache_dir):
            if packing.overlong in CUTTING:
                with forgetting_wrong(chosen, template_folder, read, cache_dir):
                    cut_overlong(
                        lengths, measured, template_folder, read, engine, packing, cache_dir, executor, progress
                    )
            plan = plan_packs(lengths.items, packing)
            check_overlong(lengths, plan, packing)
            check_splits(lengths, plan, shares)
            num_repeated = sum(item.num_repeated for item in drawn_samples)
            num_found = sum(item.num_rows for item in indexed) + source.num_left_out
            figures = report.summarize(lengths, plan, packing, num_found, num_repeated)
        report.print_plan(figures)
        if not is_whole_run:
            report.print_stages(progress)
            foresee(losses(figures, config.max_skipped))
            return figures

        share = config.measure.verify
        drawn, known = draw(measured, share, config.seed), is_known(measured, template_folder, share)
        job = AuditJob(drawn, template_folder, model.processor, read, known)
        sizes, split = pack_bytes(lengths, plan), split_of_packs(lengths.items, plan)
        bounds = shard_bounds(sizes, split, config.output.max_shard_packs, config.output.max_shard_bytes)
        prefix = key_prefix(lengths, plan, [config.seed, config.source.slice, template.fingerprint])
        identity = shards_identity(config, prefix, [_state(item) for item in measured])
        wrong = forgetting_wrong(chosen, template_folder, read, cache_dir)
        with naming_place("output.dir", output_dir), staging_folder(final, identity) as staging, wrong:
            _write_ledger(staging / "skipped.jsonl", lengths, plan, packing)
            refuse_losses(figures, config.max_skipped, staging / "skipped.jsonl", final)
            refuse_little_space(staging, int(sizes.sum()))
            auditing = start(job, executor)
            with progress.measured("write"):
                check_unchanged(chosen, measured, executor, progress)
                fingerprint = template.fingerprint
                written = _write(
                    staging, lengths, plan, bounds, prefix, measured, fingerprint, config, executor, progress
                )
                write_metadata(
                    staging,
                    written,
                    flavor,
                    config.output.dataset_yaml.value,
                    config.output.sqlite,
                    _manifest(config, template, lengths, plan),
                    config.output.sample_type,
                )
            with progress.measured("verify"):
                audit = finish(auditing, template_folder, executor)
                remember(audit, measured, template_folder, share)
            with progress.measured("check"), discarding_shards(staging):
                check_media([item.shard for item in measured], [item.pieces for item in measured], executor, progress)
                reconcile(written, plan.num_packs, len(plan.items))
                executor.result(executor.start(check, check_job(staging, written)))
            figures |= _facts_of_run(config, template, measured, written, progress)
            figures |= {"samples_verified": audit.num_checked, "samples_not_verified": audit.num_unchecked}
            write_whole(staging / "report.json", json.dumps(figures, indent=2).encode())
            with progress.measured("check"):
                publish(staging, final, overwrite)
    report.print_stages(progress)
    for line in audit.lines():
        report.say(line)
    report.say(f"packed into {final}")
    report.say(f'load it with megatron.energon.get_train_dataset("{final}", ...)')
    return figures


def _settings(kind: type[Settings], node: Any, **more: Any) -> Settings:
    """The part of the config that a module takes, by the names of its fields; `more` goes before the node's."""
    values = {**plain(node), **more}
    return kind(**{field.name: values[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def _find(path: Any, settings: SourceConfig) -> Source:
    """The files of a source."""
    if settings.format is Format.jsonl:
        return find_lines(path, settings.media_root)
    return find_shards(path, settings.split)


def _state(item: MeasuredShard) -> tuple[str, int, int, str]:
    """What tells whether a killed run read the same: a file of lengths is written anew where media changed."""
    files = json.dumps([Path(piece.path).name for piece in item.pieces]) if item.shard.lines else ""
    return item.shard.path, item.shard.size, item.shard.mtime_ns, files


def _demo(cache_dir: Path, processor: str | None) -> tuple[str, str]:
    """Source and processor of the built-in demo; a processor that is given is used instead of the built-in one."""
    source, built_in = make_demo(cache_dir / "demo")
    with_processor = "with a small built-in processor" if processor is None else f"with the processor {processor}"
    report.say(
        f"built-in demo (no source.path given): {NUM_SAMPLES} samples made by energon_pack itself, {with_processor};"
        " its lengths are no model's"
    )
    return source, processor or built_in


def _write(
    staging: Path,
    lengths: Lengths,
    plan: PackPlan,
    bounds: Ints,
    prefix: str,
    measured: list[MeasuredShard],
    fingerprint: str,
    config: PackConfig,
    executor: LocalExecutor,
    progress: Progress,
) -> list[WrittenShard]:
    """pack_plan.parquet and the shards."""
    plan_file = staging / "pack_plan.parquet"
    write_plan(plan_file, lengths, plan, bounds, prefix)
    split = split_of_packs(lengths.items, plan)[bounds[:-1]]
    jobs = (
        ShardJob(
            path=staging / f"{config.output.shard_prefix}-{number:06d}.tar",
            plan=plan_file,
            row_group=number,
            source={measured[n].shard.name: measured[n].shard for n in np.unique(lengths.items.shard[items]).tolist()},
            settings=_settings(ReadSettings, config.source),
            fingerprint=fingerprint,
            flavor=config.output.flavor.value,
            split=SPLITS[split[number]],
            checksums=lengths.checksums[items],
        )
        for number, items in enumerate(np.split(plan.items, plan.starts[bounds[1:-1]]))
    )
    written = []
    with progress.stage("write", plan.num_packs, "packs") as advance:
        for shard in executor.map(write_shard, jobs):
            written.append(shard)
            advance(shard.num_packs)
    return written


def _manifest(config: PackConfig, template: Identity, lengths: Lengths, plan: PackPlan) -> dict[str, Any]:
    """energon_pack.json: what training checks."""
    return {
        "flavor": config.output.flavor.value,
        "fingerprint": template.fingerprint,
        "fingerprints": template.fingerprints,
        "layout": config.packing.layout.value,
        "max_token_len": config.packing.max_token_len,
        "pad_to_multiple_of": config.packing.pad_to_multiple_of,
        "mask": config.model.mask.value,
        "num_packs": plan.num_packs,
        "num_samples": len(plan.items),
        "num_tokens": int(lengths.items.lens[plan.items].sum()),
        "splits": split_counts(lengths.items, plan),
        "content": content_settings(config),
    }


def _write_ledger(path: Path, lengths: Lengths, plan: PackPlan, packing: PackingSettings) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for entry in ledger(lengths, plan, packing):
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def _facts_of_run(
    config: PackConfig,
    template: Identity,
    measured: list[MeasuredShard],
    written: list[WrittenShard],
    progress: Progress,
) -> dict[str, Any]:
    """What report.json holds beside the figures of the plan: true of this run, not of the data."""
    num_cached = sum(item.was_cached for item in measured)
    return {
        "format": 1,
        "config": plain(config),
        "cwd": str(Path.cwd()),  # what relative paths of the config are relative to
        "fingerprint": template.fingerprint,
        "seconds": progress.seconds,
        "peak_rss_bytes": max(progress.peak_rss_bytes.values()),
        "peak_rss_bytes_by_stage": progress.peak_rss_bytes,
        "bytes_read": sum(shard.num_bytes_read for shard in written),
        "bytes_written": sum(shard.num_bytes for shard in written),
        "cache": {"shards_reused": num_cached, "shards_measured": len(measured) - num_cached},
    }
