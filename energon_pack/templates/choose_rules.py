"""Choose the rules that count a processor's media: the first whose tokens equal the full processor's in a trial.

rules of its family ─► shapes (the processor's own call, without pixels) ─► pixels (with blank images)
"""

import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from energon_pack.errors import PackError, one_line
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.templates.build import build
from energon_pack.templates.families import ASKING_FAMILIES, AUTO, family_of
from energon_pack.templates.families.rules import ProcessorSettings
from energon_pack.templates.full_processor import (
    PROCESSOR_FILES,
    has_media_processor,
    known_processor_classes,
    load_full_processor,
    model_classes_of,
    processor_class,
    quiet_transformers,
    settings_in,
)
from energon_pack.templates.identity import HEARD_VIDEOS, MIXED_MEDIA, UNEVEN_VIDEOS
from energon_pack.templates.models import model_name_of
from energon_pack.templates.pixels import known_settings, parts_by_kind
from energon_pack.templates.settings import ModelConfig, TemplateSettings
from energon_pack.templates.template import Template
from energon_pack.templates.trial import ProcessorTrial, TrialOutcome, find_sample_kinds

_KIND_NOUNS = {
    **{kind: medium.nouns for kind, medium in KINDS.items()},
    MIXED_MEDIA: "media of several kinds in one sample",
    UNEVEN_VIDEOS: "videos of several lengths in one sample",
    HEARD_VIDEOS: "videos with their sounds",
}
#: kinds of media in such samples: if one of these kinds is left out, so are these samples
_KINDS_WITHIN = {
    MIXED_MEDIA: {IMAGE.kind, VIDEO.kind},
    UNEVEN_VIDEOS: {VIDEO.kind},
    HEARD_VIDEOS: {VIDEO.kind, AUDIO.kind},
}

_SETTINGS_FILES = (*PROCESSOR_FILES, "video_preprocessor_config.json", "config.json", "special_tokens_map.json")
#: arguments of a processor that limit the size of an image
_PIXEL_LIMITS = ("min_pixels", "max_pixels")
#: arguments of `from_pretrained` itself, or of the code that chooses a class
_LOADING_ARGUMENTS = (
    "backend", "cache_dir", "fix_mistral_regex", "force_download", "from_slow", "legacy", "local_files_only",
    "revision", "subfolder", "token", "tokenizer_type", "trust_remote_code", "use_fast",
)  # fmt: skip
#: inputs of a forward through which images reach the text other than as tokens, so that nothing keeps packs apart
_UNPACKABLE_INPUTS = {
    "cross_attention_mask": "reads images by cross-attention",
    "image_attention_mask": "reads images by cross-attention",
    "encoder_outputs": "reads a sample whole with an encoder of its own",
    "qformer_input_ids": "reads an image anew for each question",
}


@dataclass(frozen=True)
class RejectedFamily:
    """A family of media rules (`template`) that was tried and rejected, and the reason."""

    template: str
    why_not: str


@dataclass(frozen=True)
class MediaRulesChoice:
    """Which media rules were chosen for a model, and how they compared with its processor; saved with the template."""

    template: str  # a name in FAMILIES
    processor: str = ""  # the class of the processor
    #: number of media for which both gave the same, by kind
    num_compared: dict[str, int] = field(default_factory=dict)
    #: kinds of media that the processor takes, but that are not measured, and why
    left_out: dict[str, str] = field(default_factory=dict)
    tried: list[RejectedFamily] = field(default_factory=list)
    #: why nothing was compared
    note: str = ""
    #: arguments in `model.processor_kwargs` that nothing of the processor has
    unread: list[str] = field(default_factory=list)
    #: whether each answer ends with a token, by the chat template or by `labels.final_end`
    ends_answers: bool = True

    def lines(self, asked: str) -> list[str]:
        """Return the lines that a run prints about the choice; `asked`: the value of `model.template`."""
        lines = [
            f"{_KIND_NOUNS[kind]} of {self.processor} can't be measured: {why}"
            for kind, why in self.left_out.items()
            if not self.left_out.keys() & _KINDS_WITHIN.get(kind, set())
        ]
        lines += [f"model.processor_kwargs.{name}: {self.processor} has no such setting" for name in self.unread]
        if asked not in (self.template, AUTO):
            why = "; ".join(f"{item.template}: {item.why_not}" for item in self.tried)
            lines.append(f"model.template={asked} is not exact for this processor ({why}); {self.template} is taken")
        elif asked == AUTO:
            counts = ", ".join(f"{number} {_KIND_NOUNS[kind]}" for kind, number in self.num_compared.items())
            lines.append(f"model.template={self.template} counts media as {self.processor} does: tried with {counts}")
        if not self.ends_answers:
            warning = "the chat template writes no token that ends an answer: the model is never trained to stop"
            lines.append(f"{warning} (labels.final_end=TOKEN adds one behind a last answer, model.chat_template)")
        return lines


