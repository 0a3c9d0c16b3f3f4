"""Ask the model classes of a processor for M-RoPE rows: which known rule makes the same, or their own."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from energon_pack.samples.input_rules import InputRules
from energon_pack.samples.media.kinds import IMAGE
from energon_pack.templates.full_processor import load_full_processor, model_classes_of
from energon_pack.training.model_wrappers import configs_in
from energon_pack.training.rope import ROPE_KINDS, OwnRope, RopeRule, rope_positions

_log = logging.getLogger(__name__)


def make_rope_of_model_class(rules: InputRules) -> OwnRope:
    folder = Path(rules.folder)
    make = find_class_with_rope_rows(folder)
    try:
        return OwnRope(make, make_small_config(make, rules))
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise ValueError(
            f"{make.__name__} of the processor in {folder} takes M-RoPE rows of its own, and can't be asked for them"
            f" ({' '.join(str(error).split())[:200]}): train with layout=thd in a framework that computes them, or on"
            " unpacked samples"
        ) from None


#: words in the names of a tokenizer's special tokens, and the words that configs use instead
_TOKEN_NAME_SYNONYMS = {"bos": "start", "eos": "end"}


def make_small_config(model_class: Any, rules: InputRules) -> Any:
    """Return a config with few and small layers: the model's own, or the class's default with the processor's sizes."""
    from energon_pack.training.shrunk_config import shrink_config

    folder = Path(rules.folder)
    if (folder / "config.json").is_file():
        from transformers import AutoConfig

        trusted = bool(rules.kwargs.get("trust_remote_code"))
        every = configs_in(AutoConfig.from_pretrained(folder, trust_remote_code=trusted))
        own_config = next((part for part in every if isinstance(part, model_class.config_class)), None)
        if own_config is None:
            raise ValueError(f"{folder / 'config.json'} has no {model_class.config_class.__name__}")
        return shrink_config(own_config)
    config = shrink_config(model_class.config_class())
    for part in configs_in(config):
        _copy_patch_sizes(part, rules.settings.get(IMAGE.kind, {}))
    _set_special_ids(config, rules)
    return config


def _copy_patch_sizes(part: Any, image: Mapping[str, Any]) -> None:
    for name, setting in (("merge_size", "spatial_merge_size"), ("temporal_patch_size", "temporal_patch_size")):
        if image.get(name) is not None and hasattr(part, setting):
            setattr(part, setting, image[name])


def _set_special_ids(config: Any, rules: InputRules) -> None:
    """Set the config's ids of special tokens: `vision_start_token_id` is the processor's `vision_bos_token`."""
    named = {**rules.tokens, **vars(load_full_processor(rules))}
    for name, token in named.items():
        token_id = rules.token_id(token) if name.endswith("_token") and isinstance(token, str) else None
        if token_id is None:
            continue
        *words, last, _ = name.split("_")
        for known in {last, _TOKEN_NAME_SYNONYMS.get(last, last)}:
            setattr(config, "_".join([*words, known, "token_id"]), token_id)


_MERGE_SIZE, _IMAGE_SIDE, _NUM_FRAMES = 2, 4, 3  # patches of a token's side, of a picture's; rows of a video's grid
_SECONDS_PER_GRID, _TOKENS_PER_SECOND = 1.5, 2


def find_rope_kind(processor_folder: Path) -> str | None:
    """Return the rule of a processor's models, of `ROPE_KINDS`, or `none`: plain positions; None: an unknown rule."""
    make = find_class_with_rope_rows(processor_folder)
    return "none" if make is None else _matching_kind(make)


def find_class_with_rope_rows(processor_folder: Path) -> Any:
    """Return the first of a processor's model classes that makes M-RoPE rows; None: none does."""
    for make in model_classes_of(processor_folder):
        if any(hasattr(value, "get_rope_index") for value in vars(sys.modules[make.__module__]).values()):
            return make
    return None


def _matching_kind(make: Any) -> str | None:
    """Return the rule of `ROPE_KINDS` that makes the same rows as a class; None: no rule does."""
    from energon_pack.training.shrunk_config import shrink_config

    try:
        config = shrink_config(make.config_class())
        for name, value in {"spatial_merge_size": _MERGE_SIZE, "tokens_per_second": _TOKENS_PER_SECOND}.items():
            if hasattr(config.vision_config, name):
                setattr(config.vision_config, name, value)
        ask = OwnRope(make, config).get_rope_index
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:  # its config lacks something
        _log.warning("%s can't be built to ask for its positions: %s", make.__name__, error)
        return None
    for kind in ROPE_KINDS:
        types, media = _probe_types_and_grids(kind)
        ids = torch.full_like(types, config.get_text_config().vocab_size - 1)
        try:
            rows = ask(ids[None], mm_token_type_ids=types[None], **media)[0][:, 0]
        except (RuntimeError, ValueError, TypeError, StopIteration, IndexError):
            continue  # the class expects other placeholders for the same media
        if torch.equal(rows, rope_positions(RopeRule(kind, _MERGE_SIZE, _TOKENS_PER_SECOND), types, **media)):
            return kind
    return None


def _probe_types_and_grids(kind: str) -> tuple[Tensor, dict[str, Tensor]]:
    """Return token types [L] of words, an image, words, a video, words; and the media's grids."""
    num_tokens = (_IMAGE_SIDE // _MERGE_SIZE) ** 2
    video = [2] * (num_tokens * _NUM_FRAMES)
    if kind == "qwen3_vl":  # words before each frame
        video = ([0, 0] + [2] * num_tokens) * _NUM_FRAMES
    types = torch.tensor([0] * 3 + [1] * num_tokens + [0] * 2 + video + [0] * 4)
    media = {
        "image_grid_thw": torch.tensor([[1, _IMAGE_SIDE, _IMAGE_SIDE]]),
        "video_grid_thw": torch.tensor([[_NUM_FRAMES, _IMAGE_SIDE, _IMAGE_SIDE]]),
        "second_per_grid_ts": torch.tensor([_SECONDS_PER_GRID]),
    }
    return types, media
