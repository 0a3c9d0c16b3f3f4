"""What templates are built from."""

from pathlib import Path
from typing import Any

from energon_pack.templates.settings import MediaConfig, ModelConfig, TemplateSettings


def of_model(template: str, processor: Path | str, media: MediaConfig | None = None, **model: Any) -> TemplateSettings:
    """A family and a processor, and what is done to media first."""
    node = ModelConfig(template=template, processor=str(processor), **model)
    return TemplateSettings(node, media or MediaConfig())
