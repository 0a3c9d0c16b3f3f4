"""Check a composed config and turn it into a `PackConfig`: no unknown key, no value that makes no sense."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf, flag_override

from energon_pack.config import Flavor, ModelConfig, OutputConfig, PackConfig, Stage, plain
from energon_pack.config.schema import complete_split_shares
from energon_pack.errors import PackError, refuse_password
from energon_pack.plan.settings import CUTTING_POLICIES, Layout, Overlong, PackingConfig, SharedBeginnings
from energon_pack.run.executors import WorkPart
from energon_pack.samples.settings import PreferenceTake
from energon_pack.templates.models import read_model_config
from energon_pack.templates.settings import Expand, LabelsConfig, Mask, MediaConfig, Think, TrainOn

#: names of settings in other tools
_NAMES_IN_OTHER_TOOLS = {
    "packing.max_token_len": "max_seq_len max_seq_length seq_len seq_length max_length sequence_len cutoff_len",
    "model.processor": "model_path model_name_or_path processor_path tokenizer tokenizer_path",
    "model.max_pixels": "max_pixels image_max_pixels",
    "source.path": "data_path data_dir dataset train_file input",
    "output.dir": "output_dir output_path save_dir out",
    "executor.num_workers": "num_proc dataset_num_proc preprocessing_num_workers",
}
_MAX_GUESSES = 3  # names to suggest if none is spelled alike


def to_config(composed: DictConfig) -> PackConfig:
    """Check a composed config, and return it as a `PackConfig`.

    Raises:
        PackError: neither a model nor a processor, an unknown key (which `+` lets into a config), or a value that
            makes no sense.
    """
    _reject_unknown(composed, PackConfig, "")
    if OmegaConf.is_missing(composed.model, "name"):
        _add_auto_model(composed)
    missing = sorted(OmegaConf.missing_keys(composed))
    if missing:
        raise PackError(f"{', '.join(missing)} must be set, in the model's YAML or on the command line")
    config = OmegaConf.to_object(composed)
    assert isinstance(config, PackConfig)
    return checked_config(config)


def _add_auto_model(composed: DictConfig) -> None:
    """Fill in the model's settings as `model=auto` does, if only a processor is given: its class decides the rest."""
    if not composed.model.processor:
        raise PackError(
            "no model: model.processor=FOLDER (or its hub id) is enough, or +model=NAME, as --help lists them; for the"
            " built-in demo: +model=qwen2_5_vl"
        )
    defaults = ModelConfig(name="", template="")
    with flag_override(composed, ["readonly", "struct"], False):
        for key, value in read_model_config("auto").items():
            if OmegaConf.is_missing(composed.model, key) or composed.model[key] == getattr(defaults, key):
                composed.model[key] = value


def unknown_key_hint(key: str) -> str:
    """Return a hint for a key that does not exist: `did you mean packing.max_token_len?`, or a list of keys."""
    node, _, name = key.rpartition(".")
    if meant := next((ours for ours, names in _NAMES_IN_OTHER_TOOLS.items() if name in names.split()), None):
        return f"did you mean {meant}?"
    of_that_name = [ours for ours in dotted_setting_keys(PackConfig) if ours.rpartition(".")[2] == name]
    schema: Any = PackConfig
    steps = node.split(".") if node else []
    for depth, step in enumerate(steps, 1):
        names = sorted(get_type_hints(schema))
        schema = get_type_hints(schema).get(step)
        if schema is None:
            ours, *rest = of_that_name or ("",)
            if ours and not rest:
                return f"did you mean {ours}?"
            return unknown_key_hint(".".join(steps[:depth])) if depth > 1 else unknown_name_hint(step, names)
        if not is_dataclass(schema):
            return f"{node} has no keys of its own"
    names = sorted(get_type_hints(schema))
    dot = f"{node}." if node else ""
    deeper = {key.rpartition(".")[2]: key for key in dotted_setting_keys(schema)}
    for keys in ({key: key for key in names}, deeper):
        close = difflib.get_close_matches(name, keys, n=_MAX_GUESSES)
        if near := next((one for one in close if _is_respelling(name, one)), None):
            return f"did you mean {dot}{keys[near]}?"
    if len(names) > _MAX_GUESSES and node:
        nearest = difflib.get_close_matches(name, names, n=_MAX_GUESSES, cutoff=0.0)
        return f"near it: {', '.join(dot + one for one in nearest)}; all of them: energon-pack --help {node}"
    return f"there are: {', '.join(dot + name for name in names)}"


