"""Whose M-RoPE rows a processor's models take, asked of the models: their rows for a text with an image and a video."""

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from energon_pack.templates.template import Template
from energon_pack.training.rope import ROPE_KINDS, Rope, rope_positions
from energon_pack.training.shrink import shrink

_log = logging.getLogger(__name__)

_MERGE, _SIDE, _FRAMES = 2, 4, 3  # patches of a token's side, of a picture's; rows of a video's grid
_SECONDS, _TOKENS_PER_SECOND = 1.5, 2
_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")


def rope_of(
    stated: str | None, template: Template, tokens_per_second: float | None = None, is_needed: bool = True
) -> Rope | None:
    """Whose M-RoPE the batches of a dataset have; None: plain positions.

    A dataset that states none, or `auto`, is not taken at its word: the models that go with its processor are asked.

    Args:
        stated: `model.rope` of the dataset.
        template: of the dataset.
        tokens_per_second: of Qwen2.5-VL's vision config; None: as the processor's folder says.
        is_needed: whether batches hold the rows.

    Raises:
        ValueError: the dataset does not say; or its models take rows that are needed, and none of the rules makes.
    """
    if stated is None:
        raise ValueError("this dataset does not say what positions its model takes (model.rope): pack it again")
    folder = Path(template.spec.processor.folder)
    kind: str | None = stated
    if stated not in ROPE_KINDS:
        kind = found_rope(folder) if template.rules.media_tokens else "none"
    if kind is None and is_needed:
        raise ValueError(
            f"models of the processor in {folder} take M-RoPE rows of their own, for which there is no rule here: train"
            " with layout=thd in a framework that computes them, or on unpacked samples"
        )
    if kind not in ROPE_KINDS:
        return None
    vision = _said(folder, ("config.json",), "vision_config") or {}
    seconds = vision.get("tokens_per_second") if tokens_per_second is None else tokens_per_second
    return Rope(kind, int(template.spec.processor.image["merge_size"]), seconds)


def found_rope(folder: Path) -> str | None:
    """Of `ROPE_KINDS`, or `none`: plain positions; None: rows of M-RoPE that none of these rules makes.

    Args:
        folder: of a processor, with the model's config.json, maybe: one processor may serve several models.
    """
    for make in _models(folder):
        if any(hasattr(value, "get_rope_index") for value in vars(sys.modules[make.__module__]).values()):
            return _kind(make)
    return "none"


def _models(folder: Path) -> Iterator[Any]:
    """Classes of models of images and text that go with a processor."""
    import transformers

    models, processors = (import_module(f"transformers.models.auto.{name}_auto") for name in ("modeling", "processing"))
    own = _said(folder, ("config.json",), "model_type")
    processor = _said(folder, _PROCESSOR_FILES, "processor_class")
    served = [kind for kind, name in processors.PROCESSOR_MAPPING_NAMES.items() if name == processor]
    for kind in [own] if own else served:
        if name := models.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(kind):
            yield getattr(transformers, name if isinstance(name, str) else name[0])


def _said(folder: Path, names: Sequence[str], key: str) -> Any:
    """What the first of these files says that says it."""
    for name in names:
        path = folder / name
        if path.is_file() and (value := json.loads(path.read_bytes()).get(key)):
            return value
    return None


def _kind(make: Any) -> str | None:
    """The rule that makes the rows a class makes."""
    try:
        config = shrink(make.config_class())
        for name, value in {"spatial_merge_size": _MERGE, "tokens_per_second": _TOKENS_PER_SECOND}.items():
            if hasattr(config.vision_config, name):
                setattr(config.vision_config, name, value)
        with torch.device("meta"):
            model = make._from_config(config)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:  # its config says too little
        _log.warning("%s can't be built to ask for its positions: %s", make.__name__, error)
        return None
    ask = next(module for module in model.modules() if hasattr(module, "get_rope_index")).get_rope_index
    for kind in ROPE_KINDS:
        types, media = _text(kind)
        ids = torch.full_like(types, config.get_text_config().vocab_size - 1)
        try:
            rows = ask(ids[None], mm_token_type_ids=types[None], **media)[0][:, 0]
        except (RuntimeError, ValueError, TypeError, StopIteration, IndexError):
            continue  # its text has other places for the same media
        if torch.equal(rows, rope_positions(Rope(kind, _MERGE, _TOKENS_PER_SECOND), types, **media)):
            return kind
    return None


def _text(kind: str) -> tuple[Tensor, dict[str, Tensor]]:
    """Types [L] of words, an image, words, a video, words; and the grids."""
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
