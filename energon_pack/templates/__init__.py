"""Model templates: how a sample becomes the tokens of one model."""

from energon_pack.template_settings import TemplateSettings
from energon_pack.templates.base import Identity, Rendered, Sample, Template, Tokens
from energon_pack.templates.processor import (
    identity_of,
    load_saved,
    load_template,
    local_folder,
    prepare_template,
    saved_template,
)

__all__ = [
    "Identity",
    "Rendered",
    "Sample",
    "Template",
    "TemplateSettings",
    "Tokens",
    "identity_of",
    "load_saved",
    "load_template",
    "local_folder",
    "prepare_template",
    "saved_template",
]
