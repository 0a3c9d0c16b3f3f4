"""Prepare a stream of packs: index its files, load the template that measures samples, and share its epoch."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from torch.utils.data import get_worker_info

from energon_pack.config import OnDamaged, PackConfig, SourceConfig, Stage, plain
from energon_pack.config.compose import compose_config, config_of
from energon_pack.config.naming import content_settings
from energon_pack.config.stage_settings import StageSettings
from energon_pack.dataset.energon import manifest_settings
from energon_pack.errors import PackError
from energon_pack.lengths.index import first_samples
from energon_pack.online.prepare import find_places_without_sources, make_zero_in_shared_memory
from energon_pack.online.samples import ArrowFileRows, IndexedSamples, Samples, SourceIndexRow, write_index
from energon_pack.online.user_dataset import MapStyleDataset, user_samples_of
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.run.files import is_intact, make_folder_atomically
from energon_pack.run.progress import Progress
from energon_pack.run.workshop import Workshop, one_process_at_a_time
from energon_pack.samples.settings import PreferenceTake
from energon_pack.sources.find import Source
from energon_pack.stages.measuring import index_source, prepare_measuring_method
from energon_pack.stages.places import prepare_places
from energon_pack.templates.pixels import flat_values
from energon_pack.templates.processor import load_saved_template
from energon_pack.templates.settings import Expand
from energon_pack.templates.template import Template


class StreamEpoch:
    """The number of the epoch. All workers of a loader begin with the one that it had when they were started.

    A worker that stays looks in shared memory for another one at the start of its later iterations.
    """

    def __init__(self) -> None:
        self.number = 0
        self._shared = make_zero_in_shared_memory().fill_(-1)  # none was set
        #: the process whose iteration has begun since the number was set; None: none
        self._begun_in: int | None = None
        #: 1: workers began the last iteration; 0: this process began it, or will begin the next one anew
        self._in_workers = make_zero_in_shared_memory()
        #: the epoch that was asked for last; None: none
        self._asked_epoch: int | None = None
        #: added to each epoch that is asked for; a worker that loads a state writes it, too
        self._offset = make_zero_in_shared_memory()

    @property
    def has_begun_in_workers(self) -> bool:
        """Whether workers of a loader began the last iteration, and nothing new was set or loaded since."""
        return bool(self._in_workers)

    def set(self, epoch: int, is_resumed: bool) -> int:
        """Let the next iteration have this number; if this is no worker, the next one of workers that stay, too.

        Args:
            epoch: if it is before a loaded state's, it stands for that, and later ones count on from it.
            is_resumed: whether the next iteration goes on with a loaded state.

        Returns:
            The number that the next iteration has.
        """
        if is_resumed:
            self._offset.fill_(max(0, self.number - epoch))
        self._asked_epoch, number = epoch, epoch + int(self._offset)
        self._begin_with(number, number, is_new=number != self.number)
        return number

    def load(self, saved_number: int) -> None:
        """Let the next iteration have a state's number; the one after has the epoch asked for, if that is later."""
        asked_epoch = saved_number if self._asked_epoch is None else self._asked_epoch
        self._offset.fill_(max(0, saved_number - asked_epoch))
        self._begin_with(saved_number, max(saved_number, asked_epoch), is_new=True)

    def begin(self) -> None:
        """Begin an iteration, with the number that was set last."""
        if self._begun_in == os.getpid() and int(self._shared) >= 0:
            self.number = int(self._shared)
        self._begun_in = os.getpid()
        self._in_workers.fill_(get_worker_info() is not None)

    def _begin_with(self, number: int, later: int, is_new: bool) -> None:
        self.number, self._begun_in = number, None
        if get_worker_info() is None:
            self._shared.fill_(later)
            if is_new:
                self._in_workers.fill_(0)


