"""What a model that Automodel has built is asked before a training: whether it keeps the members of packs apart.

Against a stand-in of Automodel's module; `support/with_automodel_models.py` asks its own models.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from energon_pack.automodel import PackRows, check_automodel, check_rows
from energon_pack.errors import PackError


class Built(torch.nn.Module):
    """A model as Automodel builds them."""

    def __init__(self, attention: str, told: str, metadata: bool, has_thd: bool, own: bool):
        super().__init__()
        self.attention, self.contract = (
            attention,
            SimpleNamespace(packed_mask_type=told, requires_packed_sequence_metadata=metadata),
        )
        self.ModelCapabilities = SimpleNamespace(supports_thd=has_thd)
        if own:
            self.backend = SimpleNamespace(attn=attention)


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in of the module of Automodel that says what a model wants."""
    name = "nemo_automodel.components.models.common.packing"
    module: Any = ModuleType(name)
    module.configure_packing_for_models = lambda models: models[0].contract
    module.get_model_attn_implementation = lambda model: model.attention
    monkeypatch.setitem(sys.modules, name, module)
    for parent in ("nemo_automodel", *(f"nemo_automodel.components{of}" for of in ("", ".models", ".models.common"))):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    return module


def rows_of(layout: str, mask: str | None, metadata: bool = False, planned: str = "positions") -> Any:
    encoder: Any = SimpleNamespace(layout=layout, mask=planned)
    packs: Any = SimpleNamespace(encoder=encoder)
    return PackRows(lambda: packs, mask, metadata)


OF_TRANSFORMERS = {"own": False, "metadata": False, "has_thd": False}
QWEN3_5 = {"own": True, "metadata": True, "has_thd": False}
QWEN3_VL_MOE = {"own": True, "metadata": False, "has_thd": True}


@pytest.mark.parametrize(
    ("model", "rows", "said"),
    [
        (Built("flash_attention_2", "flash_varlen", **OF_TRANSFORMERS), rows_of("neat", "flash_varlen"), None),
        (Built("sdpa", "block_causal", **OF_TRANSFORMERS), rows_of("neat", "positions"), None),
        (Built("sdpa", "block_causal", **OF_TRANSFORMERS), rows_of("neat", "block_causal"), None),
        (
            Built("sdpa", "block_causal", **OF_TRANSFORMERS),
            rows_of("neat", "flash_varlen"),
            "block_causal or positions",
        ),
        (Built("eager", "block_causal", **OF_TRANSFORMERS), rows_of("neat", "block_causal"), "mask: positions"),
        (Built("sdpa", "block_causal", **OF_TRANSFORMERS), rows_of("neat", "positions", planned="dict4d"), "=dict4d"),
        (Built("te", "block_causal", **QWEN3_5), rows_of("neat", "metadata"), None),
        (Built("te", "block_causal", **QWEN3_5), rows_of("neat", "positions"), "mask: metadata"),
        (Built("sdpa", "block_causal", **QWEN3_5), rows_of("neat", "block_causal", True), None),
        (Built("sdpa", "block_causal", **QWEN3_5), rows_of("neat", "block_causal"), "metadata: true"),
        (Built("fa4", "document_ids", **QWEN3_5), rows_of("neat", "document_ids", True), None),
        (Built("te", "block_causal", **QWEN3_VL_MOE), rows_of("thd", None), None),
        (Built("sdpa", "block_causal", **QWEN3_VL_MOE), rows_of("thd", None), "packing=thd"),
        (Built("te", "block_causal", **QWEN3_VL_MOE), rows_of("neat", "positions"), "packing=thd and te"),
        (Built("sdpa", "block_causal", **QWEN3_VL_MOE), rows_of("neat", "block_causal"), "packing=thd and te"),
    ],
)
def test_a_model_in_which_members_would_see_each_other_is_refused(
    theirs: Any, model: Built, rows: Any, said: str | None
) -> None:
    """Each of these was tried with Automodel's own models where a CPU can: see `support/with_automodel_models.py`."""
    loader = SimpleNamespace(dataset=rows)
    sizes = SimpleNamespace(cp_size=1, pp_size=1)
    recipe = SimpleNamespace(model_parts=[model], dataloader=loader, val_dataloader=None, mesh_context=sizes)
    if said is None:
        check_automodel(recipe)
    else:
        with pytest.raises(PackError, match=said):
            check_automodel(recipe)
    sizes.cp_size = 2
    with pytest.raises(PackError, match="cp_size=2: packs were not tried with it; set 1"):
        check_automodel(recipe)


def test_an_automodel_that_patches_transformers_is_refused(theirs: Any) -> None:
    del theirs.configure_packing_for_models
    with pytest.raises(PackError, match="functions of transformers that it replaces"):
        check_rows([Built("sdpa", "block_causal", **OF_TRANSFORMERS)], rows_of("neat", "positions"))
