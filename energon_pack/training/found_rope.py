"""Find which M-RoPE rule a processor's models follow, by their rows for a text with an image and a video."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from energon_pack.samples.input_rules import InputRules
from energon_pack.samples.media.kinds import IMAGE
from energon_pack.templates.full import full_processor, models_of
from energon_pack.training.rope import ROPE_KINDS, RopeRule, rope_positions
from energon_pack.training.shrink import shrink
from energon_pack.training.wrapped import parts

#: words in the names of a tokenizer's special tokens, and the words that configs use instead
_SAME = {"bos": "start", "eos": "end"}


def small_config(make: Any, rules: InputRules) -> Any:
    """Return a config with few and small layers: the model's own, or the class's default with the processor's sizes."""
    folder = Path(rules.folder)
    if (folder / "config.json").is_file():
        from transformers import AutoConfig

        trusted = bool(rules.kwargs.get("trust_remote_code"))
        every = parts(AutoConfig.from_pretrained(folder, trust_remote_code=trusted))
        own_config = next((part for part in every if isinstance(part, make.config_class)), None)
        if own_config is None:
            raise ValueError(f"{folder / 'config.json'} has no {make.config_class.__name__}")
        return shrink(own_config)
    config = shrink(make.config_class())
    for part in parts(config):
        _take_sizes(part, rules.settings.get(IMAGE.kind, {}))
    _take_ids(config, rules)
    return config


def _take_sizes(part: Any, image: Mapping[str, Any]) -> None:
    for name, setting in (("merge_size", "spatial_merge_size"), ("temporal_patch_size", "temporal_patch_size")):
        if image.get(name) is not None and hasattr(part, setting):
            setattr(part, setting, image[name])


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


_log = logging.getLogger(__name__)

_MERGE, _SIDE, _FRAMES = 2, 4, 3  # patches of a token's side, of a picture's; rows of a video's grid
_SECONDS, _TOKENS_PER_SECOND = 1.5, 2


def found_rope(folder: Path) -> str | None:
    """Return one of `ROPE_KINDS`, or `none` for plain positions; None: the models' rows follow none of these rules."""
    make = with_rows(folder)
    return "none" if make is None else _kind(make)


def with_rows(folder: Path) -> Any:
    """Return the first class among a processor's models that has M-RoPE rows; None: none has."""
    for make in models_of(folder):
        if any(hasattr(value, "get_rope_index") for value in vars(sys.modules[make.__module__]).values()):
            return make
    return None


def _kind(make: Any) -> str | None:
    """Return the rule of `ROPE_KINDS` that makes the same rows as a class; None: no rule does."""
    try:
        config = shrink(make.config_class())
        for name, value in {"spatial_merge_size": _MERGE, "tokens_per_second": _TOKENS_PER_SECOND}.items():
            if hasattr(config.vision_config, name):
                setattr(config.vision_config, name, value)
        with torch.device("meta"):
            model = make._from_config(config)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:  # its config lacks something
        _log.warning("%s can't be built to ask for its positions: %s", make.__name__, error)
        return None
    ask = next(module for module in model.modules() if hasattr(module, "get_rope_index")).get_rope_index
    for kind in ROPE_KINDS:
        types, media = _text(kind)
        ids = torch.full_like(types, config.get_text_config().vocab_size - 1)
        try:
            rows = ask(ids[None], mm_token_type_ids=types[None], **media)[0][:, 0]
        except (RuntimeError, ValueError, TypeError, StopIteration, IndexError):
            continue  # the class expects other placeholders for the same media
        if torch.equal(rows, rope_positions(RopeRule(kind, _MERGE, _TOKENS_PER_SECOND), types, **media)):
            return kind
    return None


def _text(kind: str) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the token types [L] of words, an image, words, a video, words; and the media's grids."""
    num_tokens = (_SIDE // _MERGE) ** 2
    video = [2] * (num_tokens * _FRAMES)
    if kind == "qwen3_vl":  # words before each frame
        video = ([0, 0] + [2] * num_tokens) * _FRAMES
    types = torch.tensor([0] * 3 + [1] * num_tokens + [0] * 2 + video + [0] * 4)
    media = {
        "image_grid_thw": torch.tensor([[1, _SIDE, _SIDE]]),
        "video_grid_thw": torch.tensor([[_FRAMES, _SIDE, _SIDE]]),
        "second_per_grid_ts": torch.tensor([_SECONDS]),
    }
    return types, media
