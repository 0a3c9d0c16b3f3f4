"""The config: its schema."""

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from energon_pack.models import conf_dir as conf_dir


class Layout(str, Enum):
    neat = "neat"
    thd = "thd"


class Algorithm(str, Enum):
    auto = "auto"
    balanced = "balanced"
    optimal = "optimal"
    best_fit_decreasing = "best_fit_decreasing"
    first_fit_decreasing = "first_fit_decreasing"


class Overlong(str, Enum):
    drop = "drop"
    error = "error"
    own_pack = "own_pack"
    split_turns = "split_turns"
    truncate_text = "truncate_text"


class GroupBy(str, Enum):
    media = "media"
    dataset = "dataset"
    none = "none"


class Mask(str, Enum):
    positions = "positions"
    dict4d = "dict4d"
    hybrid = "hybrid"


class Rope(str, Enum):
    none = "none"
    qwen2_vl = "qwen2_vl"
    qwen2_5_vl = "qwen2_5_vl"
    qwen3_vl = "qwen3_vl"


class SampleType(str, Enum):
    auto = "auto"
    chat = "chat"
    captioning = "captioning"
    vqa = "vqa"


class ControlTokens(str, Enum):
    keep = "keep"
    skip = "skip"


class Format(str, Enum):
    wds = "wds"
    jsonl = "jsonl"


class OnDamaged(str, Enum):
    error = "error"
    keep = "keep"


class Flavor(str, Enum):
    packed_multi_mix_qa = "packed_multi_mix_qa"
    packed_captioning = "packed_captioning"


class DatasetYaml(str, Enum):
    typed = "typed"
    crude = "crude"


class Stage(str, Enum):
    lengths = "lengths"
    plan = "plan"
    all = "all"


class Engine(str, Enum):
    auto = "auto"
    words = "words"
    gigatoken = "gigatoken"
    fastokens = "fastokens"
    tokenizers = "tokenizers"


class TrainOn(str, Enum):
    all = "all"
    last = "last"


@dataclass
class ModelConfig:
    """A model: its family of rules and its processor. One YAML in `conf/model` each."""

    name: str = MISSING
    template: str = MISSING
    hub_id: str | None = None
    processor: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    processor_kwargs: dict[str, Any] = field(default_factory=dict)
    min_pixels: int | None = None
    max_pixels: int | None = None
    factor: int | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    add_special_tokens: bool = False
    mask: Mask = Mask.positions
    rope: Rope = Rope.none  # whose three rows of positions the model takes


@dataclass
class MediaConfig:
    """What is done to media before the processor's own rule; names are those of `preprocess.py`, or `module:Class`."""

    image: str = "default"
    longest_side: int | None = None
    max_pixels: int | None = None
    crop_width: int | None = None
    crop_height: int | None = None
    video: str = "default"
    fps: float | None = None
    num_frames: int | None = None
    min_frames: int | None = None
    max_frames: int | None = None
    video_min_pixels: int | None = None
    video_max_pixels: int | None = None
    video_cap: bool | None = None


@dataclass
class LabelsConfig:
    train_on: TrainOn = TrainOn.all


@dataclass
class MeasureConfig:
    engine: Engine = Engine.auto
    verify: float = 0.002


@dataclass
class PackingConfig:
    layout: Layout = Layout.neat
    max_token_len: int = 8192
    pad_to_multiple_of: int = 1
    algorithm: Algorithm = Algorithm.auto
    overlong: Overlong = Overlong.drop
    hard_limit: int | None = None
    group_by: GroupBy = GroupBy.media
    window: int | None = None
    max_images: int | None = None
    max_visual_tokens: int | None = None
    max_members: int | None = None
    max_attention_cost: int | None = None
    need_image: bool = False
    data_parallel_size: int = 1


@dataclass
class SourceConfig:
    format: Format = Format.wds
    path: Any = None  # str or list of str
    media_root: str | None = None
    messages_key: str | None = None
    sample_type: SampleType = SampleType.auto
    caption_prompt: str = ""
    control_tokens: ControlTokens = ControlTokens.keep
    on_damaged: OnDamaged = OnDamaged.error
    split: str | None = None
    limit: int | None = None
    slice: str | None = None


@dataclass
class SplitsConfig:
    train: float | None = None  # the rest
    val: float = 0.0
    test: float = 0.0


@dataclass
class OutputConfig:
    dir: str = "packed"
    name: str | None = None
    flavor: Flavor = Flavor.packed_multi_mix_qa
    dataset_yaml: DatasetYaml = DatasetYaml.typed
    sample_loader_py: bool = False
    sample_type: str | None = None
    shard_prefix: str = "packed"
    max_shard_packs: int = 4096
    max_shard_bytes: float = 1e9
    splits: SplitsConfig = field(default_factory=SplitsConfig)
    sqlite: bool = False
    overwrite: bool = False


@dataclass
class ReportConfig:
    lens: list[int] = field(default_factory=lambda: [2048, 4096, 8192, 16384, 32768, 65536])


@dataclass
class ExecutorConfig:
    num_workers: int | None = None


@dataclass
class PackConfig:
    """Everything a run depends on."""

    model: ModelConfig = field(default_factory=ModelConfig)
    media: MediaConfig = field(default_factory=MediaConfig)
    labels: LabelsConfig = field(default_factory=LabelsConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    packing: PackingConfig = field(default_factory=PackingConfig)
    source: SourceConfig = field(default_factory=SourceConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    seed: int = 0
    stage: Stage = Stage.all
    cache_dir: str | None = None
    max_skipped: float = 0.01


def _schema() -> DictConfig:
    """The schema, its free dictionaries open, so that their keys need no `+` on the command line."""
    schema: DictConfig = OmegaConf.structured(PackConfig)
    OmegaConf.set_struct(schema.model.processor_kwargs, False)
    OmegaConf.set_struct(schema.model.chat_template_kwargs, False)
    return schema


ConfigStore.instance().store(name="pack_schema", node=_schema(), provider="energon_pack")


def plain(node: Any) -> dict[str, Any]:
    """A config or a node of it, as JSON has it."""

    def value(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: value(entry) for key, entry in item.items()}
        return item.value if isinstance(item, Enum) else item

    result: dict[str, Any] = value(asdict(node))
    return result
