"""Each model with each real processor: refused before any sample is read, or right."""

from pathlib import Path

import pytest

from energon_pack.errors import PackError
from energon_pack.templates.models import packaged_models, read_model
from energon_pack.templates.processor import load_template
from support.models import of_model

#: Real processors, and the models they may be used with. `text` takes any, and `hf` any with images.
GOOD = {
    "gemma3": {"gemma3"},
    "granite_docling_idefics3": {"idefics3", "smolvlm"},
    "internvl3_hf": {"internvl3"},
    "kimi_k25": {"kimi_k2_5", "kimi_vl"},
    "llama3_text": set(),
    "llava_onevision_qwen2_hf": {"llava_onevision"},
    "qwen2_5_text": set(),
    "qwen2_5_vl": {"llava_onevision2", "qwen2_5_vl", "qwen2_vl"},
    "qwen2_vl": {"llava_onevision2", "qwen2_5_vl", "qwen2_vl"},  # the same rules
    "qwen3_vl": {"qwen3_5", "qwen3_vl"},
}


#: Their tokenizers take seconds to build, for each family again; or another processor has the same rules.
LATER = ("gemma3", "kimi_k25", "llama3_text", "llava_onevision_qwen2_hf", "qwen2_5_text", "qwen2_vl")


@pytest.mark.parametrize("processor", [pytest.param(p, marks=[pytest.mark.slow] * (p in LATER)) for p in GOOD])
def test_another_familys_processor_is_refused_at_once(real: Path, processor: str) -> None:
    """All images were measured first, and each was in the ledger for a token that the processor does not know."""
    same: dict[tuple[object, ...], bool] = {}  # models that differ in their names alone
    taken = set()
    for model in set(packaged_models()) - {"text", "hf"}:
        node = read_model(model)
        how = node["template"], node.get("factor"), node.get("add_special_tokens", False)
        if how not in same:
            same[how] = _is_taken(str(real / "processors" / processor), *how)
        if same[how]:
            taken.add(model)
    assert taken == GOOD[processor]


def _is_taken(processor: str, template: str, factor: int | None, add_special_tokens: bool) -> bool:
    settings = of_model(
        template, processor, factor=factor, add_special_tokens=add_special_tokens, trust_remote_code=True
    )
    try:
        load_template(settings)
    except PackError:
        return False
    return True
