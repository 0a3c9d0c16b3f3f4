"""Prepare a dataset that packs while it loads: run the stages of packing up to the plan, and keep them in the cache.

config ──► index ──► measure ──► plan ──► <cache>/lazy/<identity>: rows of all items, plans by epoch, skipped.jsonl
"""

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader, Dataset

from energon_pack.config import LabelsConfig, ModelConfig, PackConfig, PackingConfig, SourceConfig, Stage
from energon_pack.config.naming import cache_folder
from energon_pack.config.stage_settings import MeasuringSettings, StageSettings
from energon_pack.dataset.energon import manifest_of
from energon_pack.dataset.files import LEDGER
from energon_pack.dataset.in_folder import FolderDestination
from energon_pack.dataset.ledger import why_unpublished, write_ledger
from energon_pack.dataset.sources import SampleReader
from energon_pack.dataset.staging_files import refuse_unwritable_folder
from energon_pack.errors import PackError, SamplesLost
from energon_pack.lengths.index import IndexedShard
from energon_pack.lengths.measure import MeasuredShard, cache_measured_rows, lengths_cache
from energon_pack.lengths.method import Method
from energon_pack.lengths.same_media import StaleRows, stale_rows
from energon_pack.lengths.table_cache import key_of
from energon_pack.lengths.worker import LengthsRow, build_lengths_table, leave_out, render_and_count, set_warnings
from energon_pack.online.samples import (
    ArrowFileRows,
    MeasuredItem,
    MeasuredSamples,
    MemberReader,
    write_measured_rows,
)
from energon_pack.online.user_dataset import ID_PREFIX, MapStyleDataset, UserSamples, user_samples_of
from energon_pack.plan.items import Lengths
from energon_pack.plan.settings import CUTTING_POLICIES
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.run.files import is_intact, make_folder_atomically
from energon_pack.run.progress import Progress
from energon_pack.run.seeded_random import Ints
from energon_pack.run.workshop import Workshop, one_process_at_a_time
from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.sample import media_type
from energon_pack.samples.settings import PreferenceTake
from energon_pack.samples.skip import Skip
from energon_pack.sources.find import Source
from energon_pack.sources.media_files import MediaMap, replace_mapped_prefix
from energon_pack.sources.shard import TarShard
from energon_pack.sources.storage import path_in
from energon_pack.stages.measuring import Measured, index_source, measure_source, prepare_measuring_method
from energon_pack.stages.places import OutputPlace, Places, page_path_of_stage, prepare_places
from energon_pack.stages.planning import Planned, plan_source
from energon_pack.steps.topology import Topology
from energon_pack.templates.processor import load_saved_template
from energon_pack.templates.settings import Expand
from energon_pack.templates.template import Template

_SAMPLES_PER_JOB = 500  # samples a job
_READING_VERSION = 3  # raised when `UserSamples.read` gives other conversations


def measure_user_samples(
    conversations: UserSamples, fingerprint: str, method: Method, workshop: Workshop, num_workers: int | None
) -> MeasuredShard:
    """Measure the samples of a user's dataset that are not in the cache, or whose media files changed.

    `fingerprint` identifies the dataset in the cache. `num_workers`: None: one for each CPU. Returns all lengths.
    """
    cache, num = lengths_cache(method, workshop), len(conversations)
    key = key_of(ID_PREFIX, fingerprint, num, _READING_VERSION)
    files = _UserDatasetShard(ID_PREFIX, ID_PREFIX, num, fingerprint, conversations.root, conversations.media_map)
    kept, missing = cache.find(key, num)
    cached = np.delete(np.arange(num), missing).tolist()
    changed = stale_rows([files], [kept], workshop.executor).get(0, {})
    stale: StaleRows = {0: {cached[row]: why for row, why in changed.items()}}
    todo = np.union1d(missing, np.array([*stale[0]], np.int64))
    slices = [todo[start : start + _SAMPLES_PER_JOB] for start in range(0, len(todo), _SAMPLES_PER_JOB)]
    workers = min(num_workers or len(os.sched_getaffinity(0)), len(slices))
    # With its own generator on the host, this loader changes no random numbers of the training.
    loader = DataLoader(
        _MeasuredSlices(conversations, slices, method),
        batch_size=None,
        num_workers=workers if workers > 1 else 0,
        generator=torch.Generator(device="cpu"),
    )
    workshop.progress.add(cached=num - len(todo))
    with torch.device("cpu"), workshop.progress.stage("measure", len(todo), "samples") as advance:
        try:
            for numbers, table in zip(slices, loader, strict=True):
                cache_measured_rows(cache, [key], table, np.zeros_like(numbers), numbers, stale)
                workshop.progress.add(table.num_rows)
                advance(table.num_rows)
        finally:
            cache.flush()
    pieces, missing = cache.find(key, num)
    assert not len(missing)
    return MeasuredShard(IndexedShard(files, key, pieces, num, {}), pieces, was_cached=not slices)


