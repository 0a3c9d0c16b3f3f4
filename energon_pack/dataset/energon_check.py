"""Check a dataset before it is published: does Energon read the packs that were written?

Of each shard the index and the first pack are read here. Energon, which imports torch for seconds, opens the first
dataset of each form and then no other of that form: the user's cache keeps that it did.
"""

import gc
import hashlib
import json
import warnings
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energon_pack.dataset.energon import dataset_yamls
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.pack_parts import PackPartReader
from energon_pack.dataset.source_media import EnergonMediaReader
from energon_pack.errors import PackError, amount
from energon_pack.run.address import energon_address
from energon_pack.run.files import META_FOLDER, read_cached_value, write_cached_value
from energon_pack.run.packages import faster_imports, package_versions, version_of
from energon_pack.samples.flavors.base import PackedFlavor, with_referenced_parts
from energon_pack.samples.pack_tokens import TOKENS_PART

if TYPE_CHECKING:  # the process that checks needs none of the writing code
    from energon_pack.dataset.shards import WrittenShard

_NUM_CHECKED_PACKS = 16


@dataclass(frozen=True)
class CheckJob:
    """A written dataset that is to be checked, and how many packs each of its shards should have."""

    folder: str  # or the address, as Energon writes it
    dataset_yaml: str  # the YAML file in use, which says whether it is a crude dataset
    flavor: PackedFlavor
    num_packs: dict[str, dict[str, int]]  # of each shard, by split
    source_root: str | None  # the place of the source, if packs refer to media in it; None: they hold copies
    cache_key: str  # see `hash_yamls_and_versions`


def hash_yamls_and_versions(flavor: PackedFlavor, dataset_yaml: str) -> str:
    """Return the cache key for "Energon reads such datasets": a hash of the YAMLs, and of versions of packages."""
    form = json.dumps([dataset_yamls(flavor, dataset_yaml), package_versions()])
    return f"{version_of('megatron-energon')}-{hashlib.sha256(form.encode()).hexdigest()[:16]}"


def refuse_unplanned_counts(shards: "list[WrittenShard]", num_packs: int, num_samples: int) -> None:
    """Raise PackError if the shards do not have the planned numbers of packs and samples."""
    written = sum(shard.num_packs for shard in shards), sum(shard.num_samples for shard in shards)
    if written != (num_packs, num_samples):
        planned = f"{amount(num_packs, 'pack')} of {amount(num_samples, 'sample')}"
        raise PackError(f"{planned} were planned, {written} written: not published")


def check_job_of(folder: Path | str, flavor: PackedFlavor, shards: "list[WrittenShard]", root: str | None) -> CheckJob:
    """Return the job for `check_readable`. `root`: the place of the source if packs refer to it; None: they do not."""
    num_packs: dict[str, dict[str, int]] = {}
    for shard in shards:
        num_packs.setdefault(shard.split, {})[shard.name] = shard.num_packs
    if isinstance(folder, str):
        return CheckJob(energon_address(folder), "crude.yaml", flavor, num_packs, root, "")
    has_crude = (folder / META_FOLDER / "crude.yaml").exists()
    cache_key = hash_yamls_and_versions(flavor, "typed" if has_crude else "crude")
    return CheckJob(str(folder), "crude.yaml" if has_crude else "dataset.yaml", flavor, num_packs, root, cache_key)


def check_readable(job: CheckJob) -> None:
    """Raise PackError if the index or first pack of a shard can't be read, or Energon can't read the first 16 packs.

    Energon is not asked if the user's cache has recorded that it reads datasets with such YAMLs. No pixels are decoded.
    """
    if job.cache_key:
        _check_shards(job)
    if not _is_recorded(job.cache_key):
        for split, shards in job.num_packs.items():
            packs = _first_packs(job.folder, job.dataset_yaml, split)
            if len(packs) != min(_NUM_CHECKED_PACKS, sum(shards.values())):
                raise PackError(
                    f"Energon reads {len(packs)} of the first {_NUM_CHECKED_PACKS} packs of {job.folder}, {split}:"
                    " not published"
                )
            for pack in packs.values():
                _check_part_names(pack, job)
        if job.cache_key:
            write_cached_value("energon", job.cache_key, True)
        else:  # Energon leaves a store's files open in a cycle; one that is collected as a thread starts waits for ever
            gc.collect()


def _check_shards(job: CheckJob) -> None:
    """Read the index and the first pack of each shard; raise PackError if a count or a name is wrong."""
    num_packs = {name: number for shards in job.num_packs.values() for name, number in shards.items()}
    folder = DatasetFolder(job.folder)
    with PackPartReader(folder) as packs:
        if packs.shard_counts != num_packs:
            raise PackError(f"the packs of {folder} are not as many as its metadata say: not published")
        number = 0
        for name, in_shard in packs.shard_counts.items():
            index = folder.state(f"{name}.idx")
            if index is None or index.size != 8 * (in_shard + 1):
                raise PackError(f"{folder.path_of(name)} has no index of its {in_shard:,} packs: not published")
            _check_part_names(packs.parts(number), job)
            number += in_shard


def _check_part_names(pack: dict[str, Any], job: CheckJob) -> None:
    parts, value = with_referenced_parts(
        pack, json.loads(pack["json"]), job.flavor, EnergonMediaReader(job.source_root)
    )
    named = {"json", TOKENS_PART, *chain.from_iterable(job.flavor.parts(value))}
    if named != {part for part in parts if not part.startswith("__")}:
        raise PackError(f"the parts of {pack['__key__']} are not those its JSON names: not published")


def _is_recorded(cache_key: str) -> bool:
    return bool(cache_key) and read_cached_value("energon", cache_key, bool) is True


def import_energon_if_needed(cache_key: str) -> None:
    """Import Energon ahead of `check_readable`, unless the user's cache records that `check_readable` won't need it."""
    if not _is_recorded(cache_key):
        with faster_imports():
            import megatron.energon  # noqa: F401


def _first_packs(folder: str, dataset_yaml: str, split: str) -> dict[str, Any]:
    with faster_imports():
        from megatron.energon import (
            Cooker,
            DefaultTaskEncoder,
            WorkerConfig,
            get_savable_loader,
            get_val_dataset,
            stateless,
        )

    def stop(error: Exception, *_: object) -> None:
        raise PackError(f"Energon can't read {folder}: {type(error).__name__}: {error}; not published") from error

    class RawPack(DefaultTaskEncoder):
        decoder = None
        cookers = [Cooker(stateless(lambda sample: sample))]  # noqa: RUF012 (Energon's own name and type)

    dataset = get_val_dataset(
        folder,
        split_part=split,
        dataset_config=dataset_yaml,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=stop),
        batch_size=None,
        limit=_NUM_CHECKED_PACKS,
        task_encoder=RawPack(),
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'pin_memory'")  # checking needs no accelerator
        # a collection takes 0.2 s with all that Energon imports, and Energon collects at the start and the end
        loader = get_savable_loader(dataset, watchdog_timeout_seconds=None, gc_collect_every_n_steps=0)
        return {pack["__key__"]: pack for pack in loader}
