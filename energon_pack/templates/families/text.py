"""Rules for text only: any tokenizer with a chat template."""

from typing import Any

from energon_pack.templates.families.rules import MediaRules, ProcessorSettings


class Text(MediaRules):
    """A model without media; samples with media are skipped."""

    def __init__(self, processor: ProcessorSettings):
        self.media_tokens: dict[str, str] = {}
        self.settings: dict[str, Any] = {}
