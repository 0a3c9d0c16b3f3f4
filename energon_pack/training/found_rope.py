"""Find which M-RoPE rule a processor's models follow, by their rows for a text with an image and a video."""

import logging
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from energon_pack.samples.input_rules import InputRules
from energon_pack.templates.full import models_of
from energon_pack.training.model_classes import small_config
from energon_pack.training.own_rope import OwnRope
from energon_pack.training.rope import ROPE_KINDS, Rope, rope_positions
from energon_pack.training.shrink import shrink

_log = logging.getLogger(__name__)

_MERGE, _SIDE, _FRAMES = 2, 4, 3  # patches of a token's side, of a picture's; rows of a video's grid
_SECONDS, _TOKENS_PER_SECOND = 1.5, 2


def found_rope(folder: Path) -> str | None:
    """Return one of `ROPE_KINDS`, or `none` for plain positions; None: the models' rows follow none of these rules.

    Args:
        folder: a processor's folder, with or without a model's config.json: one processor may serve several models.
    """
    make = _with_rows(folder)
    return "none" if make is None else _kind(make)


def _with_rows(folder: Path) -> Any:
    """Return the first class among a processor's models that has M-RoPE rows; None: none has."""
    for make in models_of(folder):
        if any(hasattr(value, "get_rope_index") for value in vars(sys.modules[make.__module__]).values()):
            return make
    return None


def own_rope_of(rules: InputRules) -> OwnRope:
    """Return the rule that calls the model class itself.

    Raises:
        ValueError: the class can't be built here.
    """
    folder = Path(rules.folder)
    make = _with_rows(folder)
    try:
        return OwnRope(make, small_config(make, rules))
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise ValueError(
            f"{make.__name__} of the processor in {folder} takes M-RoPE rows of its own, and can't be asked for them"
            f" ({' '.join(str(error).split())[:200]}): train with layout=thd in a framework that computes them, or on"
            " unpacked samples"
        ) from None


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
        if torch.equal(rows, rope_positions(Rope(kind, _MERGE, _TOKENS_PER_SECOND), types, **media)):
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
