"""Find all places that a config names, where a run reads and where it writes, and check them before any work."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_pack.config import Format, MediaIn, PackConfig, Stage
from energon_pack.config.naming import are_same, content_of, content_settings
from energon_pack.dataset.destination import Destination
from energon_pack.dataset.in_folder import InFolder, refuse_unwritable_folder
from energon_pack.dataset.in_store import InStore, refuse_unwritable_address
from energon_pack.errors import PackError
from energon_pack.run.console import say
from energon_pack.run.executors import Folder
from energon_pack.run.files import naming_place
from energon_pack.run.stores import is_address, parent, tidy
from energon_pack.run.stores.mirror import Mirror
from energon_pack.run.user_cache import user_folder
from energon_pack.sources.demo import NUM_SAMPLES, make_demo
from energon_pack.sources.demo_sounds import NUM_SAMPLES as NUM_SOUNDS
from energon_pack.sources.demo_sounds import make_sounds
from energon_pack.sources.forms import find_source
from energon_pack.sources.settings import Compressed
from energon_pack.sources.shard import Source
from energon_pack.sources.storage import path_in
from energon_pack.templates.folder import refuse_missing_folder
from energon_pack.templates.settings import labels_of

_MOST_FOLDERS = 32  # folders of the source that each worker checks


@dataclass(frozen=True)
class Places:
    """The places that a run reads and writes."""

    source: Source
    processor: str  # folder or hub id
    cache_dir: Path
    destination: Destination
    overwrite: bool
    mirror: Mirror | None = None  # for a cache on an object store; `cache_dir` is then its copy on this machine
    #: report.json of a published dataset of this name and settings; if its source is the same, nothing is written
    there: dict[str, Any] | None = None

    @property
    def final(self) -> Path:
        """Return the folder of the dataset, or, for a store, the folder of this machine that takes its place."""
        return self.destination.final

    @property
    def output_dir(self) -> Path:
        """Return the folder that contains `final`."""
        return self.final.parent

    def media_root(self, config: PackConfig) -> str | None:
        """Return the folder of the source that packs refer to; None: packs hold copies of the media."""
        return self.source.root if config.output.media is MediaIn.reference else None

    @property
    def folders(self) -> list[Folder]:
        """Return the folders that every machine working for the run has to see."""
        roots = {shard.media_root for shard in self.source.shards}
        media = {Path(root) for root in roots if root is not None and not is_address(root)}
        read = sorted(self.source.folders | self.source.beside | media)[:_MOST_FOLDERS]
        written = [Folder("cache_dir", self.cache_dir, True), Folder("output.dir", self.output_dir, True)]
        return [*written, *(Folder("source.path", folder, False) for folder in read)]


def resolve(config: PackConfig) -> Places:
    """Find the places of a run; make the built-in demo where no source is given.

    Raises:
        PackError: something is missing, would be overwritten, or can't be written.
    """
    destination, cache_dir, cached = destination_of(config), local_cache(config), _cache_address(config)
    overwrite = config.output.overwrite or config.source.is_demo  # the demo may run again and again
    is_published = config.stage in (Stage.all, Stage.publish)
    there = _equal_there(config, destination) if is_published and not overwrite else None
    if is_published and there is None:
        destination.refuse_existing(overwrite)
    source, processor = _source(config, cache_dir)
    destination.refuse_source(source)
    for knob, path in (("output.dir", destination.place), ("cache_dir", cached or cache_dir)):
        if inside := source.around(path):
            raise PackError(f"{knob}: {path} lies in the source {inside}, which is never written to: choose another")
    knob = "cache_dir" if config.cache_dir else "output.dir"
    refuse_unwritable_folder(knob, cache_dir)
    if cached is not None:
        refuse_unwritable_address(knob, cached)
    if is_published:
        destination.refuse_unwritable()
    else:
        refuse_unwritable_folder("output.dir", destination.final.parent)  # the page lies there
    mirror = None if cached is None else Mirror(cached, cache_dir)
    return Places(source, processor, cache_dir, destination, overwrite, mirror, there)


def destination_of(config: PackConfig) -> Destination:
    """Return where the dataset of a run will be; raises PackError as `final_folder`."""
    final, address = final_folder(config), stored_dataset(config)
    return InFolder(final) if address is None else InStore(address, final)


def _equal_there(config: PackConfig, destination: Destination) -> dict[str, Any] | None:
    """Return report.json of a whole dataset with the same content settings; None: there is none."""
    report = destination.published_report()
    try:
        is_there = report and are_same(content_of(report["config"]), content_settings(config))
        return report if is_there else None
    except (KeyError, TypeError):  # another version wrote it, with other settings
        return None


def final_folder(config: PackConfig) -> Path:
    """Return the folder of the dataset; for an object store, the folder of this machine that takes its place.

    Raises:
        PackError: the dataset has no name.
    """
    if config.output.name is None:
        raise PackError("output.name must be set")
    address = stored_dataset(config)
    if address is not None:
        return local_cache(config) / "outputs" / _short_hash(parent(address)) / config.output.name
    return Path(config.output.dir).expanduser() / config.output.name


def local_cache(config: PackConfig) -> Path:
    """Return the folder of this machine where results are kept."""
    return cache_folder(config.cache_dir, config.output.dir)


def cache_folder(cache_dir: str | None, output_dir: str) -> Path:
    """Return the folder where a run keeps results; for a cache on an object store, its copy on this machine."""
    folder = cache_dir or path_in(output_dir, ".cache")
    return user_folder("mirrors", _short_hash(tidy(folder))) if is_address(folder) else Path(folder).expanduser()


def _cache_address(config: PackConfig) -> str | None:
    folder = config.cache_dir or path_in(config.output.dir, ".cache")
    return tidy(folder) if is_address(folder) else None


def stored_dataset(config: PackConfig) -> str | None:
    """Return the address of a run's dataset; None: it will not be on an object store."""
    return f"{tidy(config.output.dir)}/{config.output.name}" if is_address(config.output.dir) else None


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _source(config: PackConfig, cache_dir: Path) -> tuple[Source, str]:
    """Return the files of the source, and the folder or hub id of the processor."""
    path = config.source.path
    if config.source.is_demo and config.source.format in (Format.jsonl, Format.table):
        raise PackError(
            f"source={config.source.format} needs source.path: a folder, a file, a glob, a meta file, or a list of them"
        )
    if config.source.is_demo:
        path, processor = _demo(config, cache_dir)
    else:
        processor = config.model.named_processor()
        refuse_missing_folder(processor)
    copies = cache_dir / "uncompressed" if config.source.compressed is Compressed.copy else None
    with naming_place("cache_dir", cache_dir):
        source = find_source(config.source, path, copies)
    _check_labels(config, source)
    if copies and config.output.media is MediaIn.reference and any(folder.parent == copies for folder in source.beside):
        raise PackError(f"output.media=reference: packs would point to copies in {copies}: unpack the compressed tars")
    return source, processor


