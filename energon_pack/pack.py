"""The pipeline, from a source to a published dataset.

    read ──► measure ──► plan ──► write ──► check ──► publish

Each stage leaves its result in a file (lengths in the cache, the plan and the shards in a staging folder), and the
dataset appears under its name at the end, whole.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from energon_pack import report
from energon_pack.check import check
from energon_pack.config import OnDamaged, PackConfig, Stage, content_settings, plain
from energon_pack.demo import NUM_SAMPLES, make_demo
from energon_pack.errors import PackError, SamplesLost
from energon_pack.executor import LocalExecutor
from energon_pack.lengths import MeasuredShard, first_samples, index_shards, measure_shards
from energon_pack.manifest import MANIFEST, META_FOLDER
from energon_pack.metadata import write_metadata
from energon_pack.plan import (
    Lengths,
    PackingSettings,
    PackPlan,
    check_overlong,
    key_prefix,
    ledger,
    pack_bytes,
    plan_packs,
    shard_bounds,
    write_plan,
)
from energon_pack.progress import Progress
from energon_pack.record import ReadSettings
from energon_pack.shards import ShardJob, WrittenShard, write_shard, write_whole
from energon_pack.sources.wds import Source, find_shards
from energon_pack.templates import ModelSettings, Template, load_saved, prepare_template


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
    source_path, processor = config.source.path, config.model.processor or config.model.hub_id
    if source_path is None:
        source_path, processor = _demo(cache_dir, config.model.processor)
    source = find_shards(source_path, config.source.split)
    _refuse_output(final, cache_dir, source, config.output.overwrite)

    progress = Progress()
    packing = packing_settings(config)
    with LocalExecutor(config.executor.num_workers) as executor:
        with progress.measured("lengths"):  # before the processor: a damaged tar stops the run at once
            keep_damaged = config.source.on_damaged is OnDamaged.keep
            indexed = index_shards(source.shards, keep_damaged, cache_dir, executor, progress)

        with progress.measured("processor"):
            template_folder = prepare_template(model_settings(config, processor), cache_dir)

        with progress.measured("lengths"):
            chosen = first_samples(indexed, config.source.limit, len(source.excluded))
            read = read_settings(config)
            measured = measure_shards(chosen, template_folder, read, cache_dir, executor, progress)

        with progress.measured("plan"):
            lengths = Lengths(measured, source.excluded, config.source.limit)
            plan = plan_packs(lengths.lens, lengths.media, packing)
            check_overlong(lengths, plan, packing)
            figures = report.summarize(lengths, plan, packing)
            num_indexed = sum(item.num_samples for item in indexed) + source.num_in_other_shards
            figures["samples_excluded"] = num_indexed - lengths.num_samples
            assert figures["samples_in"] == figures["samples_packed"] + figures["samples_skipped"]
        report.print_plan(figures)
        report.print_lengths(figures)
        if config.stage is not Stage.all:
            report.print_stages(progress)
            return figures

        with _staging(final) as staging:
            _write_ledger(staging / "skipped.jsonl", lengths, plan, packing)
            _refuse_losses(figures, config.max_skipped, staging / "skipped.jsonl", final)
            template = load_saved(template_folder)
            with progress.measured("write"):
                written = _write(staging, lengths, plan, measured, template, config, executor, progress)
            with progress.measured("check"):
                check(staging, written, plan.num_packs, len(plan.samples))
            figures |= _facts_of_run(config, template, measured, written, progress)
            write_whole(staging / "report.json", json.dumps(figures, indent=2).encode())
            _publish(staging, final)
    report.print_stages(progress)
    report.say(f"packed into {final}")
    report.say(f'load it with megatron.energon.get_train_dataset("{final}", ...)')
    return figures


# ----------------------------------------------------------------------- parts of the config, as modules take them


def model_settings(config: PackConfig, processor: str) -> ModelSettings:
    model = config.model
    return ModelSettings(
        template=model.template,
        processor=processor,
        revision=model.revision,
        trust_remote_code=model.trust_remote_code,
        processor_kwargs=model.processor_kwargs,
        min_pixels=model.min_pixels,
        max_pixels=model.max_pixels,
        factor=model.factor,
        chat_template=model.chat_template,
        chat_template_kwargs=model.chat_template_kwargs,
    )


def packing_settings(config: PackConfig) -> PackingSettings:
    packing = config.packing
    return PackingSettings(
        max_token_len=packing.max_token_len,
        pad_to_multiple_of=packing.pad_to_multiple_of,
        overlong=packing.overlong.value,
        group_by=packing.group_by.value,
        seed=config.seed,
    )


def read_settings(config: PackConfig) -> ReadSettings:
    source = config.source
    return ReadSettings(
        messages_key=source.messages_key,
        sample_type=source.sample_type.value,
        caption_prompt=source.caption_prompt,
        control_tokens=source.control_tokens.value,
    )


# ------------------------------------------------------------------------------------------------------------- stages


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
    measured: list[MeasuredShard],
    template: Template,
    config: PackConfig,
    executor: LocalExecutor,
    progress: Progress,
) -> list[WrittenShard]:
    """pack_plan.parquet, the shards, `.nv-meta`."""
    output = config.output
    bounds = shard_bounds(plan, pack_bytes(lengths, plan), output.max_shard_packs, output.max_shard_bytes)
    prefix = key_prefix(lengths, plan, packing_settings(config), template.fingerprint)
    plan_file = staging / "pack_plan.parquet"
    write_plan(plan_file, lengths, plan, bounds, prefix)
    shards = {item.shard.name: item.shard for item in measured}
    jobs = (
        ShardJob(
            path=staging / f"{output.shard_prefix}-{number:06d}.tar",
            plan=plan_file,
            row_group=number,
            source=shards,
            settings=read_settings(config),
            fingerprint=template.fingerprint,
        )
        for number in range(len(bounds) - 1)
    )
    written = []
    with progress.stage("write", plan.num_packs, "packs") as advance:
        for shard in executor.map(write_shard, jobs):
            written.append(shard)
            advance(shard.num_packs)
    content = content_settings(config)
    manifest = {
        "flavor": output.flavor.value,
        "fingerprint": template.fingerprint,
        "fingerprints": template.fingerprints,
        "layout": config.packing.layout.value,
        "max_token_len": config.packing.max_token_len,
        "pad_to_multiple_of": config.packing.pad_to_multiple_of,
        "mask": config.model.mask.value,
        "num_packs": plan.num_packs,
        "num_samples": len(plan.samples),
        "num_tokens": int(lengths.lens[plan.samples].sum()),
        "content": content,
    }
    write_metadata(staging, written, output.flavor.value, output.dataset_yaml.value, manifest)
    return written


def _write_ledger(path: Path, lengths: Lengths, plan: PackPlan, packing: PackingSettings) -> None:
    with open(path, "w") as file:
        for entry in ledger(lengths, plan, packing):
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def _facts_of_run(
    config: PackConfig,
    template: Template,
    measured: list[MeasuredShard],
    written: list[WrittenShard],
    progress: Progress,
) -> dict[str, Any]:
    """What report.json holds beside the figures of the plan: true of this run, not of the data."""
    num_cached = sum(item.was_cached for item in measured)
    return {
        "format": 1,
        "config": plain(config),
        "fingerprint": template.fingerprint,
        "seconds": progress.seconds,
        "peak_rss_bytes": max(progress.peak_rss_bytes.values()),
        "peak_rss_bytes_by_stage": progress.peak_rss_bytes,
        "bytes_read": sum(shard.num_bytes_read for shard in written),
        "bytes_written": sum(shard.num_bytes for shard in written),
        "cache": {"shards_reused": num_cached, "shards_measured": len(measured) - num_cached},
    }


# ------------------------------------------------------------------------------------------------- refusals, publishing


def _refuse_output(final: Path, cache_dir: Path, source: Source, overwrite: bool) -> None:
    """Raises PackError where the output would touch the source, or something that is there already."""
    for folder in source.folders:
        for knob, path in (("output.dir", final), ("cache_dir", cache_dir)):
            if path.resolve().is_relative_to(folder):
                raise PackError(
                    f"{knob}: {path} lies in the source {folder}, which is never written to: choose another"
                )
        if folder.is_relative_to(final.resolve()):
            raise PackError(f"output: the source {folder} lies in {final}: choose another output.dir or output.name")
    if not final.exists() or (final.is_dir() and not any(final.iterdir())):
        return
    if not overwrite:
        raise PackError(f"{final} exists; output.overwrite=true replaces it, output.name=NAME writes beside it")
    if not (final / META_FOLDER / MANIFEST).exists():
        raise PackError(f"{final} is not a packed dataset, output.overwrite does not replace it: choose another name")


def _refuse_losses(figures: dict[str, Any], max_skipped: float, skipped: Path, final: Path) -> None:
    """Raises SamplesLost, the ledger kept beside where the dataset would have been."""
    num_lost, num_samples = report.num_lost_to_bad_data(figures), figures["samples_in"]
    lost = report.lost_modalities(figures)
    if num_lost > max_skipped * num_samples:
        why = f"bad data cost {num_lost} of {num_samples} samples, max_skipped={max_skipped:g} allows fewer"
    elif lost:
        why = f"every {' and every '.join(lost)} sample was skipped"
    elif not figures["samples_packed"]:
        why = "the source has no samples"
    else:
        return
    kept = final.with_name(f"{final.name}.skipped.jsonl")
    shutil.move(skipped, kept)
    raise SamplesLost(f"{why}: nothing is published; {kept} names each with its reason")


@contextmanager
def _staging(final: Path) -> Iterator[Path]:
    """A folder on the output's file system, this run's alone; gone afterwards, whatever happens."""
    folder = final.parent / ".staging"
    folder.mkdir(parents=True, exist_ok=True)
    staging = folder / final.name
    with open(folder / f"{final.name}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PackError(f"another run is writing {final}") from None
        shutil.rmtree(staging, ignore_errors=True)  # of a run that was killed
        staging.mkdir()
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _publish(staging: Path, final: Path) -> None:
    """Rename the finished folder into place; an old dataset is there until the new one is."""
    old = staging.with_name(f"{staging.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        os.rename(final, old)
    os.rename(staging, final)
    shutil.rmtree(old, ignore_errors=True)
