"""Each model with each real processor: refused before any sample is read, or right."""

from contextlib import suppress
from pathlib import Path

import pytest

from energon_pack.errors import PackError
from energon_pack.models import packaged_models, read_model
from energon_pack.templates import ModelSettings, load_template

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


@pytest.mark.parametrize("processor", GOOD)
def test_another_familys_processor_is_refused_at_once(real: Path, processor: str) -> None:
    """All images were measured first, and each was in the ledger for a token that the processor does not know."""
    taken = set()
    for model in set(packaged_models()) - {"text", "hf"}:
        node = read_model(model)
        settings = ModelSettings(
            node["template"],
            str(real / "processors" / processor),
            factor=node.get("factor"),
            add_special_tokens=node.get("add_special_tokens", False),
            trust_remote_code=True,
        )
        with suppress(PackError):
            load_template(settings)
            taken.add(model)
    assert taken == GOOD[processor]
