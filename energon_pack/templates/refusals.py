"""Refuse, before any sample is measured, damaged files, models that can't take packs, and templates without media."""

import inspect
from pathlib import Path
from typing import Any

from energon_pack.errors import PackError
from energon_pack.templates.models import model_of
from energon_pack.templates.served import PROCESSOR_FILES, class_of, known_classes, models_of, settings_in
from energon_pack.templates.template import Template

_FILES = (*PROCESSOR_FILES, "video_preprocessor_config.json", "config.json", "special_tokens_map.json")
#: inputs of a forward through which images reach the text other than as tokens, so that nothing keeps packs apart
_BESIDE = {
    "cross_attention_mask": "reads images by cross-attention",
    "image_attention_mask": "reads images by cross-attention",
    "encoder_outputs": "reads a sample whole with an encoder of its own",
    "qformer_input_ids": "reads an image anew for each question",
}


def refuse_damaged(folder: Path) -> None:
    """Read the settings in a processor's folder.

    Raises:
        PackError: a file contains no settings.
    """
    for name in _FILES:
        settings_in(folder / name)


def refuse_other_class(expected: str | None, folder: Path, where: str) -> None:
    """Check that a processor is of the class that a model has, where its rules are found by asking whichever is there.

    Args:
        expected: `model.processor_class`.
        where: the setting that names the folder.

    Raises:
        PackError: it is of another class of transformers; a class of its own code may have any name.
    """
    name = class_of(folder)
    if expected and name != expected and name in known_classes():
        raise PackError(
            f"{where} is a {name}, and this model has a {expected}: +model={model_of(name)} packs with it, and"
            " model.processor_class=null takes it all the same"
        )


def refuse_unpackable(folder: Path, where: str) -> None:
    """Check the inputs of the model classes that go with a processor.

    Args:
        where: the setting that names the folder.

    Raises:
        PackError: every class has inputs with which members of a pack can't be kept apart.
    """
    reasons = {make.__name__: _why_not(make) for make in models_of(folder)}
    if reasons and all(reasons.values()):
        name, why = next(iter(reasons.items()))
        raise PackError(
            f"{where}: {name} {why}, which no layout of packs keeps apart: samples with media can't be packed for it;"
            " +model=text packs texts"
        )


def _why_not(make: Any) -> str:
    takes = inspect.signature(make.forward).parameters
    return next((why for name, why in _BESIDE.items() if name in takes), "")


def refuse_silent(template: Template, folder: Path, where: str) -> None:
    """Render a question with each kind of media.

    Args:
        folder: the processor's folder.
        where: the setting that names it.

    Raises:
        PackError: the chat template writes no token for any of them.
    """
    tokens = template.rules.media_tokens
    if tokens and not any(map(template.shows, tokens)):
        kinds, written = " or ".join(tokens), ", ".join(dict.fromkeys(tokens.values()))
        raise PackError(
            f"{where}: its chat template writes no {written} for an {kinds}, where {class_of(folder)} puts media:"
            " model.chat_template=FILE gives another, +model=text packs texts"
        )
