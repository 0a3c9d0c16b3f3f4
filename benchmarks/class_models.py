"""A small config of any class of transformers that writes text, with a small vocabulary."""

import copy
import importlib
import re
from dataclasses import dataclass
from typing import Any

import torch
from class_rows import CONFIGS

from energon_pack.templates.torchvision_shim import prepare_torchvision
from energon_pack.training.shrink import shrink
from energon_pack.training.sizes import parts

prepare_torchvision()
tf: Any = importlib.import_module("transformers")
VOCABULARY = 384
MAX_PARAMETERS = 400_000_000
_IDS = re.compile(r"\w*(token_id|token_index|token_ids|_id)")


@dataclass(frozen=True)
class Named:
    """A class, and the type of model whose config it takes."""

    name: str
    model_type: str
    sees: bool


def named() -> list[Named]:
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    found: dict[str, Named] = {}
    for sees, mapping in (
        (True, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES),
        (False, auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    ):
        for model_type, name in mapping.items():
            found.setdefault(name, Named(name, model_type, sees))
    return sorted(found.values(), key=lambda one: (one.sees, one.name))


def small_config(one: Named) -> Any:
    make = getattr(tf, one.name)
    rows = {**CONFIGS.get(one.model_type, {}), **CONFIGS.get(one.name, {})}
    config = (make.config_class or tf.CONFIG_MAPPING[one.model_type])(**copy.deepcopy(rows))
    for part in parts(config):
        own = vars(part)
        if "head_dim" in own and own["head_dim"] is None:
            part.head_dim = part.hidden_size // part.num_attention_heads
        if "num_key_value_heads" in own and own["num_key_value_heads"] is None:
            part.num_key_value_heads = part.num_attention_heads
        for name in ("image_token_id", "image_token_index"):
            if name in own and own[name] is None:
                setattr(part, name, 7)
        if not one.sees and "is_decoder" in own:
            part.is_decoder = True
    shrink(config)
    _small_vocabulary(config)
    return config


def _small_vocabulary(config: Any) -> None:
    """Few words; special tokens get small ids, the same for the same."""
    given: dict[int, int] = {}

    def small(number: int) -> int:
        if number < 8 or number < 0:
            return number
        return given.setdefault(number, 8 + len(given))

    for part in parts(config):
        for name, value in list(vars(part).items()):
            if re.fullmatch(r"\w*vocab_size\w*", name) and isinstance(value, int) and value > VOCABULARY:
                setattr(part, name, VOCABULARY)
            elif _IDS.fullmatch(name) and type(value) is int:
                setattr(part, name, small(value))
            elif _IDS.fullmatch(name) and isinstance(value, list) and all(type(i) is int for i in value):
                setattr(part, name, [small(i) for i in value])


def config_of(one: Named) -> Any:
    """The config of a class, made small, with a small vocabulary.

    Raises:
        MemoryError: it is large all the same.
    """
    config = small_config(one)
    try:
        with torch.device("meta"):
            model = getattr(tf, one.name)._from_config(copy.deepcopy(config))
    except (RuntimeError, NotImplementedError, ValueError):  # some can't be made without weights
        return config
    size = sum(parameter.numel() for parameter in model.parameters())
    if size > MAX_PARAMETERS:
        raise MemoryError(f"{size / 1e6:.0f} million parameters")
    return config
