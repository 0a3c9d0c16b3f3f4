"""Check that every sample of the source is accounted for: in a pack, in the ledger, or left out by source settings."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

from energon_pack.config.naming import cache_folder
from energon_pack.dataset.files import nested_value
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.input_rules_file import OtherTokenizer
from energon_pack.dataset.manifest import REPORT, packing_processor_folder, resolve_packing_path
from energon_pack.dataset.packing_template import load_template
from energon_pack.dataset.source_media import source_root
from energon_pack.errors import PackError, one_line, quote
from energon_pack.plan.settings import MAX_EPOCHS
from energon_pack.run.address import lies_in, tidy_address
from energon_pack.run.stores.requests import reraising_store_errors
from energon_pack.run.untrusted_input import dataclass_from_dict
from energon_pack.run.workshop import Workshop
from energon_pack.samples.raw_record import function_name_with_file_hash
from energon_pack.samples.settings import ReadSettings
from energon_pack.sources import source_path
from energon_pack.sources.demo import make_demo_source_and_processor
from energon_pack.sources.find import Source
from energon_pack.sources.sample_ratio import count_earlier_occurrences, drawn_keys
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.shard import Shard
from energon_pack.sources.storage import folder_of, path_in
from energon_pack.verify.findings import Findings, Hashes, joined_hashes, name_hashes, names_with

Settings = TypeVar("Settings", bound=ReadSettings)


def find_source(
    folder: DatasetFolder,
    report: Mapping[str, Any],
    paths: Sequence[str],
    media_root: str | None = None,
    media_map: Sequence[str] | None = None,
) -> Source:
    """Find the source that a dataset was packed from; raises PackError if it is not there.

    Args:
        paths: where the source lies now; empty: where report.json says, or ENERGON_PACK_SOURCE if packs refer to it.
        media_root: where the media of JSONL files lie now; None: where they were at packing.
        media_map: the same, as `source.media_map` says it.
    """
    settings = nested_value(report, "config", "source")
    if not isinstance(settings, dict) or "path" not in settings:
        raise PackError(f"{folder}/{REPORT} does not say how the source was read (config.source)")
    stated: Any = settings["path"]
    path: Any = paths[0] if len(paths) == 1 else list(paths)  # the YAML of a mixture is a single path
    if isinstance(stated, dict) and paths:
        raise PackError("--source PATH: a mixture of the config has several; put them back where they were")
    if not paths:
        if isinstance(stated, dict):
            path = _mixture_now(folder, report, stated)
        elif stated is None:
            path = ensure_demo_folders(folder, report)[0]
        elif isinstance(stated, str):
            path = _path_now(folder, report, stated)
        elif isinstance(stated, list) and all(isinstance(entry, str) for entry in stated):
            path = [_path_now(folder, report, entry) for entry in stated]
        else:
            raise PackError(f"{folder}/{REPORT} has config.source.path={quote(stated)}: --source PATH says where it is")
    asked, root = _settings_from_texts(SourceConfig, {"format": "wds", **settings}), settings.get("media_root")
    if media_root is None and isinstance(root, str):
        media_root = resolve_packing_path(report, root) if paths else _path_now(folder, report, root)
    asked.media_root, asked.remote_media = media_root, settings.get("remote_media") is True
    asked.datasets, asked.media_map = settings.get("datasets"), media_map or settings.get("media_map")
    try:
        return source_path.find_source(asked, path, resolve_packing_path(report, "."))
    except PackError as error:
        raise PackError(f"{error} (--source PATH says where it is now, --media-root where its media are)") from None


def _mixture_now(folder: DatasetFolder, report: Mapping[str, Any], mixture: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a mixture in the config, with each path replaced by `_path_now`."""
    entries = {name: {**item} for name, item in mixture.items() if isinstance(item, dict)}
    for item in entries.values():
        for key in ("path", "media_root"):
            if isinstance(item.get(key), str):
                item[key] = _path_now(folder, report, item[key])
            elif isinstance(item.get(key), list):
                item[key] = [_path_now(folder, report, str(path)) for path in item[key]]
    return entries


def _path_now(folder: DatasetFolder, report: Mapping[str, Any], path: str) -> str:
    """Return where a path of report.json's config is now; if packs refer to it, below the `source_root` now in use."""
    path, root = resolve_packing_path(report, path), report.get("source_root")
    if not isinstance(root, str) or not lies_in(path, root):
        return path
    return tidy_address(path_in(source_root(folder.path), path[len(root) :].lstrip("/")))


