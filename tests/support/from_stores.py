"""Compares what training gets of an object store with what it gets of a folder: batches, one by one.

python -m support.from_stores packs ADDRESS FOLDER PROCESSOR    packs, through Energon, by workers that are forked
python -m support.from_stores lazy CONFIG CONFIG                packs made while they are loaded (configs as JSON)
python -m support.from_stores forked ADDRESS...                 objects, all but the first in processes that are forked
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset
from megatron.energon.epathlib import EPath
from torch.utils.data import DataLoader

from energon_pack.lazy import LazyPackedDataset
from energon_pack.loading import train_arguments
from energon_pack.task_encoder import PackedTaskEncoder
from support.packed import demo_config


def batches(dataset: str, processor: Path, num_workers: int) -> list[Any]:
    """An epoch, in the order of the plan."""
    encoder = PackedTaskEncoder(dataset, str(processor))
    worker = WorkerConfig(rank=0, world_size=1, num_workers=num_workers)
    arguments = train_arguments(dataset, encoder, worker)
    return list(get_savable_loader(get_train_dataset(dataset, repeat=False, **arguments)))


def lazy_batches(packs: LazyPackedDataset, num_workers: int) -> list[Any]:
    """An epoch of packs that are made while they are loaded."""
    return list(DataLoader(packs, batch_size=1, collate_fn=packs.collate, num_workers=num_workers))


def equal(found: list[Any], expected: list[Any]) -> None:
    """Raises AssertionError where batches differ in more than the name of their source."""
    assert len(found) == len(expected) > 3
    for one, other in zip(found, expected, strict=True):
        assert [key[-8:] for key in one["__key__"]] == [key[-8:] for key in other["__key__"]]
        for name, value in other.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(one[name], value), name


def read_forked(addresses: list[str]) -> None:
    """Read an object in this process, and each of the others in one that is forked from it, one after the other."""
    first, *others = map(EPath, addresses)
    first.read_bytes()
    for path in others:
        if (child := os.fork()) == 0:
            path.read_bytes()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def main() -> None:
    """Return the module's output."""
    what, there, here, *rest = sys.argv[1:]
    if what == "forked":
        read_forked([there, here, *rest])
    elif what == "packs":
        equal(batches(there, Path(rest[0]), 2), batches(here, Path(rest[0]), 2))
    else:
        processor, cache, out, max_token_len = json.loads(rest[0])
        demo = Path(here), Path(processor)
        stored, local = (
            LazyPackedDataset(demo_config(demo, Path(cache), Path(out), path, packing__max_token_len=max_token_len))
            for path in (there, here)
        )
        equal(lazy_batches(stored, 2), lazy_batches(local, 2))


if __name__ == "__main__":
    main()
