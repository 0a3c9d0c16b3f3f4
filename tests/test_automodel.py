"""Packs in NeMo Automodel: batches under its names, its YAMLs, and what its models are asked before a training.

The slow test runs `support/with_automodel.py` in an environment that has nemo_automodel.
"""

import importlib
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from energon_pack.automodel import (
    EpochCollate,
    PackRows,
    build_media_inputs,
    build_thd_text_inputs,
    check_automodel,
    check_members_kept_apart,
    collate,
    dataset,
    neat_inputs,
)
from energon_pack.config.compose import compose_config
from energon_pack.errors import PackError
from energon_pack.training.batch import PackedBatch
from energon_pack.training.layout import Member, RowForm
from energon_pack.training.layout import lay_out_neat_rows as neat_layout
from energon_pack.training.megatron_layouts import thd as thd_layout
from support.automodel import pack_overrides
from support.environments import python_of
from support.marks import slow
from support.running import ROOT, run

RECIPES = ROOT / "recipes" / "automodel"
YAMLS = sorted(RECIPES.glob("*.yaml"))
#: what every neat batch has, and what `mask` adds
TEXT = {"input_ids", "labels", "position_ids", "mm_token_type_ids", "_packed_seq_ids"}
ADDED = {
    "flash_varlen": {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"},
    "positions": {"use_cache"},
    "block_causal": {"attention_mask"},
    "document_ids": {"attention_mask"},
    "metadata": {"packed_token_indices", "cu_seqlens", "max_seqlen"},
}
Overrides = Callable[..., list[str]]


def member(*ids: int) -> Member:
    tokens = torch.tensor(ids)
    labels = torch.cat([torch.tensor([-100]), tokens[1:]])
    return Member(tokens, labels, torch.zeros_like(tokens), torch.arange(len(ids)).expand(3, -1))


#: a row of 3 + 2 tokens, and one of 4
ROWS = [[member(11, 12, 13), member(21, 22)], [member(31, 32, 33, 34)]]
LENGTHS = [[3, 2], [4]]


def batch_of(mask: str, metadata: bool = False) -> dict[str, Any]:
    return neat_inputs(PackedBatch(neat_layout(ROWS, RowForm(shifted=True, rope=True))), LENGTHS, mask, metadata)


# ------------------------------------------------------------------------------------------------------------ batches


def test_a_neat_batch() -> None:
    """Labels are shifted: the last token of a member would else learn the first of the next."""
    batch = batch_of("flash_varlen")
    assert batch["input_ids"].tolist() == [[11, 12, 13, 21, 22], [31, 32, 33, 34, 0]]
    assert batch["labels"].tolist() == [[12, 13, -100, 22, -100], [32, 33, 34, -100, -100]]
    assert batch["_packed_seq_ids"].tolist() == [[1, 1, 1, 2, 2], [1, 1, 1, 1, 0]]
    assert batch["position_ids"].tolist() == [[[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]]] * 3
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 5, 9, 10]
    assert batch["max_length_q"] == 4


def test_what_keeps_members_apart() -> None:
    mask = batch_of("block_causal")["attention_mask"]
    assert mask.shape == (2, 1, 5, 5)
    assert mask.dtype == torch.bool
    assert mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 1, 1],
    ]
    assert not mask[1, 0, 4].any()
    assert batch_of("document_ids")["attention_mask"].tolist() == [[1, 1, 1, 2, 2], [1, 1, 1, 1, 0]]
    plain = batch_of("positions")
    assert plain["position_ids"].shape == (4, 2, 5)
    assert plain["use_cache"] is False


def test_metadata_counts_in_each_row() -> None:
    batch = batch_of("metadata")
    assert batch["packed_token_indices"].tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 3, -1]]
    assert batch["cu_seqlens"].tolist() == [[0, 3, 5], [0, 4, -1]]
    assert batch["cu_seqlens"].dtype == torch.int32
    assert batch["max_seqlen"] == 4
    assert batch_of("document_ids", metadata=True).keys() == TEXT | ADDED["document_ids"] | ADDED["metadata"]


def test_a_thd_batch_is_one_row_with_lengths() -> None:
    batch = build_thd_text_inputs(PackedBatch(thd_layout(ROWS[0], RowForm(multiple=4, rope=True, width=12))))
    assert batch["input_ids"].tolist() == [[11, 12, 13, 0, 21, 22, 0, 0, 0, 0, 0, 0]]
    assert batch["labels"].tolist() == [[12, 13, -100, -100, 22, *[-100] * 7]]
    assert batch["position_ids"].shape == (3, 1, 12)
    assert batch["seq_lens"].tolist() == [[3, 2]]
    assert batch["seq_lens_padded"].tolist() == [[4, 8]]
    assert batch["qkv_format"] == "thd"


def test_media_and_how_many_there_are() -> None:
    """A count where there is none would have Automodel's pipelines look for media that are not there."""
    given = {"pixel_values": torch.ones(6, 2), "image_grid_thw": torch.ones(3, 3, dtype=torch.int64)}
    counts = {"n_images_per_sample": torch.tensor([1, 2]), "n_videos_per_sample": torch.tensor([0, 0])}
    batch = PackedBatch({**given, **counts, "media_keys": sorted(given)})
    found = build_media_inputs(batch, "bfloat16", 2)
    assert found.keys() == {"pixel_values", "image_grid_thw", "n_images_per_sample"}
    assert found["pixel_values"].dtype == torch.bfloat16
    assert found["image_grid_thw"].dtype == torch.int64
    assert build_media_inputs(batch, None, 1)["n_images_per_sample"].tolist() == [3]
    assert build_media_inputs(batch, None, 2)["pixel_values"].dtype == torch.float32


