"""Training on what lies on an object store: the batches are those of a folder, through Energon and without."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset
from torch.utils.data import DataLoader

from energon_pack.config import PackConfig
from energon_pack.lazy import LazyPackedDataset
from energon_pack.loading import manifest_of, train_arguments
from energon_pack.pack import pack
from energon_pack.run.stores import energon_address
from energon_pack.task_encoder import PackedTaskEncoder
from support.running import need_torchvision
from support.stores import Bucket

pytestmark = pytest.mark.usefixtures("one_thread")
Make = Callable[..., PackConfig]
LEN = 1024


@pytest.fixture(autouse=True)
def _torchvision() -> None:
    need_torchvision()


def batches(dataset: str, processor: Path, num_workers: int) -> list[Any]:
    """An epoch, in the order of the plan."""
    encoder = PackedTaskEncoder(dataset, str(processor))
    worker = WorkerConfig(rank=0, world_size=1, num_workers=num_workers)
    arguments = train_arguments(dataset, encoder, worker)
    return list(get_savable_loader(get_train_dataset(dataset, repeat=False, **arguments)))


def equal(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected) > 3
    for one, other in zip(found, expected, strict=True):
        assert [key[-8:] for key in one["__key__"]] == [
            key[-8:] for key in other["__key__"]
        ]  # after what names a source
        for name, value in other.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(one[name], value), name


@pytest.mark.parametrize("num_workers", [0, 2])
def test_energon_reads_the_same_batches_from_a_bucket(
    config: Make, demo: tuple[Path, Path], bucket: Bucket, tmp_path: Path, num_workers: int
) -> None:
    """Workers are forked from a process that has read its manifest from there."""
    run = config(demo[0], packing__max_token_len=LEN, source__limit=40)
    pack(run)
    pack(replace(run, output=replace(run.output, dir=f"{bucket.address}/out"), cache_dir=str(tmp_path / "cache")))
    address = energon_address(f"{bucket.address}/out/packed")
    local = str(tmp_path / "out" / "packed")
    equal(batches(address, demo[1], num_workers), batches(local, demo[1], num_workers))
    assert manifest_of(address) == manifest_of(f"{bucket.address}/out/packed") == manifest_of(local)


def test_a_blend_may_name_datasets_in_buckets(
    config: Make, demo: tuple[Path, Path], bucket: Bucket, tmp_path: Path
) -> None:
    run = config(demo[0], packing__max_token_len=LEN, source__limit=40, output__dir=f"{bucket.address}/out")
    pack(run)
    address = energon_address(f"{bucket.address}/out/packed")
    blend = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {"train": {"blend": [{"path": address, "weight": 1}]}},
    }
    (tmp_path / "blend.yaml").write_text(yaml.safe_dump(blend))
    assert manifest_of(str(tmp_path / "blend.yaml")) == manifest_of(address)


def test_packs_are_made_of_a_source_in_a_bucket_while_they_are_loaded(
    config: Make, demo: tuple[Path, Path], bucket: Bucket
) -> None:
    """By workers that are forked, too: the threads of a client are not in them."""
    source = bucket.put_folder(demo[0], "data")
    stored, local = (LazyPackedDataset(config(path, packing__max_token_len=LEN)) for path in (source, demo[0]))
    for num_workers in (0, 2):
        there, here = (
            list(DataLoader(packs, batch_size=1, collate_fn=packs.collate, num_workers=num_workers))
            for packs in (stored, local)
        )
        equal(there, here)


def test_what_is_no_dataset_in_a_bucket_is_said(bucket: Bucket) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing is no dataset that energon_pack packed: there is no s3://"):
        manifest_of(f"{bucket.address}/nothing")
