"""Parts of a template, its fingerprints, and the labels that it records: plain data beside it in the cache."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from energon_pack.run.untrusted_input import dataclass_from_dict, plain
from energon_pack.samples.media.kinds import ADDED_KINDS
from energon_pack.templates.chat.jinja import template_writes_date, variables_read_by_template
from energon_pack.templates.families.rules import ProcessorSettings
from energon_pack.templates.settings import (
    DEFAULT_DATE,
    FINAL_END_AUTO,
    FINAL_END_NONE,
    LabelSettings,
    MediaConfig,
    Think,
    TransparentPixelColour,
)

#: settings of `labels` of later versions, with their defaults
_LATER_LABELS = {
    "untrained": "drop",
    "cut_end": True,
    "empty": "drop",
    "template_drops": "skip",
    "final_end": FINAL_END_AUTO,
}


def labels_without_new_defaults(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of `labels`, as JSON, without later ones that have their defaults.

    Caches and datasets from before these settings stay valid so.
    """
    return {name: value for name, value in labels.items() if value != _LATER_LABELS.get(name, ...)}


def recorded_labels(labels: LabelSettings, final_ends: Sequence[str]) -> dict[str, Any]:
    """Return the settings of `labels` as caches and datasets record them.

    `final_end` is left out where no token is added: by `auto`, and by all that was packed before this setting existed.
    """
    values = labels_without_new_defaults(plain(labels))
    return {**values, "final_end": labels.final_end} if final_ends else values


def labels_from_recorded(values: Mapping[str, Any]) -> LabelSettings:
    """Return the settings that `recorded_labels` made values of."""
    return dataclass_from_dict(LabelSettings, {"final_end": FINAL_END_NONE, **values})


#: further kinds of media: images and videos in one sample, videos with different numbers of frames, and videos whose
#: sound is heard
MIXED_MEDIA, UNEVEN_VIDEOS, HEARD_VIDEOS = "mixed", "uneven", "heard"
#: Raise this number when a change in this package changes any length: so old caches and packs are told apart.
RULES_VERSION = 3
#: version for templates that read no reasoning: version 3 changed none of their lengths
_RULES_VERSION_WITHOUT_REASONING = 2


@dataclass(frozen=True)
class TemplateSpec:
    """All parts of a template except its tokenizer, as plain data: saved as JSON beside tokenizer.json."""

    family: str
    chat_template: str
    chat_template_kwargs: dict[str, Any]
    processor: ProcessorSettings
    media: MediaConfig = field(default_factory=MediaConfig)
    labels: LabelSettings = field(default_factory=LabelSettings)
    kinds: list[str] | None = None  # kinds of media that are measured, also these three; None: all of the family
    add_special_tokens: bool = False  # whether the tokenizer adds its own, besides the chat template's
    document_end: str | None = None  # the token that ends a raw text; None: as `DocumentTexts.end_token` finds it
    date: str = DEFAULT_DATE  # the ISO date that the chat template writes
    tool_template: str = ""  # the chat template of conversations with tools; empty: the same
    sets_template: bool = False  # `model.chat_template` sets it; else the processor takes the same by itself
    own_special_tokens: bool = False  # whether the tokenizer adds its own in the processor's call by itself

    @property
    def chat_templates(self) -> list[str]:
        """Return the chat template, and after it the template for conversations with tools if that differs."""
        return [self.chat_template, *filter(None, [self.tool_template])]

    @property
    def variables(self) -> frozenset[str]:
        """Return the names of the variables that the chat templates read, besides the conversation and its tools."""
        return frozenset().union(*map(variables_read_by_template, self.chat_templates))


@dataclass(frozen=True)
class TemplateIdentity:
    """Hashes and label settings that identify a template in caches and packs; they are read without its tokenizer."""

    fingerprints: dict[str, str]  # a hash for each thing that a length depends on
    labels: dict[str, Any]  # settings of `labels`, which decide the number of trained tokens
    family: str = ""
    kinds: list[str] | None = None  # as in `TemplateSpec`

    @property
    def fingerprint(self) -> str:
        """Return one hash over `fingerprints`: equal hashes mean equal lengths."""
        return short_hash(self.fingerprints)


def fingerprints_of(
    spec: TemplateSpec, tokenizer: str, rules: Mapping[str, Any], kinds: Collection[str], final_ends: Sequence[str] = ()
) -> dict[str, str]:
    """Hash all that lengths depend on, by name: `tokenizer` (its JSON), `chat_template`, `media` (by `rules`), …

    Args:
        final_ends: the tokens that `labels.final_end` adds behind last answers.
    """
    ends = [] if spec.document_end is None else [spec.document_end]
    thoughts = ["history without thoughts"] if spec.labels.think is Think.drop_history else []
    chat: list[Any] = [*ends, *thoughts, *spec.chat_templates, spec.processor.tokens, spec.chat_template_kwargs]
    chat.append(spec.add_special_tokens)
    chat += [["final end", *final_ends]] if final_ends else []
    chat += [spec.date] if template_writes_date(*spec.chat_templates) else []
    media = asdict(spec.media)
    if spec.media.alpha is TransparentPixelColour.auto:  # so that the hash is that of earlier versions
        del media["alpha"]
    return {
        "tokenizer": short_hash(tokenizer),
        "chat_template": short_hash(chat),
        "media": short_hash([spec.family, rules, media]),
        "rules": str(_rules_version_of_template("".join(spec.chat_templates))),
        **({"kinds": short_hash(added)} if (added := [one for one in ADDED_KINDS if one[0] in kinds]) else {}),
    }


def _rules_version_of_template(chat_template: str) -> int:
    """Return the version of the package's rules that lengths by this chat template depend on."""
    return (
        RULES_VERSION
        if any(name in chat_template for name in ("reasoning", "thinking"))
        else _RULES_VERSION_WITHOUT_REASONING
    )


def short_hash(value: Any) -> str:
    """Hash a text, or any other value as JSON, into 16 hexadecimal digits."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
