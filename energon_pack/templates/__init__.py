"""Model templates: how a sample becomes the tokens of one model."""

from energon_pack.templates.base import Rendered, Sample, Template, Tokens
from energon_pack.templates.processor import ModelSettings, load_saved, load_template, local_folder, prepare_template

__all__ = [
    "ModelSettings",
    "Rendered",
    "Sample",
    "Template",
    "Tokens",
    "load_saved",
    "load_template",
    "local_folder",
    "prepare_template",
]
