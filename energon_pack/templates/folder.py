"""Find the folder with a processor's files, which may come from the model hub, and read the small ones."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from energon_pack.errors import PackError, one_line, similar_path_hint

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


def first_setting(folder: Path, names: Sequence[str], key: str) -> Any:
    """Return the value of a key in the first of these JSON files that has it; None: none has it."""
    for name in names:
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
