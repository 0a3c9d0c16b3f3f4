"""Model settings from which tests build templates."""

from pathlib import Path
from typing import Any

from energon_pack.templates.settings import MediaConfig, ModelConfig, TemplateSettings


def of_model(template: str, processor: Path | str, media: MediaConfig | None = None, **model: Any) -> TemplateSettings:
    """A family, a processor, and the preprocessing of media."""
    node = ModelConfig(template=template, processor=str(processor), **model)
    return TemplateSettings(node, media or MediaConfig())
