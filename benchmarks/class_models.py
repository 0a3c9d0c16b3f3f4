"""A small config of any class of transformers that writes text, with a small vocabulary."""

import copy
import importlib
import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from class_rows import CONFIGS
from transformers.configuration_utils import ALLOWED_ATTN_LAYER_TYPES

from energon_pack.templates.full_processor import prepare_torchvision
from energon_pack.training.model_wrappers import configs_in
from energon_pack.training.shrunk_config import shrink_config

prepare_torchvision()
_TESTS = Path(__file__).parents[1] / "tests"
# Before transformers looks for kernels: what is installed comes first.
sys.path += [str(_TESTS), str(_TESTS / "support" / "reference_kernels")]
tf: Any = importlib.import_module("transformers")
VOCABULARY = 384
WINDOW = 4096
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
    for part in configs_in(config):
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
    shrink_config(config)
    _small_vocabulary(config)
    return config


def _small_vocabulary(config: Any) -> None:
    """Few words; special tokens get small ids, the same for the same."""
    given: dict[int, int] = {}

    def small(number: int) -> int:
        if number < 8 or number < 0:
            return number
        return given.setdefault(number, 8 + len(given))

    for part in configs_in(config):
        for name, value in list(vars(part).items()):
            if re.fullmatch(r"\w*vocab_size\w*", name) and isinstance(value, int) and value > VOCABULARY:
                setattr(part, name, VOCABULARY)
            elif _IDS.fullmatch(name) and type(value) is int:
                setattr(part, name, small(value))
            elif _IDS.fullmatch(name) and isinstance(value, list) and all(type(i) is int for i in value):
                setattr(part, name, [small(i) for i in value])


def missing_layers(config: Any) -> list[str]:
    """Kinds of attention that the source of a text's class names, and that no layer of its config has."""
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None)
    if not kinds:
        return []
    source = importlib.import_module(type(text).__module__.replace("configuration_", "modeling_"))
    words = re.findall(r"\"(\w+)\"", inspect.getsource(source))
    return sorted(set(words) & {*ALLOWED_ATTN_LAYER_TYPES} - {*kinds})


def with_layers(config: Any, kinds: list[str]) -> Any:
    """A config with a layer more of each of these kinds.

    Args:
        config: small, with a list of kinds; it stays as it is.
    """
    config = copy.deepcopy(config)
    text = config.get_text_config()
    have = text.layer_types
    for name, value in list(vars(text).items()):
        is_set = not isinstance(getattr(type(text), name, None), property)
        if is_set and isinstance(value, list) and len(value) == len(have):
            setattr(text, name, [*value, *value[-1:] * len(kinds)])
    text.num_hidden_layers, text.layer_types = len(have) + len(kinds), [*have, *kinds]
    if "sliding_attention" in kinds and not getattr(text, "sliding_window", None):
        text.sliding_window, text.use_sliding_window = WINDOW, True
    return config


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