# ------------------------------------------------------------------------------------------------------------ datasets


@pytest.fixture
def overrides(demo: tuple[Path, Path], cache: Path) -> Overrides:
    """What a YAML has in `pack`, for the demo."""
    return partial(pack_overrides, *demo, cache)


@pytest.mark.parametrize("mask", [mask if mask in ("block_causal", "metadata") else slow(mask) for mask in ADDED])
def test_a_batch_has_the_keys_of_automodels_own_and_no_others(overrides: Overrides, mask: str) -> None:
    """Its recipe hands all of them to the model."""
    rows = dataset(overrides("packing.group_by=none"), mask=mask)
    batch = collate([rows[0], rows[1]], processor=None)
    assert batch.keys() - {"pixel_values", "image_grid_thw", "n_images_per_sample"} == TEXT | ADDED[mask]


def test_training_and_validation_share_no_sample(overrides: Overrides) -> None:
    pack = overrides("output.splits.val=0.3")
    ids = []
    for split in ("train", "val"):
        rows = dataset(pack, mask="positions", split=split)
        ids.append({member.sample_id for i in range(len(rows)) for member in rows[i].pack.members})
    assert min(map(len, ids)) > 9
    assert not ids[0] & ids[1]


def test_each_epoch_has_packs_of_its_own(overrides: Overrides) -> None:
    """Automodel's scheduler tells its collate function of epochs, not the dataset."""
    rows = dataset(overrides(), mask="positions")
    collated = rows.robust_collate(collate)
    assert isinstance(collated, EpochCollate)
    first = collated([rows[0]])["input_ids"]
    collated.set_epoch(1)
    assert rows[0].pack.key.split("_")[-2] == "001"
    collated.set_epoch(0)
    assert torch.equal(collated([rows[0]])["input_ids"], first)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mask": "flash"}, "mask=flash: one of flash_varlen, positions, block_causal, document_ids, metadata"),
        ({"mask": "positions", "pixels": "bf16"}, "pixels=bf16: a dtype of torch"),
        ({"mask": "positions", "pixels": "uint8"}, "pixels=uint8: a dtype of torch for numbers with a fraction"),
        ({"mask": "positions", "loss_weight": "sqrt"}, "loss_weight=sqrt: Automodel's training step has no place"),
        ({}, "mask=None with layout=neat: one of flash_varlen"),
        ({"mask": "positions", "layout": "thd"}, "mask=positions with layout=thd: leave it out"),
        ({"mask": "positions", "layout": "mlm"}, "layout=mlm has none"),
    ],
)
def test_what_makes_no_sense_is_refused(overrides: Overrides, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        len(dataset(overrides(), **settings))


# ------------------------------------------------------------------------------------------------------------- recipes


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_what_a_yaml_names_is_there(path: Path) -> None:
    """Overrides compose, targets of ours are importable, and what Automodel would pack itself is left out."""
    config = yaml.safe_load(path.read_text())
    assert "packed_sequence" not in config
    for name in ("dataset", "validation_dataset"):
        node = dict(config[name])
        assert target(node.pop("_target_")) is dataset
        packing = compose_config([re.sub(r"\$\{\w+\}", "/data", override) for override in node.pop("pack")]).packing
        settings = {key: value for key, value in node.items() if key not in ("split", "pad_to")}
        assert isinstance(dataset([], **settings), PackRows)
        assert ("mask" in node) == (packing.layout.value == "neat")
        assert packing.need_image
    assert config["dataset"] == {**config["validation_dataset"], "split": "train"}
    for name in ("dataloader", "validation_dataloader"):
        assert target(config[name]["collate_fn"]["_target_"]) is collate
    assert config["step_scheduler"]["max_steps"] > 0


def target(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def test_experts_have_rows_of_fixed_width() -> None:
    config = yaml.safe_load((RECIPES / "qwen3_vl_30b_a3b.yaml").read_text())
    assert config["distributed"]["ep_size"] == 8
    assert config["dataset"]["pad_to"] == config["validation_dataset"]["pad_to"] == "max_token_len"
    assert config["step_scheduler"]["local_batch_size"] == 1


@pytest.mark.slow
def test_with_automodels_own_interfaces(tmp_path: Path) -> None:
    """`tests/support/with_automodel.py` and `with_automodel_models.py`, where nemo_automodel is."""
    try:
        python = python_of("automodel")
    except OSError as error:
        pytest.skip(str(error))
    options = ("-p", "no:cacheprovider", "-W", "ignore", f"--basetemp={tmp_path / 'tests'}", f"--rootdir={ROOT}")
    files = [ROOT / "tests" / "support" / f"with_automodel{part}.py" for part in ("", "_models")]
    out = run(python, "-m", "pytest", *options, *files, cwd=ROOT, PYTHONPATH=str(ROOT))
    assert "passed" in out
    assert re.findall(r"(\d+) skipped", out) == ([] if torch.cuda.is_available() else ["2"])  # flash attention


# What a model that Automodel has built is asked before a training: whether it keeps the members of packs apart.


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
        check_members_kept_apart([Built("sdpa", "block_causal", **OF_TRANSFORMERS)], rows_of("neat", "positions"))