#: a path, overrides of `source.*`, conversations in memory, or samples that are indexed already
StreamSource: TypeAlias = str | Sequence[str] | MapStyleDataset | Samples
_INDEX_FILE = "index.arrow"
#: begins the identity of a dataset that has a fingerprint of Hugging Face
OF_HUGGING_FACE = "hf-"
#: the one setting of `source.*` that holds for all sources: it is a rule of the model's text, and packs mix sources
_OF_ALL_SOURCES = "source.control_tokens"


@dataclass(frozen=True)
class PreparedStream:
    """The indexed datasets of a stream, with the config and the template that make packs from them."""

    config: PackConfig
    datasets: list[Samples]
    template: Template
    #: a hash of each dataset's samples and of how they are read; None: nothing identifies them
    identities: list[str | None]

    @property
    def manifest(self) -> dict[str, Any]:
        """The part of energon_pack.json that PackEncoder needs."""
        return manifest_settings(content_settings(plain(self.config)))

    @property
    def fingerprint(self) -> str:
        """A hash of the template and of the settings of packing and reading, on which the made packs depend."""
        return _hash([self.template.fingerprint, plain(self.config.packing), self.config.source.reading.identity])[:16]


def prepare_stream(settings: PackConfig | Sequence[str], sources: Sequence[StreamSource] | None) -> PreparedStream:
    """Index `sources` (None: `source.path`), unless the cache has their index, and load the template."""
    config = config_of(settings)
    if isinstance(sources, str):
        raise PackError(f"sources={sources!r}: give a list of sources")
    if isinstance(config.source.path, Mapping):
        raise PackError("source.path has entries of a mixture, and a stream has none: sources=[…] of it have weights")
    if sources is not None and config.source.path is not None:
        raise PackError(f"source.path={config.source.path} and sources: give one of them")
    if sources is None:
        path = config.source.path
        sources = path if isinstance(path, list) else [path]
    if not sources:
        raise PackError("sources=[]: give at least one")
    each = [(_config_of_source(source, config, settings), source) for source in sources]
    config = each[0][0]
    if config.output.splits.val or config.output.splits.test:
        raise PackError(
            "output.splits: a stream has no splits: give it other sources, or take LazyPackedDataset(split=…)"
        )
    if config.labels.expand is not Expand.none:
        raise PackError(
            f"labels.expand={config.labels.expand.value}: a stream takes samples as they come: pack before training, or"
            " LazyPackedDataset"
        )
    _refuse_different_settings([_settings_of_packs(plain(of_source)) for of_source, _ in each])
    are_pairs = [of_source.source.take is PreferenceTake.both for of_source, _ in each]
    if len({*are_pairs}) > 1:
        which = are_pairs.index(not are_pairs[0])
        raise PackError(
            f"sources[{which}]: pairs share no stream with other samples: source.take=both for all, or none"
        )
    config.packing.check_for_online(are_pairs[0])
    return _prepare_all(each)


def _refuse_different_settings(settings: Sequence[Mapping[str, Any]]) -> None:
    """Raise PackError if the settings of each source, by key, differ where they hold for all: all but `source.*` do."""
    first, *others = settings
    for number, other in enumerate(others, 1):
        for key in sorted(first.keys() | other.keys()):
            is_own = key.startswith("source.") and key != _OF_ALL_SOURCES
            if not is_own and first.get(key) != other.get(key):
                raise PackError(
                    f"sources[0] has {key}={first.get(key)}, and sources[{number}] {key}={other.get(key)}: only"
                    f" source.* may differ, but for {_OF_ALL_SOURCES}: give {key} once, for all sources of the stream"
                )


def _settings_of_packs(all_nodes: dict[str, Any]) -> dict[str, Any]:
    """Return by key the settings on which packs depend, and the place of the processor; `all_nodes`: of a config."""
    processor, hub_id = all_nodes["model"]["processor"], all_nodes["model"]["hub_id"]
    nodes, folder = content_settings(all_nodes), None if processor is None else Path(processor).expanduser()
    place = str(folder.resolve()) if folder and folder.exists() else processor or hub_id
    return {**nodes.pop("plan"), **flat_values(nodes), "model.processor": place}


