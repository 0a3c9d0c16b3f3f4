"""Find all places that a run reads and writes, and check them before any work."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_pack.config import Format, LabelsConfig, ModelConfig, OutputConfig, PackConfig, SourceConfig, Stage, plain
from energon_pack.config.naming import are_same_settings, cache_address, cache_folder, content_settings, short_hash
from energon_pack.dataset.destination import read_report_if_intact
from energon_pack.dataset.files import PAGE
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.in_folder import FolderDestination
from energon_pack.dataset.in_store import StoreDestination, refuse_unwritable_address
from energon_pack.dataset.ledger import page_path_of_unpublished
from energon_pack.dataset.staging_files import refuse_unwritable_folder
from energon_pack.errors import PackError
from energon_pack.run.address import only_local_paths, parent
from energon_pack.run.console import say
from energon_pack.run.executors import Executor, JobFolder
from energon_pack.run.files import reporting_full_disk
from energon_pack.run.progress import Progress
from energon_pack.run.workshop import CacheMirror, Workshop
from energon_pack.sources.demo import NUM_SAMPLES, make_demo_source_and_processor
from energon_pack.sources.find import Source
from energon_pack.sources.source_path import find_source
from energon_pack.sources.storage import path_in
from energon_pack.templates.full_processor import refuse_missing_folder
from energon_pack.templates.settings import override_label_settings

_MAX_CHECKED_FOLDERS = 32  # folders of the source that each worker checks


@dataclass(frozen=True)
class OutputPlace:
    """Where a run writes, and what it may replace there."""

    destination: FolderDestination
    page: Path  # in the dataset, or beside its place if the run does not publish it
    publishes: bool  # the run ends by publishing its dataset: `stage=all` or `publish`
    may_overwrite: bool  # by `output.overwrite`, or because the run packs the demo

    @classmethod
    def of(cls, config: PackConfig) -> "OutputPlace":
        """Return the place that a config names; raises PackError if the dataset has no name."""
        destination = _destination(config.output, config.cache_dir)
        publishes = config.stage in (Stage.all, Stage.publish)
        page = destination.final / PAGE if publishes else page_path_of_stage(destination, config.stage)
        return cls(destination, page, publishes, config.output.overwrite or config.source.is_demo)


def page_path_of_stage(destination: FolderDestination, stage: Stage) -> Path:
    """Return the path of the page of a stage that publishes no dataset."""
    return page_path_of_unpublished(destination.final, f"{stage.value}.html")


def _destination(output: OutputConfig, cache_dir: str | None) -> FolderDestination:
    """Return the dataset that a run writes, in a folder or on an object store; raises PackError without a name."""
    if output.name is None:
        raise PackError("output.name must be set")
    dataset = DatasetFolder(path_in(output.dir, output.name))
    if not dataset.is_stored:
        return FolderDestination(Path(output.dir).expanduser() / output.name)
    if output.sqlite:
        raise PackError(f"output.sqlite=true: of a dataset on an object store no index is written ({output.dir})")
    here = cache_folder(cache_dir, output.dir) / "outputs" / short_hash(parent(dataset.path))
    return StoreDestination(dataset.path, here / output.name)


@dataclass(frozen=True)
class Places:
    """The places that a run reads and writes."""

    source: Source
    processor: str  # folder or hub id
    output: OutputPlace
    cache_dir: Path
    mirror: CacheMirror | None = None  # for a cache on an object store
    #: report.json of a published dataset of this name and settings; if its source is the same, nothing is written
    published_report: dict[str, Any] | None = None

    def workshop(self, executor: Executor, progress: Progress) -> Workshop:
        """Return the workshop of a run that has its cache here."""
        return Workshop(executor, progress, self.cache_dir, self.mirror)

    @property
    def shared_folders(self) -> list[JobFolder]:
        """Return the folders that all machines of the run have to see: cache, output and source."""
        media = set(map(Path, only_local_paths(self.source.media_places)))
        read = sorted(self.source.folders | self.source.parent_folders | media)[:_MAX_CHECKED_FOLDERS]
        written = (("cache_dir", self.cache_dir), ("output.dir", self.output.destination.final.parent))
        return [
            *(JobFolder(knob, folder, True) for knob, folder in written),
            *(JobFolder("source.path", folder, False) for folder in read),
        ]


def prepare_places(config: PackConfig) -> Places:
    """Find the places that a run reads and writes, and check them; make the built-in demo if there is no source.

    Raises:
        PackError: something is missing, would be overwritten, or can't be written.
    """
    output, output_dir = OutputPlace.of(config), config.output.dir
    destination = output.destination
    cache_dir, address = cache_folder(config.cache_dir, output_dir), cache_address(config.cache_dir, output_dir)
    published_report = None
    if output.publishes and not output.may_overwrite:
        published_report = _find_published_report(destination, content_settings(plain(config)))
    if output.publishes and published_report is None:
        destination.refuse_existing(output.may_overwrite)
    source, processor = _find_source(config.source, config.model, config.labels, cache_dir)
    destination.refuse_source_inside_dataset(source)
    for knob, path in (("output.dir", destination.place), ("cache_dir", address or str(cache_dir))):
        if inside := source.protected_folder(path):
            raise PackError(f"{knob}: {path} lies in the source {inside}, which is never written to: choose another")
    knob = "cache_dir" if config.cache_dir else "output.dir"
    refuse_unwritable_folder(knob, cache_dir)
    if address is not None:
        refuse_unwritable_address(knob, address)
    if output.publishes:
        destination.refuse_unwritable()
    else:
        refuse_unwritable_folder("output.dir", destination.final.parent)  # the page lies there
    mirror = None if address is None else CacheMirror(address, cache_dir)
    return Places(source, processor, output, cache_dir, mirror, published_report)


def _find_published_report(destination: FolderDestination, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return report.json of the published dataset, if it has these content settings; else None."""
    report = read_report_if_intact(destination.place)
    try:
        is_equal = report and are_same_settings(content_settings(report["config"]), settings)
        return report if is_equal else None
    except (KeyError, TypeError):  # another version wrote it, with other settings
        return None


