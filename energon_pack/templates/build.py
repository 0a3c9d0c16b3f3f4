"""Build a template from a processor's files and the settings of a model, with transformers."""

import copy
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from energon_pack.errors import PackError, one_line
from energon_pack.run.packages import faster_imports
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.samples.skip import Skip
from energon_pack.templates.chat.renderer import Renderer
from energon_pack.templates.families import ASKING_FAMILIES, FAMILIES, family_of
from energon_pack.templates.families.rules import MediaRules, ProcessorSettings
from energon_pack.templates.full_processor import (
    files_state,
    has_media_processor,
    load_full_processor,
    prepare_torchvision,
    processor_class,
    quiet_transformers,
    settings_in,
)
from energon_pack.templates.identity import TemplateSpec
from energon_pack.templates.media_texts import medium_text_in_user_turn
from energon_pack.templates.models import model_name_of
from energon_pack.templates.pixels import parts_by_kind
from energon_pack.templates.preprocess import image_settings, refuse_ignored_frame_limits, video_settings
from energon_pack.templates.sample import Sample
from energon_pack.templates.settings import ModelConfig, TemplateSettings
from energon_pack.templates.template import Template

#: settings of processors that interleave the sound of a video with its frames
_VIDEO_SOUND_SETTINGS = ("load_audio_from_video", "use_audio_in_video")
_PROBE_MESSAGES = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A cat."}]


@quiet_transformers()
def build(settings: TemplateSettings, folder: Path) -> Template:
    """Build the template for the processor in a folder, with the media rules of the family `model.template`."""
    with faster_imports():
        prepare_torchvision()
    model = settings.model
    model.check()
    where = f"model.processor={model.path_or_hub_id()}"
    # A copy: transformers writes into the settings it is given.
    # Only one setting allows the processor's code to run: these kwargs may come from a dataset that is loaded.
    kwargs: dict[str, Any] = copy.deepcopy(
        model.processor_kwargs_with_pixels | {"trust_remote_code": model.trust_remote_code}
    )
    if setting := next((name for name in _VIDEO_SOUND_SETTINGS if kwargs.get(name)), None):
        raise PackError(
            f"model.processor_kwargs.{setting}: source.use_audio_in_video=true has the sound of videos heard"
        )
    empty = ProcessorSettings(folder=os.path.abspath(folder), kwargs=kwargs)
    files = (
        _files_from_full_processor(empty, where)
        if model.template in ASKING_FAMILIES
        else _files_from_folder(folder, kwargs, where)
    )
    chat_template, tool_template = _choose_chat_templates(model.chat_template, files, where)
    processor = _processor_settings(settings, files, empty, chat_template)
    spec = TemplateSpec(
        family=model.template,
        chat_template=chat_template,
        chat_template_kwargs=dict(model.chat_template_kwargs),
        processor=processor,
        media=settings.media,
        labels=settings.labels,
        add_special_tokens=bool(model.add_special_tokens),
        document_end=model.document_end,
        date=model.date,
        tool_template=tool_template,
        sets_template=model.chat_template is not None,
    )
    rules = _rules_tried_on_examples(FAMILIES[model.template], processor, model)
    if VIDEO.kind in rules.media_tokens:
        refuse_ignored_frame_limits(settings.media, rules.frames.choose)
    factor = rules.settings.get("factor")
    if model.factor and factor and model.factor != factor:
        raise PackError(
            f"{where} makes a token of {factor}×{factor} pixels, the model expects"
            f" {model.factor}×{model.factor}: another model's processor? model.factor={factor} accepts it"
        )
    try:
        backend = files.tokenizer.backend_tokenizer
        template = Template(spec, rules, _copy_of_tokenizer(backend) if model.template in ASKING_FAMILIES else backend)
    except PackError as error:  # raised by the chat template
        raise PackError(f"{where}: {error}") from None
    _refuse_misfits(template, model, where)
    if files.is_processor and _adds_special_tokens(template, files.tokenizer):
        adds = model.add_special_tokens is not False
        spec = replace(spec, add_special_tokens=adds, own_special_tokens=True)
    return template if spec is template.spec else Template(spec, rules, template.tokenizer)


