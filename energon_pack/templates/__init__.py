"""Model templates: how a sample becomes the tokens of one model."""

from energon_pack.templates.base import Identity, Rendered, Sample, Template, Tokens
from energon_pack.templates.processor import (
    ModelSettings,
    identity_of,
    load_saved,
    load_template,
    local_folder,
    prepare_template,
    saved_template,
)

__all__ = [
    "Identity",
    "ModelSettings",
    "Rendered",
    "Sample",
    "Template",
    "Tokens",
    "identity_of",
    "load_saved",
    "load_template",
    "local_folder",
    "prepare_template",
    "saved_template",
]
