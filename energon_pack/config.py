"""The config: its schema, where `conf/` lies, and from a composed config to a checked `PackConfig`."""

import difflib
import hashlib
import json
import re
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
    best_fit_decreasing = "best_fit_decreasing"


class Overlong(str, Enum):
    drop = "drop"
    error = "error"


class GroupBy(str, Enum):
    media = "media"
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
    lengths = "lengths"
    plan = "plan"
    all = "all"


class ImagePreprocessor(str, Enum):
    default = "default"


@dataclass
class ModelConfig:
    """A model: its family of rules and its processor. One YAML in `conf/model` each."""

    name: str = MISSING
    template: str = MISSING
    hub_id: str = MISSING
    processor: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    processor_kwargs: dict[str, Any] = field(default_factory=dict)
    min_pixels: int | None = None
    max_pixels: int | None = None
    factor: int | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    mask: Mask = Mask.positions


@dataclass
class MediaConfig:
    image: ImagePreprocessor = ImagePreprocessor.default


@dataclass
class PackingConfig:
    layout: Layout = Layout.neat
    max_token_len: int = 8192
    pad_to_multiple_of: int = 1
    algorithm: Algorithm = Algorithm.best_fit_decreasing
    overlong: Overlong = Overlong.drop
    group_by: GroupBy = GroupBy.media


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
    max_shard_bytes: int = 1_000_000_000
    overwrite: bool = False


@dataclass
class ExecutorConfig:
    num_workers: int | None = None


@dataclass
class PackConfig:
    """Everything a run depends on."""

    model: ModelConfig = field(default_factory=ModelConfig)
    media: MediaConfig = field(default_factory=MediaConfig)
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


def plain(config: PackConfig) -> dict[str, Any]:
    """The config as JSON has it."""

    def value(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: value(entry) for key, entry in item.items()}
        return item.value if isinstance(item, Enum) else item

    result: dict[str, Any] = value(asdict(config))
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
        "packing.max_token_len": packing.max_token_len,
        "packing.pad_to_multiple_of": packing.pad_to_multiple_of,
        "output.max_shard_packs": output.max_shard_packs,
        "output.max_shard_bytes": output.max_shard_bytes,
        "executor.num_workers": config.executor.num_workers,
        "model.min_pixels": model.min_pixels,
        "model.max_pixels": model.max_pixels,
        "source.limit": config.source.limit,
    }
    for name, value in positive.items():
        if value is not None and value < 1:
            raise PackError(f"{name}={value}: must be at least 1")
    if packing.max_token_len % packing.pad_to_multiple_of:
        raise PackError(
            f"packing.max_token_len={packing.max_token_len} is not a multiple of"
            f" packing.pad_to_multiple_of={packing.pad_to_multiple_of}"
        )
    if not 0 <= config.max_skipped <= 1:
        raise PackError(f"max_skipped={config.max_skipped}: a share of the samples, 0 to 1")
    for name, text in (("output.name", output.name), ("output.shard_prefix", output.shard_prefix)):
        if text is not None and (not text or set(text) & set("/\\{},") or text.startswith(".")):
            raise PackError(f"{name}={text!r}: no slash, brace, comma or leading dot")
    path = config.source.path
    entries = path if isinstance(path, list) else [path]
    if path is not None and not (entries and all(isinstance(entry, str) and entry for entry in entries)):
        raise PackError(f"source.path={path!r}: a folder, a tar, a glob, or a list of these")


#: Settings no byte of a dataset depends on. `model.processor` is a place; what it holds is in the fingerprint.
_NOT_CONTENT = {
    "model": {"processor"},
    "source": {"path", "on_damaged"},
    "output": {"dir", "name", "overwrite"},
}
_IN_NAME = {"packing.layout", "packing.max_token_len"}


def content_settings(config: PackConfig) -> dict[str, dict[str, Any]]:
    """What the bytes of a dataset depend on beside its source and processor: no path, worker or machine."""
    values = plain(config)
    nodes = {node: values[node] for node in ("model", "media", "packing", "source", "output")}
    nodes["plan"] = {"seed": config.seed}
    return {
        node: {key: value for key, value in items.items() if key not in _NOT_CONTENT.get(node, ())}
        for node, items in nodes.items()
    }


def output_name(config: PackConfig, defaults: PackConfig) -> str:
    """`<source>-<model>-<layout>-<max_token_len>`, and a hash of the other content settings that are not default.

    Args:
        defaults: the same choice of groups without any override.
    """
    name = f"{_source_name(config.source.path)}-{config.model.name}"
    name += f"-{config.packing.layout.value}-{config.packing.max_token_len}"
    ours, theirs = content_settings(config), content_settings(defaults)
    changed = {
        f"{node}.{key}": value
        for node, items in ours.items()
        for key, value in items.items()
        if value != theirs[node][key] and f"{node}.{key}" not in _IN_NAME
    }
    if changed:
        name += "-" + hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:6]
    return name


def _source_name(path: Any) -> str:
    if path is None:
        return "demo"
    names = []
    for entry in path if isinstance(path, list) else [path]:
        fixed = re.split(r"[^/]*[*?\[]", entry)[0]  # a glob's folders before the first wildcard
        names.append(Path(fixed).expanduser().resolve().name.removesuffix(".tar"))
    return re.sub(r"[^\w.+-]+", "_", "+".join(dict.fromkeys(names)))[:80].strip(".") or "source"
