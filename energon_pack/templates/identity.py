"""What a template is made of, and what tells it from another: plain data that lies beside it in the cache."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from energon_pack.templates.families.rules import ProcessorSettings
from energon_pack.templates.settings import MediaConfig, TrainOn

#: among the kinds of media: images and videos in one sample, and videos of several lengths, in frames
MIXED, UNEVEN = "mixed", "uneven"
#: Raised whenever a change in this package changes any length: old caches and packs are then told apart.
RULES_VERSION = 2


@dataclass(frozen=True)
class TemplateSpec:
    """What a template is made of, beside its tokenizer: plain data, kept as JSON beside tokenizer.json."""

    family: str
    chat_template: str
    chat_template_kwargs: dict[str, Any]
    processor: ProcessorSettings
    media: MediaConfig = field(default_factory=MediaConfig)
    train_on: TrainOn = TrainOn.all
    kinds: list[str] | None = None  # of media that are measured, MIXED and UNEVEN among them; None: all of the family's
    add_special_tokens: bool = False  # those the tokenizer puts around any text, beside the chat template's
    document_end: str | None = None  # the token that ends a raw text; None: as `RawTexts.end` finds it


@dataclass(frozen=True)
class Identity:
    """What tells templates apart, known without reading a tokenizer: kept as JSON beside the template."""

    fingerprints: dict[str, str]  # a hash for each thing a length depends on
    train_on: TrainOn
    family: str = ""
    kinds: list[str] | None = None  # as of `TemplateSpec`

    @property
    def fingerprint(self) -> str:
        """One hash over `fingerprints`: equal fingerprints, equal lengths."""
        return hash_of(self.fingerprints)


def hash_of(value: Any) -> str:
    """A short hash of a text, or of a value as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