@dataclass(frozen=True)
class _Candidate:
    template: Template
    outcomes: dict[str, TrialOutcome]

    @property
    def name(self) -> str:
        return self.template.spec.family

    @property
    def exact_kinds(self) -> set[str]:
        """Return the kinds of media that these rules count as the full processor does; none if even a text differs."""
        if self.outcomes["text"].difference:
            return set()
        return {kind for kind, outcome in self.outcomes.items() if kind != "text" and outcome.is_exact}

    @property
    def refused_kinds(self) -> set[str]:
        """Return the kinds of samples that the full processor refuses: no rules can count them."""
        return {kind for kind, outcome in self.outcomes.items() if not outcome.is_accepted}

    @property
    def why_not(self) -> str:
        reasons = [outcome.difference for outcome in self.outcomes.values()]
        reasons += [outcome.refusal for kind, outcome in self.outcomes.items() if kind != "text"]
        return next(filter(None, reasons)) if any(reasons) else f"it knows {' and '.join(self.exact_kinds)} alone"


@quiet_transformers()
def build_with_best_rules(settings: TemplateSettings, folder: Path) -> tuple[Template, MediaRulesChoice]:
    """Build a model's template with the first media rules that count as its full processor; return it and the choice.

    Args:
        settings: `model.template` names a family, or is AUTO.
        folder: the folder of the processor.

    Raises:
        PackError: no rules are exact, or the processor belongs to another family.
    """
    name, where = settings.model.template, f"model.processor={settings.model.path_or_hub_id()}"
    refuse_damaged_processor_files(folder)
    if name == "text":
        return build(settings, folder), MediaRulesChoice(name)
    if name == AUTO:
        if not has_media_processor(folder):
            raise PackError(
                f"{where} has no settings of an image or video processor: +model=text packs texts with it,"
                " preprocessor_config.json beside the tokenizer adds them"
            )
        refuse_other_class(settings.model.processor_class, folder, where)
        refuse_unpackable_model_classes(folder, where)
    tried: list[RejectedFamily] = []
    candidates: list[_Candidate] = []
    trial = ProcessorTrial()
    for template in _candidate_templates(settings, folder, tried):
        try:
            candidates.append(_Candidate(template, trial.outcomes(template)))
        except ImportError as error:
            if name == AUTO:
                raise PackError(f"{where}: its full processor can't be asked: {one_line(error, 160)}") from None
            return template, MediaRulesChoice(
                name, note=f"not compared with the full processor: {one_line(error, 160)}"
            )
        full = load_full_processor(template.spec.processor)
        kinds = candidates[0].outcomes.keys() - {"text"}
        if name == AUTO:
            kinds = find_sample_kinds(parts_by_kind(full))
        if candidates[-1].exact_kinds >= kinds - candidates[-1].refused_kinds:
            break
    best = max(
        candidates,
        key=lambda candidate: (len(candidate.exact_kinds & KINDS.keys()), len(candidate.exact_kinds)),
        default=None,
    )
    tried += [RejectedFamily(item.name, item.why_not) for item in candidates if item is not best]
    if best is None or not best.exact_kinds:
        tried += [] if best is None else [RejectedFamily(best.name, best.why_not)]
        raise PackError(_no_rules_message(tried, folder, where))
    unread = unread_arguments(best.template.spec.processor)
    refuse_unread_pixel_limits(unread, settings.model, type(full).__name__, where)
    kinds = kinds | (best.outcomes.keys() & {HEARD_VIDEOS})
    choice = MediaRulesChoice(
        best.name,
        type(full).__name__,
        {kind: best.outcomes[kind].num_compared for kind in sorted(best.exact_kinds)},
        {kind: _why_kind_is_left_out(kind, candidates) for kind in sorted(kinds - best.exact_kinds)},
        tried,
        unread=unread,
    )
    return best.template.only(sorted(best.exact_kinds)) if kinds - best.exact_kinds else best.template, choice


def _candidate_templates(settings: TemplateSettings, folder: Path, tried: list[RejectedFamily]) -> Iterator[Template]:
    """Yield the template with each family's rules, in the order of the trials; add those that fail to `tried`."""
    name = settings.model.template
    first = family_of(processor_class(folder)) if name == AUTO else name
    for family in dict.fromkeys(filter(None, (first, *ASKING_FAMILIES))):
        try:
            yield build(replace(settings, model=replace(settings.model, template=family)), folder)
        except PackError as error:
            if family == name:
                raise
            tried.append(RejectedFamily(family, str(error)))


