"""The config: its schema, where `conf/` lies, and from a composed config to a checked `PackConfig`."""

import difflib
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from energon_pack.errors import PackError


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


class SampleType(str, Enum):
    auto = "auto"
    chat = "chat"
    captioning = "captioning"
    vqa = "vqa"


class ControlTokens(str, Enum):
    keep = "keep"
    skip = "skip"


class OnDamaged(str, Enum):
    error = "error"
    keep = "keep"


class Flavor(str, Enum):
    packed_multi_mix_qa = "packed_multi_mix_qa"


class DatasetYaml(str, Enum):
    typed = "typed"
    crude = "crude"


class Stage(str, Enum):
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
    path: Any = None  # str or list of str
    messages_key: str | None = None
    sample_type: SampleType = SampleType.auto
    caption_prompt: str = ""
    control_tokens: ControlTokens = ControlTokens.keep
    on_damaged: OnDamaged = OnDamaged.error
    split: str | None = None
    limit: int | None = None


@dataclass
class OutputConfig:
    dir: str = "packed"
    name: str | None = None
    flavor: Flavor = Flavor.packed_multi_mix_qa
    dataset_yaml: DatasetYaml = DatasetYaml.typed
    shard_prefix: str = "packed"
    max_shard_packs: int = 4096
    max_shard_bytes: float = 1e9
    sqlite: bool = False
    overwrite: bool = False


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


def conf_dir() -> Path:
    """The folder of config.yaml: inside the package in a wheel, beside it in a checkout or an editable install."""
    package = Path(__file__).resolve().parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise FileNotFoundError(f"no conf/config.yaml in {package} or beside it: the installation is broken")


def to_config(composed: DictConfig, models: list[str]) -> PackConfig:
    """The typed form of a composed config.

    Args:
        models: names `+model=` takes, for the error without one.

    Raises:
        PackError: no model, an unknown key (which `+` lets into a config), or a value that makes no sense.
    """
    _reject_unknown(composed, PackConfig, "")
    if OmegaConf.is_missing(composed.model, "name"):
        raise PackError(f"no model: choose one with +model=NAME; there are: {', '.join(models)}")
    missing = sorted(OmegaConf.missing_keys(composed))
    if missing:
        raise PackError(f"{', '.join(missing)} must be set, in the model's YAML or on the command line")
    config = OmegaConf.to_object(composed)
    assert isinstance(config, PackConfig)
    _check_values(config)
    if config.model.chat_template is not None and "{" not in config.model.chat_template:
        config.model.chat_template = _read_text("model.chat_template", config.model.chat_template)
    return config


def plain(node: Any) -> dict[str, Any]:
    """A config or a node of it, as JSON has it."""

    def value(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: value(entry) for key, entry in item.items()}
        return item.value if isinstance(item, Enum) else item

    result: dict[str, Any] = value(asdict(node))
    return result


def _read_text(name: str, path: str) -> str:
    try:
        return Path(path).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PackError(f"{name}={path}: neither Jinja text nor a readable file ({error})") from None


def nearest_key(key: str) -> str:
    """What a user may have meant by a key that does not exist."""
    node, _, name = key.rpartition(".")
    schema: Any = PackConfig
    for step in node.split(".") if node else ():
        schema = get_type_hints(schema).get(step)
        if not is_dataclass(schema):
            return f"{node} has no keys of its own"
    names = sorted(get_type_hints(schema))
    near = difflib.get_close_matches(name, names, n=1)
    dot = f"{node}." if node else ""
    return f"did you mean {dot}{near[0]}?" if near else f"there are: {', '.join(dot + name for name in names)}"


def _reject_unknown(node: DictConfig, schema: type, prefix: str) -> None:
    types = get_type_hints(schema)
    for key in map(str, node):
        if key not in types:
            raise PackError(f"unknown key {prefix}{key}; {nearest_key(prefix + key)}")
        if is_dataclass(types[key]):
            _reject_unknown(node[key], types[key], f"{prefix}{key}.")


def _check_values(config: PackConfig) -> None:
    packing, output, model = config.packing, config.output, config.model
    positive = {
        **{f"packing.{name}": value for name, value in plain(packing).items() if isinstance(value, int)},
        "output.max_shard_packs": output.max_shard_packs,
        "output.max_shard_bytes": output.max_shard_bytes,
        "executor.num_workers": config.executor.num_workers,
        **{f"media.{name}": value for name, value in plain(config.media).items() if name not in ("image", "video")},
        "model.factor": model.factor,
        "model.min_pixels": model.min_pixels,
        "model.max_pixels": model.max_pixels,
        "source.limit": config.source.limit,
    }
    for name, value in positive.items():
        if value is not None and not isinstance(value, bool) and value < 1 and name != "media.fps":
            raise PackError(f"{name}={value}: must be at least 1")
    if config.media.fps is not None and not config.media.fps > 0:
        raise PackError(f"media.fps={config.media.fps}: must be more than 0")
    if model.min_pixels and model.max_pixels and model.min_pixels > model.max_pixels:
        raise PackError(f"model.min_pixels={model.min_pixels} is more than model.max_pixels={model.max_pixels}")
    if not output.dir:
        raise PackError("output.dir is empty: output.dir=. is this folder")
    if packing.max_token_len % packing.pad_to_multiple_of:
        raise PackError(
            f"packing.max_token_len={packing.max_token_len} is not a multiple of"
            f" packing.pad_to_multiple_of={packing.pad_to_multiple_of}"
        )
    if (packing.overlong is Overlong.own_pack) != (packing.hard_limit is not None):
        raise PackError(
            f"packing.overlong={packing.overlong.value} and packing.hard_limit={packing.hard_limit}: own_pack needs a"
            " hard_limit, the most tokens of a sample with a pack of its own, and nothing else has one"
        )
    if packing.hard_limit is not None and packing.hard_limit < packing.max_token_len:
        raise PackError(
            f"packing.hard_limit={packing.hard_limit} is less than packing.max_token_len={packing.max_token_len}"
        )
    if packing.need_image and packing.group_by is GroupBy.media:
        raise PackError("packing.need_image needs packing.group_by=none or dataset: packs of text alone have no image")
    for name, share in (("max_skipped", config.max_skipped), ("measure.verify", config.measure.verify)):
        if not 0 <= share <= 1:
            raise PackError(f"{name}={share}: a share of the samples, 0 to 1")
    for name, text in (("output.name", output.name), ("output.shard_prefix", output.shard_prefix)):
        if text is not None and (not text or set(text) & set("/\\{},") or text.startswith(".")):
            raise PackError(f"{name}={text!r}: no slash, brace, comma or leading dot")
    path = config.source.path
    entries = path if isinstance(path, list) else [path]
    if path is not None and not (entries and all(isinstance(entry, str) and entry for entry in entries)):
        raise PackError(f"source.path={path!r}: a folder, a tar, a glob, or a list of these")
