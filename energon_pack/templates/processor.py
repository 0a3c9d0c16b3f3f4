"""Read a processor folder or hub id once with transformers, and keep it in the cache in a form that does not need
it.
"""

import hashlib
import json
import os
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from energon_pack.errors import PackError
from energon_pack.run.files import (
    copy_folder_to_cache,
    is_intact,
    make_folder_atomically,
    read_cached_value,
    restore_folder_from_cache,
    write_atomically,
    write_cached_value,
)
from energon_pack.run.packages import version_of
from energon_pack.run.untrusted_input import dataclass_from_dict, plain
from energon_pack.samples.input_rules import InputRules
from energon_pack.samples.media.kinds import ADDED_KINDS
from energon_pack.templates.build import build
from energon_pack.templates.chat.jinja import template_writes_date
from energon_pack.templates.choose_rules import MediaRulesChoice, RejectedFamily, build_with_best_rules
from energon_pack.templates.families import ASKING_FAMILIES, AUTO, FAMILIES
from energon_pack.templates.families.rules import MediaRules, ProcessorSettings
from energon_pack.templates.full_processor import find_or_download_folder, load_full_processor, small_files
from energon_pack.templates.identity import RULES_VERSION, TemplateIdentity, TemplateSpec, labels_without_new_defaults
from energon_pack.templates.pixels import measure_trial_inputs, media_settings, part_classes, settings_hash
from energon_pack.templates.settings import MediaConfig, ModelConfig, TemplateSettings
from energon_pack.templates.template import Template

#: the tokenizer of the template that this process built last, by its folder: reading it takes a while
_last_tokenizer: dict[str, Tokenizer] = {}

_SAVED_VERSION = 11  # raise this number when `Template.save` writes other files, or a choice compares more
#: packages that read a processor's files, or that it is compared with
_VERSIONED_PACKAGES = ("energon-pack", "transformers", "tokenizers", "torch", "torchvision", "pillow", "numpy")
#: settings of `model` that do not change the template
_UNUSED_MODEL_SETTINGS = ("name", "hub_id", "mask", "rope")
_CHOICE_FILE = "choice.json"
#: the folder of templates in the user's cache
_KEPT = "templates"


def build_uncached_template(settings: TemplateSettings) -> Template:
    """Build the template of a model from its processor, with transformers, without the cache."""
    folder = _processor_folder(settings.model)
    return build_with_best_rules(settings, folder)[0] if settings.model.template == AUTO else build(settings, folder)


def saved_template_folder(settings: TemplateSettings, cache_dir: Path) -> str | None:
    """Return the template's folder in the cache, which gets it from the user's; None: `prepare_template` makes it."""
    saved = _template_folder(settings, cache_dir, _processor_folder(settings.model))
    return os.fspath(saved) if is_intact(saved) or restore_folder_from_cache(_KEPT, saved) else None


def prepare_template(settings: TemplateSettings, cache_dir: Path) -> str:
    """Build the template of a model once; return the folder in the cache from which `load_saved_template` reads it.

    The folder is keyed by the content of the processor's files: the next run imports neither torch nor transformers,
    and no worker ever does.
    """
    folder = _processor_folder(settings.model)
    saved = _template_folder(settings, cache_dir, folder)
    if not is_intact(saved):
        with make_folder_atomically(saved) as built:
            template, choice = _template_and_rules_choice(settings, folder)
            choice = replace(choice, ends_answers=template.ends_answers)
            template.save(built)
            if not choice.note:
                _rules_with_processor_facts(template.input_rules, _template_key(settings, folder)).save(built)
            write_atomically(built / _CHOICE_FILE, json.dumps(asdict(choice)).encode())
            _last_tokenizer.clear()
            _last_tokenizer[os.fspath(saved)] = template.tokenizer
    if not read_media_rules_choice(os.fspath(saved)).note:
        copy_folder_to_cache(_KEPT, saved)
    return os.fspath(saved)


def read_media_rules_choice(template_folder: str) -> MediaRulesChoice:
    """Return which media rules a saved template has, and how they were chosen; `prepare_template` gave its folder."""
    return _choice_from_json(json.loads(Path(template_folder, _CHOICE_FILE).read_bytes()))


def _choice_from_json(values: Any) -> MediaRulesChoice:
    if values["template"] not in FAMILIES:
        raise ValueError(f"there is no model.template={values['template']}")
    return MediaRulesChoice(**{**values, "tried": [RejectedFamily(**item) for item in values["tried"]]})


