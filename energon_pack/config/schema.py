"""The config with all its nodes. A node that only one subpackage reads is a dataclass of that subpackage."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from energon_pack.errors import PackError
from energon_pack.plan.settings import PackingConfig, SharedBeginnings
from energon_pack.plan.splits import SPLITS
from energon_pack.run.executors.settings import ExecutorConfig
from energon_pack.samples.settings import PreferenceTake
from energon_pack.sources.settings import SourceConfig
from energon_pack.templates.settings import LabelsConfig, MediaConfig, ModelConfig

if TYPE_CHECKING:  # a config is made sooner without these imports
    from energon_pack.samples.flavors.base import PackedFlavor


class Flavor(str, Enum):
    """The form of the JSON in packs; installed packages add others."""

    packed_multi_mix_qa = "packed_multi_mix_qa"
    packed_captioning = "packed_captioning"


class DatasetYaml(str, Enum):
    """How dataset.yaml has Energon read packs: as a sample class (typed), or as dicts for cookers (crude)."""

    typed = "typed"
    crude = "crude"


class MediaIn(str, Enum):
    """Where the media of packs lie: copied into the packs, or in the source, to which packs refer."""

    copy = "copy"
    reference = "reference"


class Stage(str, Enum):
    """The part of the work that a run does; `all` is all of it."""

    lengths = "lengths"
    plan = "plan"
    write = "write"
    publish = "publish"
    all = "all"


class Engine(str, Enum):
    """The library that tokenizes texts to measure their lengths."""

    auto = "auto"
    words = "words"
    gigatoken = "gigatoken"
    tokenizers = "tokenizers"


@dataclass
class MeasureConfig:
    """How lengths are measured; all choices give the same lengths."""

    #: auto: the fastest engine that is installed and exact for the tokenizer
    engine: Engine = Engine.auto
    #: share of the samples that the full processor measures, too, as a check; 0: none
    verify: float = 0.002


@dataclass
class SplitsConfig:
    """The share of the samples in each split; a sample's id and the seed decide its split."""

    #: share of train; None: everything that val and test leave
    train: float | None = None
    #: share of val
    val: float = 0.0
    #: share of test
    test: float = 0.0


def complete_split_shares(requested_shares: Mapping[str, float | None]) -> tuple[float, ...]:
    """Return the share of each of `SPLITS` for the setting `output.splits`; without `train`, it gets the rest."""
    held_out = sum(requested_shares.get(name) or 0.0 for name in SPLITS[1:])
    train = requested_shares.get("train")
    shares = (1.0 - held_out if train is None else train, *(requested_shares.get(name) or 0.0 for name in SPLITS[1:]))
    if min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
        raise PackError(
            f"output.splits={dict(requested_shares)}: shares from 0 to 1, which come to 1 (train: null is the rest)"
        )
    return shares


