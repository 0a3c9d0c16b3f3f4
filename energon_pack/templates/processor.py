"""A processor folder or hub id, read once with transformers and kept in the cache in a form that needs none of it."""

import copy
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from energon_pack.errors import PackError
from energon_pack.run.files import is_as_made, make_once
from energon_pack.run.heavy_imports import importing
from energon_pack.run.json_nodes import node_of
from energon_pack.templates.families import FAMILIES
from energon_pack.templates.families.rules import MediaRules, ProcessorSettings
from energon_pack.templates.identity import RULES_VERSION, Identity, TemplateSpec
from energon_pack.templates.preprocess import image_settings, video_settings
from energon_pack.templates.quiet import errors_only
from energon_pack.templates.settings import MediaConfig, ModelConfig, TemplateSettings
from energon_pack.templates.template import Template
from energon_pack.templates.torchvision_shim import prepare_torchvision

#: The tokenizer of the template that this process built last, by its folder: reading it takes a while.
_built: dict[str, Tokenizer] = {}

_SAVED_VERSION = 2  # raised when `Template.save` writes other files
#: of `model`: what the same template may have another of
_NOT_IN_TEMPLATE = ("name", "hub_id", "mask", "rope")
_SETTINGS_FILES = ("*.json", "*.txt", "*.jinja", "*.model", "*.tiktoken", "*.py")


def load_template(settings: TemplateSettings) -> Template:
    """The template of a model, built with transformers from its processor.

    Raises:
        PackError: unknown family, no such folder or hub id, or a processor the family cannot use.
    """
    return _build(settings, local_folder(settings.model))


def saved_template(settings: TemplateSettings, cache_dir: Path) -> str | None:
    """The folder that `prepare_template` would give, where it is there already.

    Raises:
        PackError: no such folder or hub id.
    """
    saved = _saved(settings, cache_dir, local_folder(settings.model))
    return os.fspath(saved) if is_as_made(saved) else None


def prepare_template(settings: TemplateSettings, cache_dir: Path) -> str:
    """Build the template of a model once; the folder in the cache from which `load_saved` takes it.

    The folder is keyed by the content of the processor's files: the next run imports neither torch nor transformers,
    and no worker ever does.

    Raises:
        PackError: as `load_template`.
    """
    folder = local_folder(settings.model)
    saved = _saved(settings, cache_dir, folder)

    def make(built: Path) -> None:
        template = _build(settings, folder)
        template.save(built)
        _built.clear()
        _built[os.fspath(saved)] = template.tokenizer

    make_once(saved, make)
    return os.fspath(saved)


def identity_of(folder: str) -> Identity:
    """Of the template that `Template.save` wrote."""
    return node_of(Identity, json.loads(Path(folder, "identity.json").read_bytes()))


@lru_cache(maxsize=2)
def load_saved(folder: str) -> Template:
    """The template that `Template.save` wrote; in workers, once a process."""
    values = json.loads(Path(folder, "spec.json").read_bytes())
    processor, media = ProcessorSettings(**values["processor"]), node_of(MediaConfig, values["media"])
    spec = node_of(TemplateSpec, {**values, "processor": processor, "media": media})
    tokenizer = _built.pop(folder, None) or Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    return Template(spec, FAMILIES[spec.family](spec.processor), tokenizer)


def local_folder(model: ModelConfig) -> Path:
    """The folder of a processor, downloaded where it is a hub id.

    Raises:
        PackError: an unknown family, or no such folder or hub id.
    """
    if model.template not in FAMILIES:
        raise PackError(f"model.template={model.template} is unknown; there are: {', '.join(FAMILIES)}")
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


def _saved(settings: TemplateSettings, cache_dir: Path, folder: Path) -> Path:
    return cache_dir / "templates" / _key(settings, folder)


