"""Make small configs for the model classes that go with a processor."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from energon_pack.samples.input_rules import InputRules
from energon_pack.samples.media.kinds import IMAGE
from energon_pack.templates.full import full_processor
from energon_pack.training.shrink import shrink
from energon_pack.training.wrapped import parts

#: words in the names of a tokenizer's special tokens, and the words that configs use instead
_SAME = {"bos": "start", "eos": "end"}


def small_config(make: Any, rules: InputRules) -> Any:
    """Return a config with few and small layers: the model's own, or the class's default with the processor's sizes.

    Args:
        make: a class that `models_of` returned.
        rules: of the processor, whose folder may hold config.json.

    Raises:
        ValueError: config.json belongs to another class.
    """
    folder = Path(rules.folder)
    if (folder / "config.json").is_file():
        from transformers import AutoConfig

        trusted = bool(rules.kwargs.get("trust_remote_code"))
        every = parts(AutoConfig.from_pretrained(folder, trust_remote_code=trusted))
        found = next((part for part in every if isinstance(part, make.config_class)), None)
        if found is None:
            raise ValueError(f"{folder / 'config.json'} has no {make.config_class.__name__}")
        return shrink(found)
    config = shrink(make.config_class())
    for part in parts(config):
        _take_sizes(part, rules.settings.get(IMAGE.kind, {}))
    _take_ids(config, rules)
    return config


def _take_sizes(part: Any, image: Mapping[str, Any]) -> None:
    for name, own in (("merge_size", "spatial_merge_size"), ("temporal_patch_size", "temporal_patch_size")):
        if image.get(name) is not None and hasattr(part, own):
            setattr(part, own, image[name])


def _take_ids(config: Any, rules: InputRules) -> None:
    """Set the config's ids of special tokens: `vision_start_token_id` is the processor's `vision_bos_token`."""
    named = {**rules.tokens, **vars(full_processor(rules))}
    for name, token in named.items():
        token_id = rules.token_id(token) if name.endswith("_token") and isinstance(token, str) else None
        if token_id is None:
            continue
        *words, last, _ = name.split("_")
        for known in {last, _SAME.get(last, last)}:
            setattr(config, "_".join([*words, known, "token_id"]), token_id)
