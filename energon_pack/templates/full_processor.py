"""Find a processor's folder, and load transformers' full processor (tokenizer and media), once in each process."""

import importlib.metadata
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from energon_pack.errors import PackError, one_line, similar_path_hint
from energon_pack.run.packages import faster_imports, version_of

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
_FILE_PATTERNS = ("*.json", "*.txt", "*.jinja", "additional_chat_templates/*.jinja", "*.model", "*.tiktoken", "*.py")
#: a folder of a processor has at least one of them
_PROCESSOR_FILE_PATTERNS = ("*processor_config.json", "tokenizer*", "vocab*", "*.model", "*.tiktoken")


def find_or_download_folder(processor: str, revision: str | None = None) -> Path:
    """Return a processor's folder, from a path, or downloaded by a hub id; raises PackError if it is neither."""
    refuse_missing_folder(processor)
    folder = Path(processor).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(processor, revision=revision, allow_patterns=list(_FILE_PATTERNS)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise PackError(
            f"model.processor={processor}: no such folder, and the model hub did not give it ({one_line(error)}): are"
            " its name and model.revision right? A gated or private one needs HF_TOKEN; with HF_HUB_OFFLINE the hub is"
            " not asked. model.processor=FOLDER names one on this machine"
        ) from None


def refuse_missing_folder(processor: str) -> None:
    """Raise PackError if `processor` is a path to no folder, or a folder without files of a processor; hub ids pass."""
    is_path = processor.startswith(("/", ".", "~")) or processor.count("/") > 1
    if is_path and not Path(processor).expanduser().is_dir():
        raise PackError(f"model.processor={processor}: no such folder{similar_path_hint(processor)}")
    folder = Path(processor).expanduser()
    if folder.is_dir() and not any(next(folder.glob(pattern), None) for pattern in _PROCESSOR_FILE_PATTERNS):
        names = "preprocessor_config.json, tokenizer.json or the like"
        raise PackError(f"model.processor={processor}: no folder of a processor: {names} is not there")


def small_files(folder: Path) -> list[Path]:
    """Return the processor's small files (settings, templates, vocabularies, code), sorted by path."""
    return sorted({path for pattern in _FILE_PATTERNS for path in folder.glob(pattern)})


def files_state(folder: Path) -> str:
    """Return paths, sizes and times of a processor's files as a text, which differs if a file was changed."""
    return str([(os.fspath(path), path.stat().st_size, path.stat().st_mtime_ns) for path in small_files(folder)])


def has_media_processor(folder: Path) -> bool:
    """Say whether a processor's folder has settings for media, and not only a tokenizer."""
    return any((folder / name).exists() for name in ("preprocessor_config.json", "processor_config.json"))


def processor_class(folder: Path) -> str:
    """Return the class name of a processor from its files; `processor` if they name none."""
    return str(first_setting(folder, PROCESSOR_FILES, "processor_class") or "processor")


def first_setting(folder: Path, file_names: Sequence[str], key: str) -> Any:
    """Return the value of a key in the first of these JSON files that has it; None: none has it."""
    for name in file_names:
        if value := settings_in(folder / name).get(key):
            return value
    return None


def settings_in(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is no such file; raises PackError if it holds no object."""
    if not file.is_file():
        return {}
    try:
        values = json.loads(file.read_bytes())
    except ValueError as error:
        raise PackError(f"{file} is no JSON ({error}): it is damaged, or was not downloaded whole") from None
    if not isinstance(values, dict):
        raise PackError(f"{file} holds a {type(values).__name__}, and no settings by name: is it another tool's?")
    return values


@lru_cache(maxsize=1)
def prepare_torchvision() -> Any:
    """Let a CUDA build of torchvision be imported with a CPU build of torch, before transformers tries to.

    Its C++ operators cannot load there, and the import stops at registering the fake kernel of one of them. With
    the two schemas declared it goes through; resizing and video processing use torch's own kernels.

    Returns:
        The declared schemas, alive as long as they are cached here; None: nothing had to be done.
    """
    try:
        version = importlib.metadata.distribution("torchvision").locate_file("torchvision/version.py").read_text()
    except (importlib.metadata.PackageNotFoundError, OSError):
        return None
    import torch

    if "+cu" not in version or torch.version.cuda is not None:
        return None
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """In this context transformers logs only errors and gives no warnings; the warnings of other code are not lost.

    Processors warn about their own settings. If Python turns warnings into errors, they would refuse all media.
    """
    with faster_imports():
        prepare_torchvision()
        from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)


class ProcessorSource(Protocol):
    """A processor's folder, and the arguments of `from_pretrained`."""

    @property
    def folder(self) -> str: ...

    @property
    def kwargs(self) -> Mapping[str, Any]: ...


def load_full_processor(processor: ProcessorSource) -> Any:
    """Load transformers' processor, or the tokenizer if the folder has nothing else; cached for each process.

    All callers share it, so none may change it.

    Raises:
        ImportError: it needs a package that is not installed; most need torchvision.
        Exception: any error of its class on its files.
    """
    folder = processor.folder
    return _load_processor(folder, json.dumps(dict(processor.kwargs), sort_keys=True), files_state(Path(folder)))


def refuse_old_transformers() -> None:
    """Raise PackError if transformers is older than 5.0, whose processors make other inputs of media."""
    version = version_of("transformers") or ""
    if version.partition(".")[0] in ("2", "3", "4"):
        raise PackError(
            f"transformers {version} is installed, and media need 5.0 or newer: pip install -U transformers"
        )


@lru_cache(maxsize=2)
@quiet_transformers()
def _load_processor(folder: str, kwargs: str, state: str) -> Any:
    refuse_old_transformers()
    from transformers import AutoProcessor, AutoTokenizer

    loads = AutoProcessor if has_media_processor(Path(folder)) else AutoTokenizer
    return loads.from_pretrained(folder, **json.loads(kwargs))


def load_image_processor_alone(processor: ProcessorSource) -> Any:
    """Load only a processor's image processor, which needs no torchvision."""
    from transformers import AutoImageProcessor

    with quiet_transformers():
        return AutoImageProcessor.from_pretrained(processor.folder, backend="pil", **processor.kwargs)


def model_classes_of(folder: Path) -> Iterator[Any]:
    """Yield transformers' classes of the models for media and text that a processor serves.

    Args:
        folder: the processor's; a config.json in it says which one of these models it is.
    """
    models, processors = _auto_module("modeling"), _auto_module("processing")
    import transformers

    model_type = first_setting(folder, ("config.json",), "model_type")
    processor = first_setting(folder, PROCESSOR_FILES, "processor_class")
    served = [kind for kind, name in processors.PROCESSOR_MAPPING_NAMES.items() if name == processor]
    of_images = models.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    of_sounds = models.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    for kind in [model_type] if model_type else served:
        # In a model that also speaks, the thinker is the part that sees, hears and writes.
        if name := of_images.get(kind) or of_images.get(f"{kind}_thinker") or of_sounds.get(kind):
            yield getattr(transformers, name if isinstance(name, str) else name[0])


def known_processor_classes() -> set[str]:
    """Return the names of all processor classes in transformers."""
    return set(_auto_module("processing").PROCESSOR_MAPPING_NAMES.values())


def _auto_module(name: str) -> Any:
    with faster_imports():
        prepare_torchvision()
        return import_module(f"transformers.models.auto.{name}_auto")