def _key(settings: TemplateSettings, folder: Path) -> str:
    """Hash of all that `_build` reads: the folder's small files, the settings, and the versions that read them."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _SETTINGS_FILES for path in folder.glob(pattern)}):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    how = {name: value for name, value in asdict(settings.model).items() if name not in _NOT_IN_TEMPLATE}
    # `hf` reads the folder again whenever it is used: a copy elsewhere is another one.
    how["processor"] = os.path.abspath(folder) if settings.model.template == "hf" else None
    how |= {"media": asdict(settings.media), "train_on": settings.labels.train_on}
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "tokenizers")}
    digest.update(json.dumps([how, versions, RULES_VERSION, _SAVED_VERSION], sort_keys=True, default=str).encode())
    return digest.hexdigest()[:16]


@errors_only()
def _build(settings: TemplateSettings, folder: Path) -> Template:
    with importing():
        prepare_torchvision()
        from transformers import AutoImageProcessor, AutoTokenizer, ProcessorMixin

    model, media = settings.model, settings.media
    family = FAMILIES[model.template]
    where = f"model.processor={named_processor(model)}"
    # A copy: transformers writes into the settings it is given.
    common: dict[str, Any] = copy.deepcopy({"trust_remote_code": model.trust_remote_code, **model.all_processor_kwargs})
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **common)
    except Exception as error:  # the Rust tokenizers raise bare Exception on a damaged file
        raise PackError(f"{where}: no tokenizer: {_line(error)}") from None
    if not getattr(tokenizer, "is_fast", False):
        raise PackError(f"{where}: {type(tokenizer).__name__} has no fast form")
    image: dict[str, Any] = {}
    if (folder / "preprocessor_config.json").exists() or (folder / "processor_config.json").exists():
        try:
            image = AutoImageProcessor.from_pretrained(folder, backend="pil", **common).to_dict()
        except Exception as error:  # any class of any processor may be behind it
            raise PackError(f"{where}: no image processor: {_line(error)}") from None
    try:
        own, _ = ProcessorMixin.get_processor_dict(folder)
    except OSError:  # a tokenizer alone
        own = {}
    own = {**own, **model.processor_kwargs}  # as from_pretrained does

    chat_template = model.chat_template or own.get("chat_template") or tokenizer.chat_template
    if isinstance(chat_template, dict):
        chat_template = chat_template.get("default")
    if not chat_template:
        raise PackError(f"{where} has no chat template: give model.chat_template=FILE")
    processor = ProcessorSettings(
        image=_plain({**image, **image_settings(media)}),
        video=_merged(_video_settings(folder, own), common, video_settings(media), has_old_names=family.has_old_names),
        processor=_plain({key: value for key, value in own.items() if key != "chat_template"}),
        tokens={k: v for k, v in tokenizer.special_tokens_map.items() if isinstance(v, str)},
        folder=os.path.abspath(folder),
        kwargs=common,
    )
    spec = TemplateSpec(
        family=model.template,
        chat_template=chat_template,
        chat_template_kwargs=dict(model.chat_template_kwargs),
        processor=processor,
        media=media,
        train_on=settings.labels.train_on,
        add_special_tokens=model.add_special_tokens,
    )
    rules = _rules(family, processor, model)
    factor = rules.settings.get("factor")
    if model.factor and factor and model.factor != factor:
        raise PackError(
            f"{where} makes a token of {factor}×{factor} pixels, the model expects"
            f" {model.factor}×{model.factor}: another model's processor? model.factor={factor} accepts it"
        )
    template = Template(spec, rules, tokenizer.backend_tokenizer)
    for token in (*rules.media_tokens.values(), *rules.feature_tokens.values(), *rules.marks):
        if template.token_id(token) is None:
            raise PackError(
                f"{where} has no token {token}, which model.template={model.template}"
                " writes for media: another family's processor?"
            )
    return template


def _rules(family: type[MediaRules], processor: ProcessorSettings, model: ModelConfig) -> MediaRules:
    """The family's rules, tried out before any sample is measured."""
    try:
        rules = family(processor)
        rules.try_out()
    except PackError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise PackError(
            f"model.processor={named_processor(model)}: its settings make no sense to model.template={model.template}:"
            f" {_line(error)}"
        ) from None
    return rules


def _video_settings(folder: Path, own: Mapping[str, Any]) -> dict[str, Any]:
    """Where transformers looks for them; the image settings stand in where there are none for videos."""
    if isinstance(own.get("video_processor"), dict):
        return dict(own["video_processor"])
    for name in ("video_preprocessor_config.json", "preprocessor_config.json"):
        if (folder / name).exists():
            try:
                values = json.loads((folder / name).read_bytes())
            except ValueError as error:
                raise PackError(f"{folder / name}: {error}") from None
            return values if isinstance(values, dict) else {}
    return {}


def _merged(*layers: Mapping[str, Any], has_old_names: bool) -> dict[str, Any]:
    """Later settings over earlier ones, those of `size` one by one."""
    merged: dict[str, Any] = {}
    for layer in layers:
        size = {**(merged.get("size") or {}), **(layer.get("size") or {})}
        for edge, old in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
            if has_old_names and layer.get(old) is not None:
                size[edge] = layer[old]
        merged |= {**layer, "size": size}
    return merged


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    return values


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
