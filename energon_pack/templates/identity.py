"""The parts of a template and its fingerprints: plain data that lies beside it in the cache."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from energon_pack.templates.families.rules import ProcessorSettings
from energon_pack.templates.settings import DATE, Labels, MediaConfig

#: among the kinds of media: images and videos in one sample, and videos of several lengths, in frames
MIXED, UNEVEN = "mixed", "uneven"
#: Raised whenever a change in this package changes any length: old caches and packs are then told apart.
RULES_VERSION = 3
#: of templates that read no reasoning: what came with 3 changes none of their lengths
_WITHOUT_REASONING = 2
#: the fingerprint of a template that renders each conversation whole
NO_SHORTCUT = {"shortcut": "none"}


@dataclass(frozen=True)
class TemplateSpec:
    """The parts of a template beside its tokenizer: plain data, kept as JSON beside tokenizer.json."""

    family: str
    chat_template: str
    chat_template_kwargs: dict[str, Any]
    processor: ProcessorSettings
    media: MediaConfig = field(default_factory=MediaConfig)
    labels: Labels = field(default_factory=Labels)
    kinds: list[str] | None = None  # of media that are measured, MIXED and UNEVEN among them; None: all of the family's
    add_special_tokens: bool = False  # those the tokenizer puts around any text, beside the chat template's
    document_end: str | None = None  # the token that ends a raw text; None: as `RawTexts.end` finds it
    date: str = DATE  # that the chat template writes, an ISO date
    shortcut: bool = True  # whether one rendering may serve all conversations of a shape


@dataclass(frozen=True)
class Identity:
    """The fingerprints of a template, readable without its tokenizer: kept as JSON beside the template."""

    fingerprints: dict[str, str]  # a hash for each thing a length depends on
    labels: dict[str, Any]  # settings of `labels`, on which the number of trained tokens depends
    family: str = ""
    kinds: list[str] | None = None  # as of `TemplateSpec`

    @property
    def fingerprint(self) -> str:
        """One hash over `fingerprints`: equal fingerprints, equal lengths."""
        return hash_of(self.fingerprints)


def rules_version(chat_template: str) -> int:
    """The version of the rules that the lengths of a chat template depend on."""
    return RULES_VERSION if any(name in chat_template for name in ("reasoning", "thinking")) else _WITHOUT_REASONING


def hash_of(value: Any) -> str:
    """A short hash of a text, or of a value as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