@dataclass(frozen=True)
class _UserDatasetShard(TarShard):
    """Takes the place of a source's shard; media that are given by paths are files under `root`."""

    root: str
    media_map: MediaMap

    @property
    def media_root(self) -> str:
        return self.root

    def path_of(self, name: str) -> str:
        return path_in(self.root, replace_mapped_prefix(name, self.media_map))


class _MeasuredSlices(Dataset[pa.Table]):
    """A dataset whose item is a table with the lengths of one slice of the samples."""

    def __init__(self, conversations: UserSamples, slices: Sequence[Ints], method: Method):
        self._conversations, self._slices, self._method = conversations, slices, method

    def __len__(self) -> int:
        return len(self._slices)

    def __getitem__(self, number: int) -> pa.Table:
        template = load_saved_template(self._method.template_folder)
        return build_lengths_table(
            render_and_count(self._read(self._slices[number]), template, self._method), self._method
        )

    def _read(self, numbers: Ints) -> Iterator[tuple[LengthsRow, ReadSample | None]]:
        for number in numbers.tolist():
            row = LengthsRow(str(number), "", 0, 0, [], [], None, 0, 0, 0)
            try:
                sample, _ = self._conversations.read(number)
            except Skip as skip:
                leave_out(row, skip)
                yield row, None
                continue
            row.media_type, row.files = media_type(sample.kinds), self._conversations.media_file_versions(sample)
            set_warnings(row, sample, self._method.read)
            yield row, sample


ITEMS_FOLDER, _ROWS_FILE = "items", "rows.arrow"


@dataclass(frozen=True)
class PreparedPacks:
    """The result of `prepare`: the plan of the first epoch, and the cache folder from which workers read samples."""

    config: PackConfig
    planned: Planned
    samples: MeasuredSamples
    folder: Path
    micro_batches: int  # `packing.topology.micro_batches`

    @property
    def manifest(self) -> dict[str, Any]:
        """The content that energon_pack.json would have if the packs were written."""
        planned = self.planned
        identity, mixture = planned.method.identity, planned.report.mixture
        return manifest_of(planned.lengths, planned.plan, identity, planned.cost_model, planned.content, mixture)

    @property
    def template(self) -> Template:
        """The template with which all samples were measured."""
        return load_saved_template(self.planned.method.template_folder)


def prepare(config: PackConfig, conversations: MapStyleDataset | None, fingerprint: str | None) -> PreparedPacks:
    """Index and measure samples and plan packs; the results are kept in the cache.

    If several processes of a machine call this, one of them works and the others wait for its result.

    Args:
        conversations: a user's dataset in place of `source.path`; None: samples are in files.
        fingerprint: identifies `conversations` in the cache; None: Hugging Face's; without one, nothing is kept.

    Raises:
        SamplesLost: more samples than `max_skipped` are damaged, or a whole modality is lost.
    """
    source, packing = config.source, config.packing
    if conversations is not None:
        _refuse_with_conversations(packing, config.labels, source)
    packing.check_for_online(source.take is PreferenceTake.both)
    alone = replace(packing, topology=Topology())  # the sampler makes steps even
    config = replace(config, stage=Stage.plan, packing=alone, output=replace(config.output, name="lazy"))
    known = fingerprint or getattr(conversations, "_fingerprint", None)
    executor = LocalExecutor(config.executor.num_workers, runs_script=False)
    if conversations is None:
        places = replace(prepare_places(config), mirror=None)
        mixture = places.source.mixture
        if late := next((entry for entry in mixture.entries if entry.phase > 1), None) if mixture else None:
            raise PackError(f"mixture: {late.name} has phase={late.phase}: phases are for packs on disk")
    else:
        places = find_places_without_sources(config.source, config.model, config.output.dir, config.cache_dir)
        places = places if known else replace(places, cache_dir=_temporary_cache())
    workshop = places.workshop(executor, Progress())
    samples_given = None if conversations is None else user_samples_of(conversations, source)
    with one_process_at_a_time(workshop.cache()), executor:
        of_stages = StageSettings.of(config, places.source, places.processor)
        indexed = index_source(places.source.shards, of_stages.method.keep_damaged, config.seed, workshop)
        method = prepare_measuring_method(of_stages.method, workshop)
        if samples_given is None:
            measured = measure_source(places.source, indexed, method, of_stages.lengths, workshop)
        else:
            num_workers = config.executor.num_workers
            measured = _measure_given(samples_given, known or "once", method, of_stages.lengths, num_workers, workshop)
        planned = plan_source(measured, of_stages.plan, workshop)
        folder = workshop.cache("lazy", planned.identity[:24])
        if not is_intact(folder / ITEMS_FOLDER):
            with workshop.timed("rows"), make_folder_atomically(folder / ITEMS_FOLDER) as made:
                _write(made, planned, packing)
    if why := why_unpublished(planned.report, config.max_skipped, packing):
        raise SamplesLost(f"{why}{_first_skipped(folder / ITEMS_FOLDER / LEDGER, samples_given is not None, known)}")
    # measuring says of a shard whether its videos are decoded; source.limit may leave none of its samples
    shards = [*(item.shard for item in indexed), *(item.shard for item in measured.lengths.shards)]
    sources = SampleReader({shard.name: shard for shard in shards})
    read: MemberReader = (
        partial(sources.read_member, settings=planned.method.read)
        if samples_given is None
        else samples_given.read_unchecked_member
    )
    samples = MeasuredSamples(ArrowFileRows(folder / ITEMS_FOLDER / _ROWS_FILE, MeasuredItem), read)
    return PreparedPacks(config, planned, samples, folder, packing.topology.micro_batches)


