"""The settings that each stage of a run reads, picked from the whole config: a stage is a function of these."""

from dataclasses import dataclass, replace
from typing import Any

from energon_pack.config.naming import content_settings
from energon_pack.config.schema import MediaIn, OutputConfig, PackConfig, Stage, complete_split_shares
from energon_pack.plan.settings import PackingConfig, SharedBeginnings
from energon_pack.run.executors.settings import ExecutorKind
from energon_pack.run.untrusted_input import plain
from energon_pack.samples.flavors.base import PackedFlavor
from energon_pack.samples.settings import PreferenceTake, ReadSettings
from energon_pack.sources.find import Source
from energon_pack.sources.media_files import MediaMap, parse_media_map
from energon_pack.sources.mixture import Mixture
from energon_pack.sources.settings import OnDamaged, SourceConfig
from energon_pack.sources.storage import absolute
from energon_pack.templates.settings import LabelsConfig, TemplateSettings


@dataclass(frozen=True)
class MethodSettings:
    """How samples are read and rendered, and how their tokens are counted."""

    template: TemplateSettings
    read: ReadSettings
    engine: str  # the library that counts tokens
    with_beginnings: bool  # for `packing.share`: beginnings are hashed
    mixture: Mixture | None  # of the source, whose entries may be meant for so many tiles
    keep_damaged: bool  # of a damaged file, whole samples are taken; if False, the run ends


@dataclass(frozen=True)
class MeasuringSettings:
    """Which samples are measured, and what else is counted of them."""

    limit: int | None  # how many first samples to take
    takes_pairs: bool  # both sides of preference data
    labels: LabelsConfig
    media_map: MediaMap
    flavor: PackedFlavor  # the form of the packs' JSON, which has the samples' types
    shares: tuple[float, ...]  # of the samples, by split
    verify: float  # share of the samples, 0 to 1, drawn as a check: here, videos of these are decoded
    seed: int


@dataclass(frozen=True)
class PlanSettings:
    """Which samples share a pack, and which packs a shard."""

    packing: PackingConfig
    labels: LabelsConfig
    shares: tuple[float, ...]  # of the samples, by split
    max_shard_packs: int
    max_shard_bytes: float
    seed: int
    content: dict[str, dict[str, Any]]  # all settings that the bytes of the shards depend on
    source_paths: list[Any]  # of the source and of its media


@dataclass(frozen=True)
class ShardSettings:
    """How the samples of a plan are read again, and the form in which they are written."""

    prefix: str  # the beginning of the shards' names
    read: ReadSettings
    engine: str  # the library that counts tokens
    flavor: PackedFlavor
    has_messages: bool  # the JSON of packs holds the conversations
    media_root: str | None  # the place of the source, whose media packs refer to; None: packs hold their media
    is_shared: bool  # several processes write: each marks its shards


@dataclass(frozen=True)
class PublishSettings:
    """With which stage a run ends, which losses it accepts, and what its page and its dataset show."""

    stage: Stage
    max_skipped: float  # share of the samples that bad data may cost
    packing: PackingConfig
    output: OutputConfig
    tried_lens: list[int]  # lengths of packs to compare; empty: chosen by the samples
    read: ReadSettings
    is_demo: bool
    everything: dict[str, Any]  # all settings of the run, by node


@dataclass(frozen=True)
class StageSettings:
    """The settings of all stages."""

    method: MethodSettings
    lengths: MeasuringSettings
    plan: PlanSettings
    shards: ShardSettings
    end: PublishSettings

    @classmethod
    def of(cls, config: PackConfig, source: Source, processor: str) -> "StageSettings":
        """Pick the settings from a config; `source` and `processor` (folder or hub id) are those that it names."""
        model, labels, output = replace(config.model, processor=processor), config.labels, config.output
        read, engine, flavor = config.source.reading, config.measure.engine.value, config.flavor()
        everything = plain(config)
        shares = complete_split_shares(everything["output"]["splits"])
        writes_shards = config.stage not in (Stage.lengths, Stage.plan)  # others take a source of several stores, too
        return cls(
            MethodSettings(
                template=TemplateSettings(model, config.media, labels.as_labels),
                read=read,
                engine=engine,
                with_beginnings=config.packing.share is not SharedBeginnings.none,
                mixture=source.mixture,
                keep_damaged=config.source.on_damaged is OnDamaged.keep,
            ),
            MeasuringSettings(
                limit=config.source.limit,
                takes_pairs=config.source.take is PreferenceTake.both,
                labels=labels,
                media_map=parse_media_map(config.source.media_map),
                flavor=flavor,
                shares=shares,
                verify=config.measure.verify,
                seed=config.seed,
            ),
            PlanSettings(
                packing=config.packing,
                labels=labels,
                shares=shares,
                max_shard_packs=output.max_shard_packs,
                max_shard_bytes=output.max_shard_bytes,
                seed=config.seed,
                content=content_settings(everything),
                source_paths=_source_paths(config.source),
            ),
            ShardSettings(
                prefix=output.shard_prefix,
                read=read,
                engine=engine,
                flavor=flavor,
                has_messages=output.messages,
                media_root=source.root if writes_shards and output.media is MediaIn.reference else None,
                is_shared=config.stage is Stage.publish or config.executor.kind != ExecutorKind.local,
            ),
            PublishSettings(
                stage=config.stage,
                max_skipped=config.max_skipped,
                packing=config.packing,
                output=output,
                tried_lens=config.report.lens,
                read=read,
                is_demo=config.source.is_demo,
                everything=everything,
            ),
        )


def _source_paths(source: SourceConfig) -> list[Any]:
    """Return the paths of a source and of its media, each from the root of the file system."""
    paths = source.path if isinstance(source.path, list) else [source.path]
    places: list[Any] = [
        absolute(each) if isinstance(each, str) else each for each in (*paths, source.media_root) if each
    ]
    return [*places, *parse_media_map(source.media_map)]
