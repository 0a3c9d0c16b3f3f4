"""Megatron-Bridge's own Energon builder on packs, without a GPU: what its encoder says, and what ours hands over.

    python bridge_batches.py OUT.json PACKS MODEL

Bridge imports Transformer Engine, which there is for GPUs alone, at peft/lora_layers.py:20: here it is a stand-in, of
which nothing is called.
"""

# ruff: noqa: E402

import importlib.metadata
import json
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from energon_pack import PackedDataset, prepare_torchvision

prepare_torchvision()
vars(typing).setdefault("override", lambda method: method)  # of Python 3.12
import megatron.core.models.gpt  # noqa: F401
import megatron.core.utils as core
import torch
from packaging.version import Version

_version, _ENGINE = importlib.metadata.version, "transformer-engine"
vars(importlib.metadata)["version"] = lambda name: "2.10" if name.replace("_", "-") == _ENGINE else _version(name)
core.get_te_version = lambda: Version("2.10")
for name in ("", ".pytorch", ".pytorch.float8_tensor", ".common", ".common.recipe"):
    sys.modules[f"transformer_engine{name}"] = MagicMock()

import bridge_packs
import megatron.bridge.data.builders.energon as theirs
from megatron.bridge.data.base import DatasetBuildContext


def config(packs: str, model: str) -> Any:
    encoder = theirs.QwenVLEnergonTaskEncoderConfig(hf_processor_path=model)
    return theirs.EnergonDatasetConfig(
        path=packs, seq_length=1024, micro_batch_size=1, num_workers=0, do_validation=False, task_encoder=encoder
    )


def batches(dataset: Any) -> Any:
    """The train batches, as Bridge's training loop gets them."""
    dataset.finalize()
    context = DatasetBuildContext(train_samples=10, valid_samples=0, test_samples=0, tokenizer=None, pg_collection=None)
    return theirs.EnergonDatasetBuilder(dataset).build(context)[0]


def main(out: str, packs: str, model: str) -> None:
    try:
        next(batches(config(packs, model)))
        said = ""
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    parts = ("model", "ddp", "train")
    cfg = SimpleNamespace(dataset=config(packs, model), **{name: SimpleNamespace() for name in parts})
    on_packs: Any = bridge_packs.on_packs
    found = batches(on_packs(cfg).dataset)
    dataset = PackedDataset(packs, model, layout="thd")
    pairs = [(next(found), dataset.collate([dataset[number]])) for number in range(5)]
    names = ("input_ids", "labels", "position_ids", "cu_seqlens_q", "loss_mask")
    equal = [all(torch.equal(batch[name], other[name]) for name in names) for batch, other in pairs]
    Path(out).write_text(json.dumps({"theirs": said, "in the order of the plan": equal}))


if __name__ == "__main__":
    main(*sys.argv[1:])