def _refuse_with_conversations(packing: PackingConfig, labels: LabelsConfig, source: SourceConfig) -> None:
    """Raise PackError for settings that work for samples in files alone, not for conversations in memory."""
    if packing.overlong in CUTTING_POLICIES:
        raise PackError(f"packing.overlong={packing.overlong.value}: only samples in files are cut, not conversations")
    if labels.expand is not Expand.none:
        raise PackError(f"labels.expand={labels.expand.value}: only samples in files are expanded")
    if source.take is PreferenceTake.both:
        raise PackError("source.take=both: lazy pairs are in files; StreamingPackedDataset takes conversations, too")
    if source.path is not None:
        raise PackError(f"source.path={source.path} and conversations: give one of them")


def _measure_given(
    samples: UserSamples,
    fingerprint: str,
    method: Method,
    settings: MeasuringSettings,
    num_workers: int | None,
    workshop: Workshop,
) -> Measured:
    """Measure a user's dataset, as `measure_source` measures files; arguments: see `measure_user_samples`."""
    with workshop.timed("lengths"):
        shard = measure_user_samples(samples, fingerprint, method, workshop, num_workers)
        untrained = settings.labels.untrained
        lengths = Lengths([shard], settings.flavor, settings.shares, settings.seed, untrained=untrained)
    return Measured(lengths, method, samples.num_items, 0)


def _first_skipped(skipped: Path, is_given: bool, known: str | None) -> str:
    with open(skipped, encoding="utf-8") as file:
        line = file.readline()
    if not line:
        return ""
    entry = json.loads(line)
    first = f"; the first: {entry['sample_id']}: {entry['reason']}: {entry['detail']}"
    if is_given and known is None:
        return first
    kept = f" (kept for fingerprint={known!r}: if items were changed, give another one)" if is_given else ""
    return f"{first}; {skipped} names each{kept}"


def find_places_without_sources(
    settings: SourceConfig, model: ModelConfig, output_dir: str, cache_dir: str | None
) -> Places:
    """Return the places of samples in memory, without source files; `source.split` and `source.map` are refused."""
    for name in ("split", "map"):
        if (value := getattr(settings, name)) is not None:
            raise PackError(f"source.{name}={value}: only for files; pass just the conversations you want to pack")
    cache = cache_folder(cache_dir, output_dir)
    refuse_unwritable_folder("cache_dir" if cache_dir else "output.dir", cache)
    destination = FolderDestination(cache)
    unused = OutputPlace(destination, page_path_of_stage(destination, Stage.plan), publishes=False, may_overwrite=False)
    return Places(Source([], frozenset()), model.path_or_hub_id(), unused, cache)


def make_zero_in_shared_memory() -> torch.Tensor:
    """Return 0, int64[], in shared memory: a loader's workers and the process that started them see when it changes."""
    number: torch.Tensor = torch.zeros((), dtype=torch.int64, device="cpu").share_memory_()
    return number


def _write(folder: Path, planned: Planned, packing: PackingConfig) -> None:
    write_measured_rows(folder / _ROWS_FILE, planned.lengths)
    write_ledger(folder / LEDGER, planned.lengths, planned.plan, packing)


def _temporary_cache() -> Path:
    """Make a temporary cache folder, which this process deletes at its end; for a dataset without a fingerprint."""
    folder, process = Path(tempfile.mkdtemp(prefix="energon_pack-")), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # not at the end of a forked worker
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