def _find_source(
    settings: SourceConfig, model: ModelConfig, labels: LabelsConfig, cache_dir: Path
) -> tuple[Source, str]:
    """Return the files of the source, and the folder or hub id of the processor."""
    path = settings.path
    if settings.is_demo and settings.format in (Format.jsonl, Format.table):
        raise PackError(
            f"source={settings.format} needs source.path: a folder, a file, a glob, a meta file, or a list of them"
        )
    if settings.is_demo:
        path, processor = _make_demo(model, cache_dir)
    else:
        processor = model.path_or_hub_id()
        refuse_missing_folder(processor)
    source = find_source(settings, path)
    if source.repeated_files_note:
        say(source.repeated_files_note)
    _check_entry_labels(labels, source)
    return source, processor


def _check_entry_labels(labels: LabelsConfig, source: Source) -> None:
    """Raise PackError if the labels of a mixture's entry make no sense: none of its samples could be trained."""
    for entry in source.mixture.entries if source.mixture else ():
        try:
            override_label_settings(labels, entry.own.get("labels") or {})
        except PackError as error:
            raise PackError(f"mixture: {entry.name}: {error}") from None


def _make_demo(model: ModelConfig, cache_dir: Path) -> tuple[str, str]:
    """Make the built-in demo; return its source and processor, or the processor that the user gave."""
    processor_given = model.processor
    if processor_given is None and model.template != "qwen_vl":
        raise PackError(f"the built-in demo is for qwen2_5_vl; +model={model.name} needs source.path")
    with reporting_full_disk("cache_dir", cache_dir):
        source, built_in = make_demo_source_and_processor(cache_dir / "demo")
    with_processor = (
        "with a small built-in processor" if processor_given is None else f"with the processor {processor_given}"
    )
    say(
        f"built-in demo (no source.path given): {NUM_SAMPLES} samples made by energon_pack itself, {with_processor};"
        " its lengths are no model's"
    )
    return source, processor_given or built_in
