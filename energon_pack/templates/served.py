"""Read the small files in a processor's folder: its class, its settings, and the model classes it serves."""

import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from energon_pack.errors import PackError
from energon_pack.run.heavy_imports import importing
from energon_pack.templates.torchvision_shim import prepare_torchvision

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")


def models_of(folder: Path) -> Iterator[Any]:
    """Yield the model classes for media and text that go with a processor.

    Args:
        folder: the processor's folder, perhaps with a model's config.json: one processor may serve several models.

    Raises:
        PackError: a file of the folder is no JSON.
    """
    models, processors = _auto("modeling"), _auto("processing")
    import transformers

    own = said(folder, ("config.json",), "model_type")
    processor = said(folder, PROCESSOR_FILES, "processor_class")
    served = [kind for kind, name in processors.PROCESSOR_MAPPING_NAMES.items() if name == processor]
    of_images = models.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    of_sounds = models.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    for kind in [own] if own else served:
        # In a model that also speaks, the thinker is the part that sees, hears and writes.
        if name := of_images.get(kind) or of_images.get(f"{kind}_thinker") or of_sounds.get(kind):
            yield getattr(transformers, name if isinstance(name, str) else name[0])


def known_classes() -> set[str]:
    """Return the names of transformers' own classes of processors."""
    return set(_auto("processing").PROCESSOR_MAPPING_NAMES.values())


def _auto(name: str) -> Any:
    with importing():
        prepare_torchvision()
        return import_module(f"transformers.models.auto.{name}_auto")


def class_of(folder: Path) -> str:
    """Return the class name of a processor from its folder."""
    return str(said(folder, PROCESSOR_FILES, "processor_class") or "processor")


def said(folder: Path, names: Sequence[str], key: str) -> Any:
    """Return the value of a key from the first of these files that has it.

    Raises:
        PackError: a file is no JSON.
    """
    for name in names:
        if value := settings_in(folder / name).get(key):
            return value
    return None


def settings_in(file: Path) -> dict[str, Any]:
    """Return the settings of a JSON file; empty if there is no such file.

    Raises:
        PackError: the file contains no JSON object.
    """
    if not file.is_file():
        return {}
    try:
        values = json.loads(file.read_bytes())
    except ValueError as error:
        raise PackError(f"{file} is no JSON ({error}): it is damaged, or was not downloaded whole") from None
    if not isinstance(values, dict):
        raise PackError(f"{file} holds a {type(values).__name__}, and no settings by name: is it another tool's?")
    return values