def _processor_settings(
    settings: TemplateSettings, files: "_ProcessorFiles", empty: ProcessorSettings, chat_template: str
) -> ProcessorSettings:
    """Return the processor's settings, changed by the config's nodes `model` and `media`."""
    model, media = settings.model, settings.media
    values = {**files.processor_settings, **model.processor_kwargs}  # as from_pretrained does
    tokens = {name: text for name, text in files.tokenizer.special_tokens_map.items() if isinstance(text, str)}
    has_pixel_limits = FAMILIES[model.template].has_pixel_limits
    video = _merged_settings(
        files.video_settings, empty.kwargs, video_settings(media), has_pixel_limits=has_pixel_limits
    )
    changed = {name: value for name, value in video_settings(media).items() if value != {}}
    if "size" in changed:  # a call needs the whole value
        changed["size"] = video["size"]
    written = {}
    if model.template in ASKING_FAMILIES:
        with suppress(PackError):  # an unknown template is refused later, by its name
            renderer = Renderer(chat_template, {**tokens, **model.chat_template_kwargs}, model.date)
            written = {kind: medium_text_in_user_turn(renderer.render, kind).strip() for kind in KINDS}
    return replace(
        empty,
        image=_as_json_values({**files.image_settings, **image_settings(media)}),
        video=video,
        audio=_as_json_values(files.audio_settings),
        others=_as_json_values(files.settings_of_added_kinds),
        processor=_as_json_values({key: value for key, value in values.items() if key != "chat_template"}),
        tokens=tokens,
        changed=_as_json_values({IMAGE.kind: image_settings(media), VIDEO.kind: changed}),
        written=written,
    )


def _refuse_misfits(template: Template, model: ModelConfig, where: str) -> None:
    """Raise PackError if the tokenizer lacks a token for media, or the chat template does not read a given variable."""
    rules, variables = template.rules, template.spec.variables
    name = processor_class(Path(template.spec.processor.folder))
    if model.template not in (*ASKING_FAMILIES, "text", family_of(name) or model.template):
        raise PackError(
            f"{where} is a {name}, another family's than model.template={model.template}: +model={model_name_of(name)}"
            " packs with it"
        )
    if model.document_end and template.token_id(model.document_end) is None:
        raise PackError(f"model.document_end={model.document_end}: the tokenizer in {where} has no such token")
    template.refuse_unknown_end(template.spec.labels.final_token, f"in {where}")
    replaced = () if model.template in ASKING_FAMILIES else rules.media_tokens.values()
    for token in (*replaced, *rules.feature_tokens.values(), *rules.mark_tokens):
        if template.token_id(token) is None:
            raise PackError(
                f"{where}, a {name}, has no token {token}, which model.template={model.template} writes for media:"
                " another family's processor, or another model's tokenizer?"
            )
    if unread := [name for name in model.chat_template_kwargs if name not in variables]:
        named = ", ".join(sorted(variables)) or "none"
        raise PackError(f"model.chat_template_kwargs.{unread[0]}: of these, the chat template reads {named}")


@lru_cache(maxsize=1)
def _copy_of_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy of a tokenizer, which takes 0.5 to 2 s: a processor's call may leave the original padding texts."""
    return Tokenizer.from_str(tokenizer.to_str())


@dataclass(frozen=True)
class _ProcessorFiles:
    """The contents of a processor's folder."""

    tokenizer: Any  # a tokenizer of transformers
    is_processor: bool  # transformers loads more than the tokenizer
    chat_template: Any = None  # of the processor; a text, or texts by name; None: the tokenizer's own serves
    image_settings: dict[str, Any] = field(default_factory=dict)
    video_settings: dict[str, Any] = field(default_factory=dict)
    audio_settings: dict[str, Any] = field(default_factory=dict)
    processor_settings: dict[str, Any] = field(default_factory=dict)
    settings_of_added_kinds: dict[str, dict[str, Any]] = field(default_factory=dict)  # by kind


def _files_from_folder(folder: Path, kwargs: dict[str, Any], where: str) -> _ProcessorFiles:
    """Read a processor's folder, once for all families, without the full processor, which usually needs torchvision."""
    return _read_files(os.fspath(folder), json.dumps(kwargs), where, files_state(folder))


@lru_cache(maxsize=1)
def _read_files(name: str, settings: str, where: str, state: str) -> _ProcessorFiles:
    with faster_imports():
        from transformers import AutoImageProcessor, AutoTokenizer

    folder, kwargs = Path(name), json.loads(settings)

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **kwargs)
    except Exception as error:  # the Rust tokenizers raise bare Exception on a damaged file
        settings_in(folder / "tokenizer.json")
        raise PackError(f"{where}: no tokenizer: {one_line(error)}") from None
    _refuse_slow_tokenizer(tokenizer, where)
    image: dict[str, Any] = {}
    is_processor = has_media_processor(folder)
    if is_processor:
        try:
            image = AutoImageProcessor.from_pretrained(folder, backend="pil", **kwargs).to_dict()
        except Exception as error:  # any class of any processor may be behind it
            raise PackError(f"{where}: no image processor: {one_line(error)}") from None
    processor = _processor_class_settings(folder)
    chat_template = processor.get("chat_template") if is_processor else None
    return _ProcessorFiles(
        tokenizer, is_processor, chat_template, image, _video_settings(folder, processor), processor_settings=processor
    )


