"""Choose how a dataset's M-RoPE rows are made: by a known rule, or by the model's class."""

from pathlib import Path

from energon_pack.samples.input_rules import InputRules
from energon_pack.samples.media.kinds import IMAGE
from energon_pack.templates.full_processor import first_setting
from energon_pack.training.rope import ROPE_KINDS, OwnRope, RopeRule


def rope_rule_of(
    stated: str | None, rules: InputRules, tokens_per_second: float | None = None, is_needed: bool = True
) -> RopeRule | OwnRope | None:
    """Return the `RopeRule` or `OwnRope` that makes a dataset's M-RoPE rows; None: its positions are plain.

    Args:
        stated: `model.rope` of the dataset. If it is `none` or `auto`, the processor's models are asked instead.
        tokens_per_second: of Qwen2.5-VL's vision config; None: as the processor's folder says.
        is_needed: whether batches hold the rows.
    """
    if stated is None:
        raise ValueError("this dataset does not say what positions its model takes (model.rope): pack it again")
    folder = Path(rules.folder)
    kind: str | None = stated
    if stated not in ROPE_KINDS:
        from energon_pack.training.asked_rope import find_rope_kind, make_rope_of_model_class

        kind = find_rope_kind(folder) if rules.media_tokens else "none"
        if kind is None and is_needed:
            return make_rope_of_model_class(rules)
    if kind not in ROPE_KINDS:
        return None
    vision = first_setting(folder, ("config.json",), "vision_config") or {}
    seconds = vision.get("tokens_per_second") if tokens_per_second is None else tokens_per_second
    return RopeRule(kind, int(rules.settings[IMAGE.kind]["merge_size"]), seconds)
