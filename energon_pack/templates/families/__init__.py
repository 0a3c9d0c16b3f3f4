"""Families of models: each has a file with its rules; this file lists them by name."""

from energon_pack.templates.families.kimi import Kimi
from energon_pack.templates.families.qwen_vl import Qwen3VL, QwenVL
from energon_pack.templates.families.rules import MediaRules, TextRules
from energon_pack.templates.families.shapes import BlankImageRules, ShapeRules
from energon_pack.templates.families.tiles import InternVL, LlavaOneVision

#: `model.template` of the config: the family's media rules by name.
FAMILIES: dict[str, type[MediaRules]] = {
    "qwen_vl": QwenVL,
    "qwen3_vl": Qwen3VL,
    "llava_onevision": LlavaOneVision,
    "internvl": InternVL,
    "kimi": Kimi,
    "text": TextRules,
    "shapes": ShapeRules,
    "pixels": BlankImageRules,
}

#: families that ask the full processor
ASKING_FAMILIES = ("shapes", "pixels")
#: the value of `model.template` that chooses rules when the template is built
AUTO = "auto"


def family_of(processor_class: str) -> str | None:
    """Return the name of the family whose rules serve a processor class; None: no family does."""
    return next((name for name, rules in FAMILIES.items() if processor_class in rules.processors), None)
