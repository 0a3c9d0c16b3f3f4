"""Every loader's batches, all kept until its end, are those of a loader without workers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset
from torch.utils.data import DataLoader

from energon_pack import PackedTaskEncoder, train_arguments
from energon_pack.trainers.on_disk import PackedDataset
from energon_pack.training import kept_memory
from energon_pack.webdataset import packs, shard_urls
from support.batches import same
from support.marks import slow


def batches(reader: str, folder: Path, processor: str) -> Iterator[Any]:
    if reader == "energon":
        encoder = PackedTaskEncoder(folder, processor)
        arguments = train_arguments(folder, encoder, WorkerConfig(rank=0, world_size=1, num_workers=1))
        yield from get_savable_loader(get_train_dataset(folder, **arguments, repeat=False))
    elif reader == "webdataset":
        stages = packs(folder, processor)
        dataset = wds.WebDataset(shard_urls(folder, "train"), shardshuffle=False).compose(stages)
        yield from DataLoader(dataset, batch_size=1, collate_fn=stages.collate, num_workers=1)
    else:
        make: Any = DataLoader
        if reader == "stateful":
            make = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
        dataset = PackedDataset(folder, processor)
        yield from make(dataset, batch_size=1, collate_fn=dataset.collate, num_workers=2)


@pytest.mark.parametrize("reader", [slow("torch"), slow("stateful"), slow("energon"), slow("webdataset")])
def test_a_loaders_batches_stay_as_they_were(
    demo_folder: Path, demo: tuple[Path, Path], reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo's pictures are small, so that here every tensor of pixels counts as big."""
    monkeypatch.setattr(kept_memory, "SMALL_BYTES", 100)
    monkeypatch.setattr(kept_memory, "SMALL_BYTES", 100)
    dataset = PackedDataset(demo_folder, str(demo[1]))
    alone = {batch["__key__"][0]: batch for batch in (dataset.collate([dataset[n]]) for n in range(len(dataset)))}
    kept = [*batches(reader, demo_folder, str(demo[1]))]
    assert kept_memory._mapped
    assert {batch["__key__"][0] for batch in kept} == alone.keys()
    assert [batch["__key__"] for batch in kept if not same(batch, alone[batch["__key__"][0]])] == []