def _check_labels(config: PackConfig, source: Source) -> None:
    """Raise PackError for labels of an entry of a mixture that make no sense: no sample of it could be trained."""
    for entry in source.mixture.entries if source.mixture else ():
        try:
            labels_of(config.labels, entry.own.get("labels") or {})
        except PackError as error:
            raise PackError(f"mixture: {entry.name}: {error}") from None


def _demo(config: PackConfig, cache_dir: Path) -> tuple[str, str]:
    """Return the source and processor of the built-in demo; a processor that is given replaces the built-in one."""
    given, hears = config.model.processor, config.model.name == "qwen2_audio"
    if given is None and config.model.template != "qwen_vl" and not hears:
        raise PackError(
            "the built-in demo is for qwen2_5_vl, and one for qwen2_audio;"
            f" +model={config.model.name} needs source.path"
        )
    with naming_place("cache_dir", cache_dir):
        source, built_in = (make_sounds if hears else make_demo)(cache_dir / "demo")
    with_processor = "with a small built-in processor" if given is None else f"with the processor {given}"
    say(
        f"built-in demo (no source.path given): {NUM_SOUNDS if hears else NUM_SAMPLES} samples made by energon_pack"
        f" itself, {with_processor}; its lengths are no model's"
    )
    return source, given or built_in
