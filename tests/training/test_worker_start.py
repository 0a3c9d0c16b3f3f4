"""The process that forks a loader's workers loads and tries the processor, no worker does; spawned ones are told."""

import multiprocessing
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from energon_pack.dataset.encoder import pack_encoder
from energon_pack.dataset.manifest import read_manifest
from energon_pack.trainers.on_disk import PackedDataset
from energon_pack.training.worker_start import _waiting
from support.marks import slow


class Known(Dataset[Any]):
    """Tells what the process that asks knows of the processor of packs."""

    def __init__(self, packs: PackedDataset):
        self.packs = packs

    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: int) -> tuple[list[str], bool]:
        processor = self.packs.encoder.members.media_processor
        return sorted(processor._tried), "_image_processor" in vars(processor._call)


def random_values() -> list[float]:
    return [random.random(), np.random.rand(), torch.rand(()).item()]


def in_worker(folder: Path, processor: Path, method: str) -> list[Any]:
    packs = PackedDataset(folder, str(processor))
    if method != "fork":
        packs.encoder.members.media_processor.try_all()
    loader = DataLoader(
        Known(packs),
        batch_size=None,
        num_workers=1,
        multiprocessing_context=method,
        generator=torch.Generator(),
    )
    return [*loader]


@pytest.mark.parametrize(("method", "is_loaded"), [("fork", True), slow("spawn", False), slow("forkserver", False)])
def test_a_worker_begins_with_what_its_parent_tried(
    demo_folder: Path, demo: tuple[Path, Path], method: str, is_loaded: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    before = random.getstate(), np.random.get_state(), torch.get_rng_state(), torch.get_num_threads(), {**os.environ}
    drawn = random_values()
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])
    assert in_worker(demo_folder, demo[1], method) == [[["image", "video"], is_loaded]] * 2
    assert random_values() == drawn
    assert (torch.get_num_threads(), {**os.environ}) == before[3:]
    assert "Exception ignored" not in capfd.readouterr().err


def test_a_dataset_that_no_loader_reads_tries_nothing(demo_folder: Path, demo: tuple[Path, Path]) -> None:
    """Nor do another process of the training, a copy, and a loader without workers."""
    packs = PackedDataset(demo_folder, str(demo[1]))
    processor = packs.encoder.members.media_processor
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join()
    multiprocessing.reduction.ForkingPickler.dumps(packs)
    assert [*DataLoader(Known(packs), batch_size=None)] == [[[], False]] * 2
    assert processor in _waiting


def test_an_error_of_the_trial_is_the_workers(
    demo_folder: Path, demo: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no such processor here")

    monkeypatch.setattr("energon_pack.training.processor_calls.load_full_processor", fail)
    packs = PackedDataset(demo_folder, str(demo[1]))
    with_images = next(
        number for number in range(len(packs)) if any(getattr(m, "media", {}) for m in packs.members(0, number))
    )
    with pytest.raises(ValueError, match="no such processor here"):
        next(iter(DataLoader(packs, sampler=[with_images], collate_fn=packs.collate, num_workers=1)))
    assert "Exception ignored" not in capfd.readouterr().err


def test_packs_without_media_try_nothing(
    demo_folder: Path, demo: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = read_manifest(demo_folder)
    of_texts = {name: value for name, value in manifest["hashes"].items() if name != "media.crc32"}
    monkeypatch.setattr("energon_pack.dataset.encoder.read_manifest", lambda _: manifest | {"hashes": of_texts})
    assert pack_encoder(demo_folder, str(demo[1])).members.media_processor not in _waiting