def _config_of_source(source: Any, config: PackConfig, settings: PackConfig | Sequence[str]) -> PackConfig:
    if isinstance(source, Sized) and not len(source):
        raise PackError(f"sources has {source!r}, which has no samples")
    if _is_overrides(source):
        if isinstance(settings, PackConfig):
            raise PackError(f"sources={source}: overrides for a source need a config that is itself given as overrides")
        config = compose_config([*settings, *source])
        if config.source.path is None:
            raise PackError(f"sources has {source}, which names no source.path")
    elif source is None or isinstance(source, str):
        config = replace(config, source=replace(config.source, path=source))
    return replace(config, stage=Stage.plan, output=replace(config.output, name="stream"))


def _prepare_all(each: Sequence[tuple[PackConfig, Any]]) -> PreparedStream:
    config = each[0][0]
    executor = LocalExecutor(config.executor.num_workers, runs_script=False)
    all_places = [
        prepare_places(its)
        if _is_in_files(source)
        else find_places_without_sources(its.source, its.model, its.output.dir, its.cache_dir)
        for its, source in each
    ]
    workshop = Workshop(executor, Progress(), all_places[0].cache_dir)
    with one_process_at_a_time(workshop.cache()), executor:
        settings = StageSettings.of(config, all_places[0].source, all_places[0].processor)
        method = prepare_measuring_method(settings.method, workshop)
        config = replace(config, model=replace(config.model, template=method.media_rules_choice.template))
        indexed = [
            _samples_in_files(config_of_source.source, places.source, config.seed, workshop)
            if _is_in_files(source)
            else _samples_in_memory(source, config_of_source.source)
            for (config_of_source, source), places in zip(each, all_places, strict=True)
        ]
    datasets, identities = ([*values] for values in zip(*indexed, strict=True))
    return PreparedStream(config, datasets, load_saved_template(method.template_folder), identities)


def _is_overrides(source: Any) -> bool:
    return isinstance(source, (list, tuple)) and all(isinstance(item, str) for item in source)


def _is_in_files(source: Any) -> bool:
    return source is None or isinstance(source, str) or _is_overrides(source)


def _hash(depends: Any) -> str:
    return hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()


def _samples_in_memory(samples: Any, settings: SourceConfig) -> tuple[Samples, str | None]:
    """Return a user's dataset as samples, with their identity if it has a fingerprint of Hugging Face."""
    if hasattr(samples, "sample_for_measuring"):
        return samples, None
    known = getattr(samples, "_fingerprint", None)
    identity = None if known is None else OF_HUGGING_FACE + _hash([known, settings.reading.identity])[:24]
    return user_samples_of(samples, settings), identity


def _samples_in_files(
    settings: SourceConfig, source: Source, seed: int, workshop: Workshop
) -> tuple[Samples, str | None]:
    """Index the files of a source; return its samples, with an identity that a copy of these files has, too."""
    if source.mixture is not None:
        raise PackError(f"source.path={settings.path}: a stream has no mixture: sources=[…] of it have weights")
    keep_damaged = settings.on_damaged is OnDamaged.keep
    indexed = first_samples(index_source(source.shards, keep_damaged, seed, workshop), settings.limit)
    depends = [[item.key, *item.draw_settings, item.num_samples] for item in indexed]
    folder = workshop.cache("stream", _hash(depends)[:24]) / "once"
    if not is_intact(folder):
        with make_folder_atomically(folder) as made:
            write_index(made / _INDEX_FILE, indexed)
    samples = IndexedSamples(
        [item.shard for item in indexed], settings.reading, ArrowFileRows(folder / _INDEX_FILE, SourceIndexRow)
    )
    digests = [item.index_metadata.get("digest", item.key) for item in indexed]
    contents = [[digest, *rest] for digest, (_, *rest) in zip(digests, depends, strict=True)]
    return samples, _hash([contents, settings.reading.identity])[:24]
