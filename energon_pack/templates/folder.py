"""Where a processor's files are: a folder, or one that the model hub gives."""

from pathlib import Path

from energon_pack.errors import PackError
from energon_pack.templates.settings import ModelConfig

_SETTINGS_FILES = ("*.json", "*.txt", "*.jinja", "*.model", "*.tiktoken", "*.py")


def local_folder(model: ModelConfig) -> Path:
    """The folder of a processor, downloaded where it is a hub id.

    Raises:
        PackError: no such folder or hub id.
    """
    processor = named_processor(model)
    folder = Path(processor).expanduser()
    if folder.is_dir():
        return folder
    if processor.startswith(("/", ".", "~")) or processor.count("/") > 1:
        raise PackError(f"model.processor={processor}: no such folder")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(processor, revision=model.revision, allow_patterns=list(_SETTINGS_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise PackError(
            f"model.processor={processor}: no such folder, and the model hub did not give it"
            f" ({type(error).__name__}); model.processor=FOLDER names one on this machine"
        ) from None


def named_processor(model: ModelConfig) -> str:
    """The folder or hub id of a model's processor.

    Raises:
        PackError: the model has none.
    """
    processor = model.processor or model.hub_id
    if processor is None:
        raise PackError(f"+model={model.name} needs model.processor, a folder or a hub id")
    return processor


def settings_files(folder: Path) -> list[Path]:
    """The small files of a processor, by name."""
    return sorted({path for pattern in _SETTINGS_FILES for path in folder.glob(pattern)})


def state_of(folder: Path) -> str:
    """Another text whenever the files of a processor are others."""
    return str([(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in settings_files(folder)])