@dataclass
class OutputConfig:
    """Where the dataset is written, and in which form."""

    #: the folder of all datasets and of the cache
    dir: str = "packed"
    #: name of this dataset's folder in it; None: `<source>-<model>-<layout>-<max_token_len>`, and a hash
    name: str | None = None
    #: the form of the packs' JSON, which says which class reads them; installed packages add others
    flavor: str = Flavor.packed_multi_mix_qa.value
    #: copy: media are in the packs; reference: they stay in the source, from which loading reads them
    media: MediaIn = MediaIn.copy
    #: whether the JSON of packs holds the conversations: training reads only their tokens
    messages: bool = True
    #: how Energon reads the packs: typed: as this package's class; crude: as plain dicts, for your own cookers
    dataset_yaml: DatasetYaml = DatasetYaml.typed
    #: whether sample_loader.py is written beside the packs, for a training stack that can't import energon_pack
    sample_loader_py: bool = False
    #: for sample_loader_py: `module:Class`, that stack's sample class, as my_stack.data:PackedSample; None: ours
    sample_type: str | None = None
    #: for sample_loader_py: the fields of that class, where it can't be imported here; None: it is imported and asked
    sample_fields: list[str] | None = None
    #: the beginning of the shards' names
    shard_prefix: str = "packed"
    #: most packs of a shard
    max_shard_packs: int = 4096
    #: most bytes of a shard; a larger pack has a shard of its own
    max_shard_bytes: float = 1e9
    #: by default all samples are in train
    splits: SplitsConfig = field(default_factory=SplitsConfig)
    #: whether index.sqlite is written, for joins and random access
    sqlite: bool = False
    #: whether a dataset with the same name is replaced
    overwrite: bool = False

    def check(self) -> None:
        """Raise PackError for settings that contradict each other, or with which nothing could be written."""
        if not self.dir:
            raise PackError("output.dir is empty: output.dir=. is this folder")
        for key, text in (("output.name", self.name), ("output.shard_prefix", self.shard_prefix)):
            if text is not None and (not text or set(text) & set("/\\{},") or text.startswith(".")):
                raise PackError(f"{key}={text!r}: no slash, brace, comma or leading dot")
        name = self.sample_type
        if name is not None and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", name):
            raise PackError(f"output.sample_type={name}: a class is named module:Class, as my_stack.data:PackedSample")
        if self.sample_loader_py and name is None:
            raise PackError(
                "output.sample_loader_py=true needs output.sample_type=module:Class, the class that the other stack"
                " reads packs as; energon_pack's own classes need no sample_loader.py"
            )
        if self.sample_loader_py and self.media is MediaIn.reference:
            raise PackError(
                "output.sample_loader_py=true with output.media=reference: a loader of plain Python can't read media"
                " from the source; output.media=copy puts them into the packs"
            )
        if not self.messages and (self.sample_loader_py or self.flavor != Flavor.packed_multi_mix_qa.value):
            reader = "output.sample_loader_py=true" if self.sample_loader_py else f"output.flavor={self.flavor}"
            raise PackError(
                f"output.messages=false with {reader}: who reads such packs needs their conversations; output.messages="
                "true writes them"
            )
        if name is not None and not self.sample_loader_py:
            raise PackError(
                f"output.sample_type={name} needs output.sample_loader_py=true: energon_pack's own loader fills its own"
                " classes alone"
            )
        if self.sample_fields is not None and name is None:
            raise PackError(f"output.sample_fields={self.sample_fields} are of output.sample_type=module:Class")
        if name is not None or self.flavor not in list(Flavor):
            self.find_flavor_for_sample_type()

    def find_flavor_for_sample_type(self) -> "PackedFlavor":
        """Return the packs' flavour, in the form for `sample_type` if it is set; raises as `flavor_for_class` does."""
        from energon_pack.dataset.sample_class import flavor_for_class

        return flavor_for_class(self.flavor, self.sample_type, self.sample_fields)


class SweepObjective(str, Enum):
    """The figure of each job that a sweeper optimises."""

    #: tokens in packs, by the room in them
    fill = "fill"
    #: tokens in packs
    tokens = "tokens"
    #: FLOPs of a forward pass for a token in packs, with what ranks wait
    cost = "cost"


@dataclass
class ReportConfig:
    """Which pack lengths a run tries, and which figure it gives a sweeper."""

    #: the pack lengths that stage=lengths tries, in tokens
    lens: list[int] = field(default_factory=lambda: [2048, 4096, 8192, 16384, 32768, 65536])
    #: the figure that a sweeper such as `hydra/sweeper=optuna` optimises
    objective: SweepObjective = SweepObjective.fill


@dataclass
class PackConfig:
    """All settings of a run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    media: MediaConfig = field(default_factory=MediaConfig)
    labels: LabelsConfig = field(default_factory=LabelsConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    packing: PackingConfig = field(default_factory=PackingConfig)
    source: SourceConfig = field(default_factory=SourceConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    #: seeds everything random: order, splits, drawn samples
    seed: int = 0
    #: lengths: measure, and try `report.lens`; plan: leave a plan; write: write the shards of that plan;
    #: publish: check and publish the shards; all: all of these in a row
    stage: Stage = Stage.all
    #: `3/16`: this process does the fourth of sixteen equal shares of stage=lengths or stage=write
    part: str | None = None
    #: where lengths of each source shard are kept for the next run; None: `<output.dir>/.cache`
    cache_dir: str | None = None
    #: share of the samples that bad data may cost; above it, nothing is published
    max_skipped: float = 0.01

    def flavor(self) -> "PackedFlavor":
        """Return the flavour of the packs, as `output`, `packing.share` and `source.take` choose it.

        Raises as `find_flavor_for_sample_type` does. Pairs are written as trees are: other stacks refuse these.
        """
        from energon_pack.samples.flavors import TREES_FLAVOR

        is_plain = self.packing.share is SharedBeginnings.none and self.source.take is not PreferenceTake.both
        return self.output.find_flavor_for_sample_type() if is_plain else TREES_FLAVOR


def _schema() -> DictConfig:
    """Return the schema. Its free dictionaries are open, so that their keys need no `+` on the command line."""
    schema: DictConfig = OmegaConf.structured(PackConfig)
    for node in (schema.model.processor_kwargs, schema.model.chat_template_kwargs, schema.executor.task):
        OmegaConf.set_struct(node, False)
    return schema


#: all settings with their defaults and types
PACK_SCHEMA = _schema()
ConfigStore.instance().store(name="pack_schema", node=PACK_SCHEMA, provider="energon_pack")
