"""The last look before a dataset is published: does Energon read what was written?"""

import json
import warnings
from pathlib import Path
from typing import Any

from energon_pack.errors import PackError
from energon_pack.manifest import META_FOLDER
from energon_pack.packs import named_parts
from energon_pack.shards import WrittenShard

_NUM_PACKS = 16


def check(folder: Path, shards: list[WrittenShard], num_packs: int, num_samples: int) -> None:
    """Reconcile totals, and read the first packs through Energon as training will; pixels are not decoded.

    Raises:
        PackError: anything is not as planned; nothing is published then.
    """
    written = sum(shard.num_packs for shard in shards), sum(shard.num_samples for shard in shards)
    if written != (num_packs, num_samples):
        raise PackError(f"{num_packs} packs of {num_samples} samples were planned, {written} written: not published")

    for split in dict.fromkeys(shard.split for shard in shards):
        num_there = sum(shard.num_packs for shard in shards if shard.split == split)
        packs = _first_packs(folder, split)
        if len(packs) != min(_NUM_PACKS, num_there):
            raise PackError(
                f"Energon reads {len(packs)} of the first {_NUM_PACKS} packs of {folder}, {split}: not published"
            )
        for key, pack in packs.items():
            named = named_parts(json.loads(pack["json"]))
            if named != {part for part in pack if not part.startswith("__")} - {"json"}:
                raise PackError(f"the parts of {key} are not those its JSON names: not published")


def _first_packs(folder: Path, split: str) -> dict[str, Any]:
    from megatron.energon import Cooker, DefaultTaskEncoder, WorkerConfig, get_loader, get_val_dataset, stateless

    def stop(error: Exception, *_: object) -> None:
        raise PackError(f"Energon can't read {folder}: {type(error).__name__}: {error}; not published") from error

    class Raw(DefaultTaskEncoder):
        decoder = None
        cookers = [Cooker(stateless(lambda sample: sample))]  # noqa: RUF012 (Energon's own name and type)

    dataset = get_val_dataset(
        folder,
        split_part=split,
        dataset_config=_crude_yaml(folder),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=stop),
        batch_size=None,
        limit=_NUM_PACKS,
        task_encoder=Raw(),
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'pin_memory'")  # no accelerator is needed here
        return {pack["__key__"]: pack for pack in get_loader(dataset)}


def _crude_yaml(folder: Path) -> str:
    return "crude.yaml" if (folder / META_FOLDER / "crude.yaml").exists() else "dataset.yaml"