@contextmanager
def template_in_temp_folder(
    folder: DatasetFolder, report: Mapping[str, Any], processor: str | None, trust_remote_code: bool, findings: Findings
) -> Iterator[str | None]:
    """Save the template that tokenizes a dataset, and yield its folder; None: it can't be loaded, as a finding says."""
    with TemporaryDirectory(prefix="energon_pack-") as folder_here:
        try:
            load_template(folder.path, processor or packing_processor(folder, report), trust_remote_code).save(
                Path(folder_here)
            )
        except (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError) as error:
            why = f"its tokens are not compared with the source: {one_line(error)}"
            if processor or isinstance(error, OtherTokenizer):
                findings.add("source tokens", folder.name, [why], 0)
            else:
                findings.notes.append(f"{why} (--processor FOLDER names its processor)")
            yield None
            return
        yield folder_here


def packing_processor(folder: DatasetFolder, report: Mapping[str, Any]) -> str | None:
    """Return the folder or hub id of the processor that a dataset was packed with; None: the model's published one."""
    processor: str | None = nested_value(report, "config", "model", "processor")
    if processor is None and nested_value(report, "config", "source", "path") is None and report:
        return ensure_demo_folders(folder, report)[1]
    return packing_processor_folder(folder.path) or processor  # a hub id, or a folder that is gone


def ensure_demo_folders(folder: DatasetFolder, report: Mapping[str, Any]) -> tuple[str, str]:
    """Return the folders of the source and the processor of a packed demo; they are made again if they are gone."""
    cache = nested_value(report, "config", "cache_dir")
    cache_dir = resolve_packing_path(report, cache) if isinstance(cache, str) else None
    return make_demo_source_and_processor(cache_folder(cache_dir, folder_of(folder.path)) / "demo")


def reading_settings_without_map(manifest: Mapping[str, Any]) -> ReadSettings:
    """Return the settings by which packing read samples, without `source.map`: a dataset can't make code run."""
    return _settings_from_texts(ReadSettings, nested_value(manifest, "content", "source"))


def _settings_from_texts(kind: type[Settings], node: Any) -> Settings:
    """Make settings from the texts in a node of a manifest, without `map` and `path`; defaults if it is damaged."""
    texts = {key: value for key, value in _text_items(node).items() if key not in ("map", "path")}
    names = {key: _text_items(nested_value(node, key)) for key in ("columns", "roles")}
    try:
        return dataclass_from_dict(kind, texts | names)
    except ValueError:  # the manifest is damaged
        return kind()


def _text_items(node: Any) -> dict[str, str]:
    return {key: name for key, name in node.items() if isinstance(name, str)} if isinstance(node, dict) else {}


def trusted_map_step(manifest: Mapping[str, Any], trusted: str | None) -> str | None:
    """Return the dataset's `source.map`, with its hash; None: it has none. PackError: `trusted` is another or None."""
    name = nested_value(manifest, "content", "source", "map")
    step = name.partition("#")[0] if isinstance(name, str) else None
    if step == trusted:
        return function_name_with_file_hash(name) if isinstance(name, str) else None
    if trusted is None:
        raise PackError(f"the dataset was packed with source.map={step}: --map {step} runs that code for --source")
    raise PackError(f"--map {trusted}: the dataset was packed with source.map={step}")


@dataclass(frozen=True)
class DrawSettings:
    """How packing chose samples of a source: only the first `limit` (None: all), each so many times an epoch."""

    limit: int | None
    seed: int
    draws_per_epoch: Mapping[str, float] = field(default_factory=dict)  # of samples in an epoch, by entry of a mixture
    num_epochs: int = 1

    def max_draws_in(self, shard: str) -> int:
        """Return how often a sample of this source shard may come, at most, in all epochs that were packed."""
        entry = next(iter(self.draws_per_epoch), "") if len(self.draws_per_epoch) == 1 else shard.partition("/")[0]
        return math.ceil(self.draws_per_epoch.get(entry, 1) * self.num_epochs)


