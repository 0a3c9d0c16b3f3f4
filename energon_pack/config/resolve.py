"""Where a run reads and where it writes: all that a config says of places, looked at before any work."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from energon_pack.config import Format, PackConfig, Stage, plain
from energon_pack.dataset.publish import refuse_existing, refuse_source, refuse_unwritable
from energon_pack.errors import PackError
from energon_pack.run.console import say
from energon_pack.run.executors import Folder
from energon_pack.run.executors.choose import Meeting
from energon_pack.run.files import naming_place
from energon_pack.sources.demo import NUM_SAMPLES, make_demo
from energon_pack.sources.find import find_shards
from energon_pack.sources.jsonl.find import find_lines
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.shard import Source
from energon_pack.templates.folder import named_processor

_MOST_FOLDERS = 32  # of the source, at which each worker looks


@dataclass(frozen=True)
class Places:
    """What a run reads, and where it writes."""

    source: Source
    processor: str  # folder or hub id
    cache_dir: Path
    output_dir: Path
    final: Path  # in `output_dir`: the dataset, once it is published
    overwrite: bool

    @property
    def folders(self) -> list[Folder]:
        """What every machine that works for the run has to see."""
        media = {Path(shard.media_root) for shard in self.source.shards if shard.media_root is not None}
        read = sorted(self.source.folders | self.source.beside | media)[:_MOST_FOLDERS]
        written = [Folder("cache_dir", self.cache_dir, True), Folder("output.dir", self.output_dir, True)]
        return [*written, *(Folder("source.path", folder, False) for folder in read)]


def resolve(config: PackConfig) -> Places:
    """The places of a run; the built-in demo is made where no source is given.

    Raises:
        PackError: something is not there, or is there and would be lost, or can't be written.
    """
    final = final_folder(config)
    output_dir = final.parent
    cache_dir = _cache_dir(config)
    overwrite = config.output.overwrite or config.source.path is None  # the demo may run again and again
    if config.stage is Stage.all:
        refuse_existing(final, overwrite)
    source, processor = _source(config, cache_dir)
    refuse_source(final, cache_dir, source)
    refuse_unwritable("cache_dir" if config.cache_dir else "output.dir", cache_dir)
    if config.stage is Stage.all:
        refuse_unwritable("output.dir", output_dir)
    return Places(source, processor, cache_dir, output_dir, final, overwrite)


def final_folder(config: PackConfig) -> Path:
    """Where the dataset of a run is to be.

    Raises:
        PackError: it has no name.
    """
    if config.output.name is None:
        raise PackError("output.name must be set")
    return Path(config.output.dir).expanduser() / config.output.name


def meeting_of(config: PackConfig) -> Meeting:
    """Where machines meet that pack the same dataset; raises PackError where it has no name."""
    final = final_folder(config).absolute()
    told = f"{final.name}-{config.stage.value}-{hashlib.sha256(str(final).encode()).hexdigest()[:8]}"
    settings = {name: node for name, node in plain(config).items() if name != "executor"}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return Meeting(_cache_dir(config).absolute() / "meetings" / told, digest)


def _cache_dir(config: PackConfig) -> Path:
    return Path(config.cache_dir).expanduser() if config.cache_dir else final_folder(config).parent / ".cache"


def _source(config: PackConfig, cache_dir: Path) -> tuple[Source, str]:
    """The files of the source, and the folder or hub id of the processor."""
    path = config.source.path
    if path is None and config.source.format is Format.jsonl:
        raise PackError(
            "source=jsonl needs source.path: a *.jsonl file, a folder, a glob, a meta file, or a list of these"
        )
    if path is None:
        path, processor = _demo(config, cache_dir)
    else:
        processor = named_processor(config.model)
    return source_of(config.source, path), processor


def source_of(settings: SourceConfig, path: str | Sequence[str]) -> Source:
    """The files of a source at some place, as the settings have them read; raises as `find_lines`, `find_shards`."""
    if settings.format is Format.jsonl:
        return find_lines(path, settings.media_root)
    return find_shards(path, settings.split)


def _demo(config: PackConfig, cache_dir: Path) -> tuple[str, str]:
    """Source and processor of the built-in demo; a processor that is given is used instead of the built-in one."""
    given = config.model.processor
    if given is None and config.model.template != "qwen_vl":
        raise PackError(f"the built-in demo is for qwen2_5_vl; +model={config.model.name} needs source.path")
    with naming_place("cache_dir", cache_dir):
        source, built_in = make_demo(cache_dir / "demo")
    with_processor = "with a small built-in processor" if given is None else f"with the processor {given}"
    say(
        f"built-in demo (no source.path given): {NUM_SAMPLES} samples made by energon_pack itself, {with_processor};"
        " its lengths are no model's"
    )
    return source, given or built_in