def _is_respelling(name: str, known: str) -> bool:
    """Say whether a key spells a known one in another way, word by word: `max_tokens` for `max_token_len`.

    Keys that are spelled alike may mean other things: `max_packed_tokens` and `max_dropped_tokens`.
    """
    words, known_words = name.lower().split("_"), known.split("_")
    return _are_like(words, known_words) or (len(known_words) > 1 and _are_like(known_words, words))


def _are_like(words: Sequence[str], known_words: Sequence[str]) -> bool:
    return all(any(_is_like(word, other) for other in known_words) for word in words)


def _is_like(word: str, other: str) -> bool:
    return word.startswith(other) or bool(difflib.get_close_matches(word, [other], 1, 0.75))


def unknown_name_hint(name: str, names: Sequence[str]) -> str:
    """Return a hint for an unknown name: `did you mean …?`, whatever dots, dashes and capitals, or a list of all."""
    plain = {re.sub(r"[\W_]", "", known).lower(): known for known in names}
    spelled = re.sub(r"[\W_]", "", name).lower()
    near = [spelled] if spelled in plain else difflib.get_close_matches(spelled, plain, n=_MAX_GUESSES, cutoff=0.7)
    if near:
        return f"did you mean {' or '.join(plain[guess] for guess in near)}?"
    return f"there are: {', '.join(names)}"


def dotted_setting_keys(config_class: Any) -> Iterator[str]:
    """Yield the dotted keys of all settings in a config class: `packing.max_token_len`."""
    for name, kind in get_type_hints(config_class).items():
        yield from (f"{name}.{key}" for key in dotted_setting_keys(kind)) if is_dataclass(kind) else (name,)


def _reject_unknown(node: DictConfig, schema: type, prefix: str) -> None:
    types = get_type_hints(schema)
    for key in map(str, node):
        if key not in types:
            inner = next(iter(node[key]), "") if isinstance(node[key], DictConfig) else ""
            named = ".".join(filter(None, (f"{prefix}{key}", inner)))
            raise PackError(f"unknown key {named}; {unknown_key_hint(named)}")
        if is_dataclass(types[key]):
            _reject_unknown(node[key], types[key], f"{prefix}{key}.")


def checked_config(config: PackConfig) -> PackConfig:
    """Return a config whose values make sense, with the text of the chat template in place of its file.

    Nodes check their own values themselves.

    Raises:
        PackError: a value makes no sense, or the file can't be read.
    """
    packing, settings = config.packing, plain(config)
    for max_token_len in config.report.lens:
        if max_token_len < packing.pad_to_multiple_of:
            raise PackError(
                f"report.lens={config.report.lens}: {max_token_len} is less than"
                f" packing.pad_to_multiple_of={packing.pad_to_multiple_of}"
            )
    for name, value in [*_integer_settings(settings), ("output.max_shard_bytes", config.output.max_shard_bytes)]:
        if value < 1:
            raise PackError(f"{name}={value}: must be at least 1")
    for name, share in (("max_skipped", config.max_skipped), ("measure.verify", config.measure.verify)):
        if not 0 <= share <= 1:
            raise PackError(f"{name}={share}: a share of the samples, 0 to 1")
    for name, text in _text_settings(settings):
        if not (name == "model.chat_template" and "{" in text):  # its text may have an example of an address
            refuse_password(f"{name}=", text)
    for node in (config.media, config.model, config.labels, packing, config.source, config.output, config.executor):
        node.check()
    if config.media != MediaConfig():
        from energon_pack.templates.preprocess import (
            check_media_config,  # imports NumPy and Pillow, so only when needed
        )

        check_media_config(config.media)
    _check_labels_of_cut_samples(packing, config.labels)
    _check_packing_share(packing, config.labels, config.output, config.model.mask)
    if config.source.take is PreferenceTake.both:
        _check_pairs(packing, config.labels, config.output)
    if config.part is not None:
        WorkPart.parse(config.part)
        if config.stage not in (Stage.lengths, Stage.write):
            raise PackError(f"part={config.part}: stage={config.stage.value} has no parts; lengths and write have")
    complete_split_shares(settings["output"]["splits"])
    named = config.model.chat_template
    if named is None or "{" in named or _may_be_template_name(named):
        return config
    return replace(config, model=replace(config.model, chat_template=_read_text("model.chat_template", named)))


