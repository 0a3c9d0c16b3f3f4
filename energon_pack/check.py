"""The last look before a dataset is published: does Energon read what was written?"""

import warnings
from itertools import chain
from pathlib import Path

from energon_pack.errors import PackError
from energon_pack.manifest import META_FOLDER
from energon_pack.shards import WrittenShard

_NUM_PACKS = 16


def check(folder: Path, shards: list[WrittenShard], num_packs: int, num_samples: int) -> None:
    """Reconcile totals, and read the first packs through Energon as training will.

    Raises:
        PackError: anything is not as planned; nothing is published then.
    """
    written = sum(shard.num_packs for shard in shards), sum(shard.num_samples for shard in shards)
    if written != (num_packs, num_samples):
        raise PackError(f"{num_packs} packs of {num_samples} samples were planned, {written} written: not published")

    from megatron.energon import WorkerConfig, get_loader, get_val_dataset

    def stop(error: Exception, *_: object) -> None:
        raise PackError(f"Energon can't read {folder}: {type(error).__name__}: {error}; not published") from error

    dataset = get_val_dataset(
        folder,
        split_part="train",
        dataset_config=_typed_yaml(folder),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=stop),
        batch_size=None,
        limit=_NUM_PACKS,
    )
    keys = set()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'pin_memory'")  # no accelerator is needed here
        for pack in get_loader(dataset):
            keys.add(pack.__key__)
            for image in chain.from_iterable(pack.images):
                image.load()
    expected = min(_NUM_PACKS, num_packs)
    if len(keys) != expected:
        raise PackError(f"Energon reads {len(keys)} of the first {expected} packs of {folder}: not published")


def _typed_yaml(folder: Path) -> str:
    return "typed.yaml" if (folder / META_FOLDER / "typed.yaml").exists() else "dataset.yaml"
