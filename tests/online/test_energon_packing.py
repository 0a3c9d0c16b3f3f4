"""Energon packs samples while it reads them, by the settings of a packed dataset: to compare with packs on disk."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset

from energon_pack.config import PackConfig
from energon_pack.loading import train_arguments
from energon_pack.task_encoder import PackedTaskEncoder
from support.packed import packed as make_packed
from support.packed import prepare, typed
from support.running import need_torchvision

TOKENS = 1024


@pytest.fixture(scope="module")
def source(demo: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_torchvision()
    folder = tmp_path_factory.mktemp("source") / "demo"
    shutil.copytree(demo[0], folder)
    return prepare(folder, typed("MultiMixQASample", "multi_mix_qa"))


@pytest.fixture(scope="module")
def offline(demo: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("offline")
    run = PackConfig()
    from support.packed import demo_config

    run = demo_config(demo, out / "cache", out, packing__max_token_len=TOKENS, max_skipped=1.0)
    return make_packed(run)


def loader(source: Path, encoder: PackedTaskEncoder, num_workers: int = 0, **more: Any) -> Any:
    worker = WorkerConfig(rank=0, world_size=1, num_workers=num_workers)
    arguments = {**train_arguments(source, encoder, worker), **more}
    return get_savable_loader(get_train_dataset(source, **arguments))


def drop(offline: Path, demo: tuple[Path, Path], **more: Any) -> PackedTaskEncoder:
    options = {"on_bad_member": "drop", "tokens_per_second": 2.0, "packing_buffer_size": 16, **more}
    return PackedTaskEncoder(offline, str(demo[1]), **options)


def test_x(source: Path, offline: Path, demo: tuple[Path, Path]) -> None:
    ids = []
    for batch in loader(source, drop(offline, demo), repeat=False):
        print(batch["input_ids"].shape, batch["sample_ids"], batch["__key__"])
        ids += batch["sample_ids"][0]
    print(len(ids), len(set(ids)))