def _files_from_full_processor(processor: ProcessorSettings, where: str) -> _ProcessorFiles:
    """Take the settings from the full processor, which may have added tokens to its tokenizer."""
    try:
        full = load_full_processor(processor)
    except Exception as error:  # any class of any processor may be behind it
        settings_in(Path(processor.folder, "tokenizer.json"))
        remedy = "AutoProcessor.from_pretrained has to load that folder first"
        if "trust_remote_code" in str(error):
            remedy = "model.trust_remote_code=true runs the code that comes with it"
        name = processor_class(Path(processor.folder))
        raise PackError(f"{where}: its {name} can't be loaded ({one_line(error)}): {remedy}") from None
    tokenizer = getattr(full, "tokenizer", None)
    if tokenizer is None:
        name = processor_class(Path(processor.folder))
        raise PackError(
            f"{where}: {type(full).__name__} is what transformers loads for its {name},"
            " and has no part for media: model.trust_remote_code=true runs code of its own; +model=text packs texts"
        )
    _refuse_slow_tokenizer(tokenizer, where)
    parts = {kind: part.to_dict() for kind, part in parts_by_kind(full).items()}
    image, video, audio = (parts.pop(medium.kind, {}) for medium in (IMAGE, VIDEO, AUDIO))
    chat_template = getattr(full, "chat_template", None)
    return _ProcessorFiles(
        tokenizer, True, chat_template, image, video, audio, _processor_class_settings(Path(processor.folder)), parts
    )


def _choose_chat_templates(setting: str | None, files: _ProcessorFiles, where: str) -> tuple[str, str]:
    """Return the chat template of conversations, and another one for conversations with tools, or "" if it is the same.

    As in transformers, a tokenizer takes its `tool_use` for tools, and a processor takes its `default` for all.

    Args:
        setting: a template, or the name of one of several; None: the processor's own.
    """
    templates = files.chat_template or files.tokenizer.chat_template or {}
    named = templates if isinstance(templates, dict) else {"default": templates}
    if setting is not None and "{" not in setting and setting not in named:
        problem = f"neither Jinja text nor a readable file, and {where} has no template of that name"
        raise PackError(f"model.chat_template={setting}: {problem}; it has {', '.join(named) or 'none'}")
    if setting is not None:
        return named.get(setting, setting), ""
    if not named:
        raise PackError(f"{where} has no chat template: give model.chat_template=FILE")
    if "default" not in named:
        raise PackError(f"{where} has no default chat template: model.chat_template chooses one of {', '.join(named)}")
    tools = "" if files.chat_template else named.get("tool_use", "")
    return named["default"], tools if tools != named["default"] else ""


def _refuse_slow_tokenizer(tokenizer: Any, where: str) -> None:
    if not getattr(tokenizer, "is_fast", False):
        raise PackError(
            f"{where}: {type(tokenizer).__name__} has no fast form (tokenizer.json), which packing counts with"
        )


def _processor_class_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of transformers' processor class; empty for a folder with only a tokenizer."""
    from transformers import ProcessorMixin

    try:
        settings, _ = ProcessorMixin.get_processor_dict(folder)
    except OSError:
        return {}
    return dict(settings)


def _adds_special_tokens(template: Template, tokenizer: Any) -> bool:
    """Say whether the tokenizer adds special tokens to a rendered text in `apply_chat_template(tokenize=True)`."""
    try:
        text = template.render(Sample(_PROBE_MESSAGES, [])).text
    except Skip:  # its processor takes no text alone
        return False
    alone, around = (tokenizer(text, add_special_tokens=adds)["input_ids"] for adds in (False, True))
    return bool(alone != around and not (tokenizer.bos_token and text.startswith(tokenizer.bos_token)))


def _rules_tried_on_examples(family: type[MediaRules], processor: ProcessorSettings, model: ModelConfig) -> MediaRules:
    """Return the family's rules for a processor, after a try with example media; raises PackError if it fails."""
    try:
        rules = family(processor)
        rules.refuse_unusable_settings()
    except PackError as error:
        if model.template in ASKING_FAMILIES:
            raise
        raise PackError(f"{error} ({model.path_or_hub_id()} is a {processor_class(Path(processor.folder))})") from None
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise PackError(
            f"model.processor={model.path_or_hub_id()}: its settings make no sense to model.template={model.template}:"
            f" {one_line(error)}"
        ) from None
    return rules


def _video_settings(folder: Path, processor: Mapping[str, Any]) -> dict[str, Any]:
    """Read the video settings from where transformers looks for them; if there are none, return the image settings."""
    if isinstance(processor.get("video_processor"), dict):
        return dict(processor["video_processor"])
    return settings_in(folder / "video_preprocessor_config.json") or settings_in(folder / "preprocessor_config.json")


def _merged_settings(*layers: Mapping[str, Any], has_pixel_limits: bool) -> dict[str, Any]:
    """Merge settings: later ones override earlier ones, and the settings within `size` one by one."""
    merged: dict[str, Any] = {}
    for layer in layers:
        size = {**(merged.get("size") or {}), **(layer.get("size") or {})}
        for edge, old in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
            if has_pixel_limits and layer.get(old) is not None:
                size[edge] = layer[old]
        merged |= {**layer, "size": size}
    return merged


def _as_json_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    return values
