"""Choose the rule of M-RoPE for the batches of a dataset."""

from pathlib import Path

from energon_pack.samples.input_rules import InputRules
from energon_pack.samples.media.kinds import IMAGE
from energon_pack.templates.folder import said
from energon_pack.training.own_rope import OwnRope
from energon_pack.training.rope import ROPE_KINDS, Rope


def rope_of(
    stated: str | None, rules: InputRules, tokens_per_second: float | None = None, is_needed: bool = True
) -> Rope | OwnRope | None:
    """Return the rule of M-RoPE for the batches of a dataset; None: plain positions.

    If the dataset states `none` or `auto`, the models that go with its processor are asked instead.

    Args:
        stated: `model.rope` of the dataset.
        rules: of the dataset.
        tokens_per_second: of Qwen2.5-VL's vision config; None: as the processor's folder says.
        is_needed: whether batches hold the rows.

    Raises:
        ValueError: the dataset does not say; or its models need rows that none of the rules makes.
    """
    if stated is None:
        raise ValueError("this dataset does not say what positions its model takes (model.rope): pack it again")
    folder = Path(rules.folder)
    kind: str | None = stated
    if stated not in ROPE_KINDS:
        from energon_pack.training.found_rope import found_rope, own_rope_of  # builds small models

        kind = found_rope(folder) if rules.media_tokens else "none"
        if kind is None and is_needed:
            return own_rope_of(rules)
    if kind not in ROPE_KINDS:
        return None
    vision = said(folder, ("config.json",), "vision_config") or {}
    seconds = vision.get("tokens_per_second") if tokens_per_second is None else tokens_per_second
    return Rope(kind, int(rules.settings[IMAGE.kind]["merge_size"]), seconds)
