"""From a composed config to a checked `PackConfig`: no unknown key, no value that makes no sense."""

import difflib
import re
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf

from energon_pack.config import GroupBy, OutputConfig, Overlong, PackConfig, plain
from energon_pack.draws import parse_slice
from energon_pack.errors import PackError
from energon_pack.splits import split_shares


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
    for max_token_len in config.report.lens:
        if max_token_len < packing.pad_to_multiple_of:
            raise PackError(
                f"report.lens={config.report.lens}: {max_token_len} is less than"
                f" packing.pad_to_multiple_of={packing.pad_to_multiple_of}"
            )
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
    _check_sample_type(output)
    parse_slice(config.source.slice)
    split_shares(plain(output.splits))
    path = config.source.path
    entries = path if isinstance(path, list) else [path]
    if path is not None and not (entries and all(isinstance(entry, str) and entry for entry in entries)):
        raise PackError(f"source.path={path!r}: a folder, a file, a glob, or a list of these")


def _check_sample_type(output: OutputConfig) -> None:
    name = output.sample_type
    if name is not None and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", name):
        raise PackError(f"output.sample_type={name}: a class is named module:Class, as my_stack.data:PackedSample")
    if output.sample_loader_py and name is None:
        raise PackError(
            "output.sample_loader_py=true needs output.sample_type=module:Class, the class that the other stack reads"
            " packs as; energon_pack's own classes need no sample_loader.py"
        )
    if name is not None and not output.sample_loader_py:
        raise PackError(
            f"output.sample_type={name} needs output.sample_loader_py=true: energon_pack's own loader fills its own"
            " classes alone"
        )


def _read_text(name: str, path: str) -> str:
    try:
        return Path(path).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PackError(f"{name}={path}: neither Jinja text nor a readable file ({error})") from None
