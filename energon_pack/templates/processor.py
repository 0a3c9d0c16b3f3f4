"""A processor folder or hub id, read once with transformers and kept in the cache in a form that needs none of it."""

import hashlib
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from energon_pack.errors import PackError
from energon_pack.templates.base import RULES_VERSION, MediaRules, Template, TemplateSpec
from energon_pack.templates.qwen_vl import QwenVL

#: `model.template` of the config: the family's media rules by name.
FAMILIES: dict[str, Callable[[dict[str, Any]], MediaRules]] = {"qwen_vl": QwenVL}

_SETTINGS_FILES = ("*.json", "*.txt", "*.jinja", "*.model", "*.tiktoken", "*.py")


@dataclass(frozen=True)
class ModelSettings:
    """Which processor, and how it is read (`model.*` of the config)."""

    template: str
    processor: str  # folder or hub id
    revision: str | None = None
    trust_remote_code: bool = False
    processor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    min_pixels: int | None = None
    max_pixels: int | None = None
    factor: int | None = None  # what the processor's patch_size × merge_size has to be
    chat_template: str | None = None  # Jinja text, in place of the processor's own
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def all_processor_kwargs(self) -> dict[str, Any]:
        pixels = {"min_pixels": self.min_pixels, "max_pixels": self.max_pixels}
        return {**self.processor_kwargs, **{key: value for key, value in pixels.items() if value is not None}}


def load_template(settings: ModelSettings) -> Template:
    """The template of a model, built with transformers from its processor.

    Raises:
        PackError: unknown family, no such folder or hub id, or a processor the family cannot use.
    """
    return _build(settings, _local_folder(settings))


def prepare_template(settings: ModelSettings, cache_dir: Path) -> str:
    """Build the template of a model once; the folder in the cache from which `load_saved` takes it.

    The folder is keyed by the content of the processor's files: the next run imports neither torch nor transformers,
    and no worker ever does.

    Raises:
        PackError: as `load_template`.
    """
    folder = _local_folder(settings)
    saved = cache_dir / "templates" / _key(settings, folder)
    if not saved.exists():
        saved.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=saved.parent) as temporary:
            built = Path(temporary) / "built"
            _build(settings, folder).save(built)
            try:
                os.rename(built, saved)
            except OSError:
                if not saved.exists():  # else another run was faster; its copy is the same
                    raise
    return os.fspath(saved)


@lru_cache(maxsize=2)
def load_saved(folder: str) -> Template:
    """The template that `Template.save` wrote; in workers, once a process."""
    spec = TemplateSpec(**json.loads(Path(folder, "spec.json").read_text()))
    return Template(
        spec, FAMILIES[spec.family](spec.image), Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    )


def _local_folder(settings: ModelSettings) -> Path:
    if settings.template not in FAMILIES:
        raise PackError(f"model.template={settings.template} is unknown; there are: {', '.join(FAMILIES)}")
    folder = Path(settings.processor).expanduser()
    if folder.is_dir():
        return folder
    if settings.processor.startswith(("/", ".", "~")) or settings.processor.count("/") > 1:
        raise PackError(f"model.processor={settings.processor}: no such folder")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(settings.processor, revision=settings.revision, allow_patterns=list(_SETTINGS_FILES))
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise PackError(
            f"model.processor={settings.processor}: no such folder, and the model hub did not give it"
            f" ({type(error).__name__}); model.processor=FOLDER names one on this machine"
        ) from None


def _key(settings: ModelSettings, folder: Path) -> str:
    """Hash of all that `_build` reads: the folder's small files, the settings, and the versions that read them."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _SETTINGS_FILES for path in folder.glob(pattern)}):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    how = {**asdict(settings), "processor": None}
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "tokenizers")}
    digest.update(json.dumps([how, versions, RULES_VERSION], sort_keys=True, default=str).encode())
    return digest.hexdigest()[:16]


def _build(settings: ModelSettings, folder: Path) -> Template:
    prepare_torchvision()
    from transformers import AutoImageProcessor, AutoTokenizer, ProcessorMixin
    from transformers.utils import logging

    logging.set_verbosity_error()
    common: dict[str, Any] = {
        "trust_remote_code": settings.trust_remote_code,
        **settings.all_processor_kwargs,
    }
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **common)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise PackError(f"model.processor={settings.processor}: no tokenizer: {_line(error)}") from None
    if not getattr(tokenizer, "is_fast", False):
        raise PackError(f"model.processor={settings.processor}: {type(tokenizer).__name__} has no fast form")
    image: dict[str, Any] = {}
    if (folder / "preprocessor_config.json").exists() or (folder / "processor_config.json").exists():
        try:
            image = AutoImageProcessor.from_pretrained(folder, backend="pil", **common).to_dict()
        except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
            raise PackError(f"model.processor={settings.processor}: no image processor: {_line(error)}") from None
    try:
        processor, _ = ProcessorMixin.get_processor_dict(folder)
    except OSError:  # a tokenizer alone
        processor = {}

    chat_template = settings.chat_template or processor.get("chat_template") or tokenizer.chat_template
    if isinstance(chat_template, dict):
        chat_template = chat_template.get("default")
    if not chat_template:
        raise PackError(f"model.processor={settings.processor} has no chat template: give model.chat_template=FILE")
    spec = TemplateSpec(
        family=settings.template,
        chat_template=chat_template,
        special_tokens={k: v for k, v in tokenizer.special_tokens_map.items() if isinstance(v, str)},
        chat_template_kwargs=dict(settings.chat_template_kwargs),
        image=json.loads(json.dumps(image, default=str)),
    )
    rules = FAMILIES[settings.template](spec.image)
    factor = rules.settings.get("factor")
    if settings.factor and factor and settings.factor != factor:
        raise PackError(
            f"model.processor={settings.processor} makes a token of {factor}×{factor} pixels, the model expects"
            f" {settings.factor}×{settings.factor}: another model's processor? model.factor={factor} accepts it"
        )
    return Template(spec, rules, tokenizer.backend_tokenizer)


@lru_cache(maxsize=1)
def prepare_torchvision() -> Any:
    """Let a CUDA build of torchvision import beside a CPU build of torch, before transformers tries to.

    Its C++ operators cannot load there, and the import stops at registering the fake kernel of one of them. With
    the two schemas declared it goes through; resizing and video processing use torch's own kernels.

    Returns:
        The declared schemas, alive as long as they are cached here, or None where nothing had to be done.
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


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