def _template_and_rules_choice(settings: TemplateSettings, folder: Path) -> tuple[Template, MediaRulesChoice]:
    """Return the result of `choose_template`, from the user's cache if it has the same processor and settings."""
    key = _template_key(settings, folder)
    if kept := read_cached_value("choices", key, _choice_from_json):
        model = replace(settings.model, template=kept.template)
        template = build(replace(settings, model=model), folder)
        return (template.only([*kept.num_compared]) if kept.left_out else template), kept
    template, choice = build_with_best_rules(settings, folder)
    if not choice.note:
        write_cached_value("choices", key, asdict(choice))
    return template, choice


def _rules_with_processor_facts(rules: InputRules, key: str) -> InputRules:
    """Return rules with what their processor makes of media, from the user's cache if it has the same processor."""
    if not rules.media_tokens:
        return rules
    values: dict[str, Any] | None = read_cached_value(
        "pixels", key, lambda kept: {name: kept[name] for name in ("pixels", "made", "classes")}
    )
    if values is None:
        full = load_full_processor(rules)
        made = measure_trial_inputs(full, rules)
        values = {"pixels": settings_hash(media_settings(full, rules)), "made": made, "classes": part_classes(full)}
        write_cached_value("pixels", key, values)
    return replace(rules, **values)


def lines_about_template(template_folder: str) -> list[str]:
    """Return the lines that a run prints if a template writes a date, or other special tokens than its processor."""
    values = json.loads(Path(template_folder, "spec.json").read_bytes())
    lines, adds = [], values["add_special_tokens"]
    if template_writes_date(values["chat_template"], values["tool_template"]):
        lines.append(f"the chat template writes a date: {values['date']} (model.date)")
    if adds != values["own_special_tokens"]:
        how = "adds tokens that its own call does not add" if adds else "leaves out tokens that its own call adds"
        lines.append(f"special tokens of the processor: model.add_special_tokens={str(adds).lower()} {how}")
    return lines


def read_template_identity(template_folder: str) -> TemplateIdentity:
    """Read the fingerprints of a saved template."""
    return dataclass_from_dict(TemplateIdentity, json.loads(Path(template_folder, "identity.json").read_bytes()))


@lru_cache(maxsize=2)
def load_saved_template(folder: str) -> Template:
    """Load a saved template; each process does it once."""
    values = json.loads(Path(folder, "spec.json").read_bytes())
    processor, media = ProcessorSettings(**values["processor"]), dataclass_from_dict(MediaConfig, values["media"])
    spec = dataclass_from_dict(TemplateSpec, {**values, "processor": processor, "media": media})
    tokenizer = _last_tokenizer.pop(folder, None) or Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    return Template(spec, FAMILIES[spec.family](spec.processor), tokenizer)


def media_rules_of(template_folder: str) -> MediaRules | None:
    """Load the media rules of a saved template, without its tokenizer; None: they need the full processor."""
    values = json.loads(Path(template_folder, "spec.json").read_bytes())
    return (
        None
        if values["family"] in ASKING_FAMILIES
        else FAMILIES[values["family"]](ProcessorSettings(**values["processor"]))
    )


def processor_folder_of(template_folder: str) -> Path:
    """Return the folder of the processor that a saved template was made from."""
    return Path(json.loads(Path(template_folder, "spec.json").read_bytes())["processor"]["folder"])


def _processor_folder(model: ModelConfig) -> Path:
    if model.template not in (*FAMILIES, AUTO):
        raise PackError(f"model.template={model.template} is unknown; there are: auto, {', '.join(FAMILIES)}")
    return find_or_download_folder(model.path_or_hub_id(), model.revision)


def _template_folder(settings: TemplateSettings, cache_dir: Path, folder: Path) -> Path:
    return cache_dir / "templates" / _template_key(settings, folder, os.path.abspath(folder))


def _template_key(settings: TemplateSettings, folder: Path, place: str = "") -> str:
    """Return a hash of all that `build` reads: the processor's small files, the settings, and versions of packages.

    Args:
        place: the path of the folder, if the full processor is loaded from it again; empty: the path does not matter.
    """
    digest = hashlib.sha256()
    for path in small_files(folder):
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    how = {name: value for name, value in asdict(settings.model).items() if name not in _UNUSED_MODEL_SETTINGS}
    how["processor"] = place
    how |= {"media": asdict(settings.media), "labels": labels_without_new_defaults(plain(settings.labels))}
    versions = {name: version_of(name) for name in _VERSIONED_PACKAGES}
    digest.update(
        json.dumps([how, versions, RULES_VERSION, _SAVED_VERSION, *ADDED_KINDS], sort_keys=True, default=str).encode()
    )
    return digest.hexdigest()[:16]