def read_draw_settings(report: Mapping[str, Any]) -> DrawSettings:
    """Read from report.json how packing chose samples; where it is damaged: no limit, each sample once, one epoch."""
    limit, seed = nested_value(report, "config", "source", "limit"), nested_value(report, "config", "seed")
    entries = report.get("mixture")
    epochs_of = (
        {str(nested_value(entry, "name")): nested_value(entry, "epochs") for entry in entries}
        if isinstance(entries, list)
        else {}
    )
    times = {name: time for name, time in epochs_of.items() if isinstance(time, int | float) and 0 <= time < 1e6}
    epochs = nested_value(report, "config", "packing", "epochs")
    num_epochs = epochs if type(epochs) is int and 1 <= epochs <= MAX_EPOCHS else 1
    return DrawSettings(limit if type(limit) is int else None, seed if type(seed) is int else 0, times, num_epochs)


@dataclass(frozen=True)
class SourceSamples:
    """The samples that packing had to take from a source, as hashes, and an error for each shard that can't be read."""

    jobs: "list[_HashJob]"
    shard_hashes: list[Hashes]  # of the samples of each shard
    defects: list[str]
    copy_hashes: Hashes  # of the copies that a mixture may draw


def read_source_samples(source: Source, drawn: DrawSettings, workshop: Workshop) -> SourceSamples:
    """Index the source, and return its samples; call it first, because later checks reuse the blocks it fetches."""
    jobs = [_HashJob(shard, drawn.seed, drawn.max_draws_in(shard.name)) for shard in source.shards]
    sample_hashes, defects, copies = list[Hashes](), list[str](), list[Hashes]()
    size = sum(job.shard.size for job in jobs)
    with workshop.progress.stage("source", len(jobs), "shards", size) as advance:
        for job, values in zip(jobs, workshop.executor.map(_hash_samples, jobs), strict=True):
            if isinstance(values, str):
                defects.append(values)
                continue
            samples, of_copies = values
            copies.append(of_copies)
            sample_hashes.append(samples[: None if drawn.limit is None else drawn.limit - sum(map(len, sample_hashes))])
            workshop.progress.add(len(sample_hashes[-1]))
            advance(1, job.shard.size)
    return SourceSamples(jobs, sample_hashes, defects, joined_hashes(copies))


def unaccounted_samples(samples: SourceSamples, packed: Hashes, skipped: Hashes, names: Iterator[str]) -> Iterator[str]:
    """Yield shards that can't be read, lost samples of the source, and packed samples that it lacks or has less often.

    Args:
        packed, skipped: the hashes of the samples in packs, and of each entry of the ledger.
        names: the ids of all samples in packs and ledger, from which hashes get their names back.
    """
    yield from samples.defects
    expected, num_expected = np.unique(joined_hashes(samples.shard_hashes), return_counts=True)
    ours, num_ours = np.unique(joined_hashes([packed, skipped]), return_counts=True)
    is_copy = np.isin(ours, samples.copy_hashes) & (num_ours == 1)
    ours, num_ours = ours[~is_copy], num_ours[~is_copy]
    place = np.searchsorted(ours, expected).clip(0, max(len(ours) - 1, 0))
    times = np.where(ours[place] == expected, num_ours[place], 0) if len(ours) else np.zeros(len(expected), np.int64)
    lost = expected[times < num_expected]
    if len(lost):
        in_source = (name for job in samples.jobs for name in _sample_ids(job))
        yield from (f"{name} is in no pack, and not in the ledger" for name in names_with(lost, in_source))
    too_often = joined_hashes([expected[times > num_expected], np.setdiff1d(ours, expected)])
    if len(too_often):
        for name in names_with(too_often, names):
            yield f"{name} is no sample of the source, or accounted for twice"


@dataclass(frozen=True)
class _HashJob:
    """A source shard, and the settings by which its samples are drawn."""

    shard: Shard
    seed: int
    max_draws: int  # that a mixture may draw a sample


@reraising_store_errors()
def _hash_samples(job: _HashJob) -> tuple[Hashes, Hashes] | str:
    """Return the hashes of a shard's samples, and of the repeats (`@2` …) that a mixture may draw; or a read error."""
    try:
        names = list(_sample_ids(job))
    except PackError as error:
        return str(error)
    return name_hashes(names), name_hashes(f"{name}@{time}" for time in range(2, job.max_draws + 1) for name in names)


def _sample_ids(job: _HashJob) -> Iterator[str]:
    """Return the ids of all samples drawn from a shard, in its order."""
    shard = job.shard
    keys = shard.index()["key"].to_pylist()
    rows = shard.drawn(len(keys), job.seed)
    if rows is not None:
        keys = drawn_keys(keys, rows, count_earlier_occurrences(rows))
    return map(shard.sample_id, keys)
