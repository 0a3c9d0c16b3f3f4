"""Find the folder with a processor's files, which may come from the model hub."""

import os
from pathlib import Path

from energon_pack.errors import PackError, one_line

_SETTINGS_FILES = ("*.json", "*.txt", "*.jinja", "additional_chat_templates/*.jinja", "*.model", "*.tiktoken", "*.py")


def local_folder(processor: str, revision: str | None = None) -> Path:
    """Return the folder of a processor; a hub id is downloaded.

    Raises:
        PackError: there is no such folder or hub id.
    """
    folder = Path(processor).expanduser()
    if folder.is_dir():
        return folder
    refuse_missing_folder(processor)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(processor, revision=revision, allow_patterns=list(_SETTINGS_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise PackError(
            f"model.processor={processor}: no such folder, and the model hub did not give it: {_why_not(error)};"
            " model.processor=FOLDER names one on this machine"
        ) from None


def refuse_missing_folder(processor: str) -> None:
    """Raise PackError if a processor can only be a folder, and the folder is missing."""
    is_path = processor.startswith(("/", ".", "~")) or processor.count("/") > 1
    if is_path and not Path(processor).expanduser().is_dir():
        raise PackError(f"model.processor={processor}: no such folder")


def _why_not(error: Exception) -> str:
    """Return the part of an error that a user can act on."""
    from huggingface_hub import constants, errors

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and the cache of the hub on this machine does not have it"
    if isinstance(error, errors.GatedRepoError):
        return "it is gated: accept its terms on its page, then log in (hf auth login, or HF_TOKEN)"
    if isinstance(error, errors.RevisionNotFoundError):
        return "it has no such model.revision"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "there is none of that name (404), or it is private and HF_TOKEN is not set"
    if isinstance(error, errors.HFValidationError):
        return "this is no name of a repository"
    if isinstance(error, errors.LocalEntryNotFoundError):
        return "the hub can't be reached, and the cache of the hub on this machine does not have it"
    return one_line(error)


def settings_files(folder: Path) -> list[Path]:
    """Return the small files of a processor, sorted by name."""
    return sorted({path for pattern in _SETTINGS_FILES for path in folder.glob(pattern)})


def state_of(folder: Path) -> str:
    """Return a text that changes whenever the files of a processor change."""
    return str([(os.fspath(path), path.stat().st_size, path.stat().st_mtime_ns) for path in settings_files(folder)])


def has_media(folder: Path) -> bool:
    """Say whether a folder contains more than a tokenizer."""
    return any((folder / name).exists() for name in ("preprocessor_config.json", "processor_config.json"))
