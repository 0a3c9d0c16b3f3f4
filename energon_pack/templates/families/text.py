"""Text alone: any tokenizer with a chat template."""

from typing import Any

from energon_pack.templates.families.rules import MediaRules, ProcessorSettings


class Text(MediaRules):
    """A model without images and videos; samples that have some are skipped."""

    def __init__(self, processor: ProcessorSettings):
        self.media_tokens: dict[str, str] = {}
        self.settings: dict[str, Any] = {}