def _why_kind_is_left_out(kind: str, candidates: Sequence[_Candidate]) -> str:
    """Return why no rules count a kind of media: the reason of the last candidate that has one."""
    for candidate in reversed(candidates):
        outcome = candidate.outcomes.get(kind, TrialOutcome())
        if why := outcome.difference or outcome.refusal or candidate.template.rules.reason_by_kind.get(kind):
            return why
    return f"{candidates[-1].name} knows none"


def _no_rules_message(tried: list[RejectedFamily], folder: Path, where: str) -> str:
    """Return the error message for a processor whose media no rules count; a reason that all share is said once."""
    names: dict[str, list[str]] = {}
    for item in tried:
        names.setdefault(item.why_not, []).append(item.template)
    if len(names) == 1 and tried[0].why_not.startswith((where, str(folder))):  # it can't be used at all
        return tried[0].why_not
    whys = [
        why[:300] if len(names) == 1 else f"{' and '.join(templates)}: {why[:140]}" for why, templates in names.items()
    ]
    return (
        f"{where}: nothing counts the media of {processor_class(folder)} as its own call does ({'; '.join(whys)}): are"
        " its settings, model.processor_kwargs and model.chat_template right? +model=text packs texts"
    )


# ------------------------------------------------------------------------------- what is refused before any sample


def refuse_damaged_processor_files(folder: Path) -> None:
    """Raise PackError if a JSON file in a processor's folder can't be read, or holds no object."""
    for name in _SETTINGS_FILES:
        settings_in(folder / name)


def refuse_other_class(expected: str | None, folder: Path, where: str) -> None:
    """Raise PackError if a processor has not the `expected` class (None: any), but another class of transformers."""
    name = processor_class(folder)
    if expected and name != expected and name in known_processor_classes():
        raise PackError(
            f"{where} is a {name}, and this model has a {expected}: +model={model_name_of(name)} packs with it, and"
            " model.processor_class=null takes it all the same"
        )


def unread_arguments(processor: ProcessorSettings) -> list[str]:
    """Return the arguments that nothing of a processor has: `from_pretrained` drops them, and says nothing.

    Its classes name their settings. One that they do not name is read all the same if a part is another with it.
    """
    full = load_full_processor(processor)
    parts = [full, getattr(full, "tokenizer", full), *parts_by_kind(full).values()]
    known = {*_LOADING_ARGUMENTS}.union(*map(known_settings, parts))
    unknown = [
        name for name in processor.kwargs if name not in known and not any(hasattr(part, name) for part in parts)
    ]
    return [name for name in unknown if not _changes_parts(processor, name)]


def _changes_parts(processor: ProcessorSettings, name: str) -> bool:
    """Say whether a part of a processor has other settings without an argument, or can't be loaded without it."""
    rest = {key: value for key, value in processor.kwargs.items() if key != name}
    try:
        return _settings_of_parts(replace(processor, kwargs=rest)) != _settings_of_parts(processor)
    except Exception:  # any class of any processor may be behind it
        return True


def _settings_of_parts(processor: ProcessorSettings) -> list[str]:
    parts = parts_by_kind(load_full_processor(processor)).values()
    return [json.dumps(part.to_dict(), sort_keys=True, default=str) for part in parts]


def refuse_unread_pixel_limits(unread: Sequence[str], model: ModelConfig, processor: str, where: str) -> None:
    """Raise PackError if a limit of pixels is an argument that nothing reads; `processor`: its class."""
    for name in _PIXEL_LIMITS:
        if name in unread:
            is_own = getattr(model, name) is not None
            setting = f"model.{name}={getattr(model, name)}" if is_own else f"model.processor_kwargs.{name}"
            remedy = "media=resize_max_pixels media.max_pixels=N shrinks images before it sees them"
            raise PackError(
                f"{setting}: {where} is a {processor}, which has no such setting"
                f"{f': {remedy}' if name == 'max_pixels' else ', and would go on without it: take it out'}"
            )


def refuse_unpackable_model_classes(folder: Path, where: str) -> None:
    """Raise PackError if all model classes for a processor have inputs, such as `cross_attention_mask`, by which
    the samples of a pack see each other.
    """
    reasons = {make.__name__: _why_unpackable(make) for make in model_classes_of(folder)}
    if reasons and all(reasons.values()):
        name, why = next(iter(reasons.items()))
        raise PackError(
            f"{where}: {name} {why}, which no layout of packs keeps apart: samples with media can't be packed for it;"
            " +model=text packs texts"
        )


def _why_unpackable(make: Any) -> str:
    takes = inspect.signature(make.forward).parameters
    return next((why for name, why in _UNPACKABLE_INPUTS.items() if name in takes), "")
