"""Check a dataset before it is published: does Energon read the packs that were written?"""

import json
import warnings
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energon_pack.dataset.referenced import LoadedMedia
from energon_pack.errors import PackError, amount
from energon_pack.run.files import META_FOLDER
from energon_pack.run.heavy_imports import importing
from energon_pack.run.stores import energon_address
from energon_pack.samples.flavors.base import PackedFlavor
from energon_pack.samples.flavors.references import all_parts
from energon_pack.samples.tokens_part import TOKENS

if TYPE_CHECKING:  # the process that checks needs none of the writing code
    from energon_pack.dataset.shards import WrittenShard

_NUM_PACKS = 16


@dataclass(frozen=True)
class CheckJob:
    """A dataset, and how many packs it should have."""

    folder: str  # or the address, as Energon writes it
    dataset_yaml: str  # the YAML file in use, which says whether it is a crude dataset
    flavor: PackedFlavor
    num_packs: dict[str, int]  # by split
    root: str | None  # the place of the source, if packs refer to media in it; None: they hold copies


def reconcile(shards: "list[WrittenShard]", num_packs: int, num_samples: int) -> None:
    """Compare the written packs and samples with the plan.

    Raises:
        PackError: the numbers differ; nothing is published then.
    """
    written = sum(shard.num_packs for shard in shards), sum(shard.num_samples for shard in shards)
    if written != (num_packs, num_samples):
        planned = f"{amount(num_packs, 'pack')} of {amount(num_samples, 'sample')}"
        raise PackError(f"{planned} were planned, {written} written: not published")


def job_of(folder: Path | str, flavor: PackedFlavor, shards: "list[WrittenShard]", root: str | None) -> CheckJob:
    """Build the job for `check` from the shards that were written.

    Args:
        folder: an address if it is a string; `put_for_check` wrote its metadata.
        root: the place of the source, if packs refer to media in it; None: they hold copies.
    """
    num_packs: Counter[str] = Counter()
    for shard in shards:
        num_packs[shard.split] += shard.num_packs
    if isinstance(folder, str):
        return CheckJob(energon_address(folder), "crude.yaml", flavor, dict(num_packs), root)
    return CheckJob(str(folder), _crude_yaml(folder), flavor, dict(num_packs), root)


def check(job: CheckJob) -> None:
    """Read the first packs through Energon as training will; pixels are not decoded. Imports torch.

    Raises:
        PackError: something differs from the plan; nothing is published then.
    """
    read = LoadedMedia(job.root)
    for split, num_there in job.num_packs.items():
        packs = _first_packs(job.folder, job.dataset_yaml, split)
        if len(packs) != min(_NUM_PACKS, num_there):
            raise PackError(
                f"Energon reads {len(packs)} of the first {_NUM_PACKS} packs of {job.folder}, {split}: not published"
            )
        for key, pack in packs.items():
            parts, value = all_parts(pack, json.loads(pack["json"]), job.flavor, read)
            named = job.flavor.parts(value)
            if set(chain.from_iterable(named)) != {part for part in parts if not part.startswith("__")} - {
                "json",
                TOKENS,
            }:
                raise PackError(f"the parts of {key} are not those its JSON names: not published")


def get_ready(_: None = None) -> None:
    """Import the packages that `check` will need."""
    with importing():
        import megatron.energon  # noqa: F401


def _first_packs(folder: str, dataset_yaml: str, split: str) -> dict[str, Any]:
    with importing():
        from megatron.energon import Cooker, DefaultTaskEncoder, WorkerConfig, get_loader, get_val_dataset, stateless

    def stop(error: Exception, *_: object) -> None:
        raise PackError(f"Energon can't read {folder}: {type(error).__name__}: {error}; not published") from error

    class Raw(DefaultTaskEncoder):
        decoder = None
        cookers = [Cooker(stateless(lambda sample: sample))]  # noqa: RUF012 (Energon's own name and type)

    dataset = get_val_dataset(
        folder,
        split_part=split,
        dataset_config=dataset_yaml,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=stop),
        batch_size=None,
        limit=_NUM_PACKS,
        task_encoder=Raw(),
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'pin_memory'")  # checking needs no accelerator
        return {pack["__key__"]: pack for pack in get_loader(dataset, watchdog_timeout_seconds=None)}


def _crude_yaml(folder: Path) -> str:
    return "crude.yaml" if (folder / META_FOLDER / "crude.yaml").exists() else "dataset.yaml"