def _check_labels_of_cut_samples(packing: PackingConfig, labels: LabelsConfig) -> None:
    """Raise PackError for label settings that need a sample's last turn, if samples are cut into parts."""
    is_split, are_pairs = packing.overlong is Overlong.split_turns, labels.expand is Expand.pairs
    asked = [
        f"labels.train_on={TrainOn.last.value}" if labels.train_on is TrainOn.last else "",
        f"labels.think={Think.drop_history.value}" if labels.think is Think.drop_history else "",
    ]
    if (is_split or are_pairs) and (name := next(filter(None, asked), None)):
        cut, instead = "packing.overlong=split_turns", "packing.overlong=drop leaves such samples out"
        if not is_split:
            cut, instead = "labels.expand=pairs", "labels.expand=turns keeps what stands before an answer"
        raise PackError(f"{name} and {cut}: each part of a sample would have a last turn of its own; {instead}")


def _check_packing_share(packing: PackingConfig, labels: LabelsConfig, output: OutputConfig, mask: Mask) -> None:
    """Raise PackError for settings that do not work with `packing.share`."""
    share = packing.share
    if share is SharedBeginnings.none:
        return
    asked = {
        f"output.flavor={output.flavor}": output.flavor != Flavor.packed_multi_mix_qa.value,
        f"output.sample_type={output.sample_type}": output.sample_type is not None,
        f"labels.prompt_weight={labels.prompt_weight}": labels.prompt_weight > 0,
        f"model.mask={mask.value}": mask in (Mask.hybrid, Mask.prefix4d),
    }
    if name := next((name for name, is_asked in asked.items() if is_asked), None):
        why = "only packed_multi_mix_qa has a form"
        if "labels" in name:
            why = "a prompt that is trained can't be shared"
        elif "mask" in name:
            why = "such a model can't keep samples apart that share a beginning"
        raise PackError(f"packing.share={share.value} with {name}: {why}; packing.share=none packs whole samples")


def _check_pairs(packing: PackingConfig, labels: LabelsConfig, output: OutputConfig) -> None:
    """Raise PackError for settings that do not work with preference pairs (`source.take=both`)."""
    asked = {
        f"packing={Layout.thd.value}": packing.layout is Layout.thd,
        f"packing.pad_to_multiple_of={packing.pad_to_multiple_of}": packing.pad_to_multiple_of > 1,
        f"packing.overlong={packing.overlong.value}": packing.overlong in CUTTING_POLICIES,
        f"packing.max_members={packing.max_members}": packing.max_members == 1,
        f"labels.expand={labels.expand.value}": labels.expand is not Expand.none,
        f"labels.prompt_weight={labels.prompt_weight:g}": labels.prompt_weight > 0,
        f"output.flavor={output.flavor}": output.flavor != Flavor.packed_multi_mix_qa.value,
        f"output.sample_type={output.sample_type}": output.sample_type is not None,
    }
    if name := next((name for name, is_asked in asked.items() if is_asked), None):
        why = "a pair is two whole samples in one pack, in layout=neat, whose last answers alone are trained"
        raise PackError(f"source.take=both with {name}: {why}; source.take=chosen packs the good sides alone")


def _integer_settings(nodes: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the key and value of each whole number in a node of the config: all of them are sizes or counts."""
    for node, settings in nodes.items():
        for name, value in settings.items() if isinstance(settings, dict) else ():
            if isinstance(value, int) and not isinstance(value, bool):
                yield f"{node}.{name}", value


def _text_settings(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the key and value of each text in the config."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else ((None, item) for item in value)
        for key, item in items:
            yield from _text_settings(item, ".".join(filter(None, (name, key))))


def _may_be_template_name(text: str) -> bool:
    """Say whether a text may name one of a processor's chat templates; otherwise it is a file."""
    return re.fullmatch(r"[\w-]+", text) is not None and not Path(text).is_file()


def _read_text(name: str, path: str) -> str:
    try:
        return Path(path).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PackError(f"{name}={path}: neither Jinja text nor a readable file ({error})") from None
