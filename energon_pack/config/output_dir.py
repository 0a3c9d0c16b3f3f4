"""Find where a run writes: the dataset `output.dir/output.name`, its page, the cache beside it, and sweeps."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from energon_pack.config import OutputConfig, PackConfig, Stage
from energon_pack.dataset.files import PAGE
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.in_folder import DatasetInFolder
from energon_pack.dataset.in_store import DatasetInStore
from energon_pack.dataset.ledger import page_of_unpublished
from energon_pack.errors import PackError
from energon_pack.run.address import is_address, parent, tidy_address
from energon_pack.run.user_cache import user_cache_folder
from energon_pack.sources.storage import path_in


@dataclass(frozen=True)
class OutputPlace:
    """Where a run writes, and what it may replace there."""

    destination: DatasetInFolder
    page: Path  # in the dataset, or beside its place if the run does not publish it
    publishes: bool  # the run ends by publishing its dataset: `stage=all` or `publish`
    may_overwrite: bool  # by `output.overwrite`, or because the run packs the demo

    @classmethod
    def of(cls, config: PackConfig) -> "OutputPlace":
        """Return the place that a config names; raises PackError if the dataset has no name."""
        destination = _destination(config.output, config.cache_dir)
        publishes = config.stage in (Stage.all, Stage.publish)
        page = destination.final / PAGE if publishes else page_of_stage(destination, config.stage)
        return cls(destination, page, publishes, config.output.overwrite or config.source.is_demo)


def page_of_stage(destination: DatasetInFolder, stage: Stage) -> Path:
    """Return the path of the page of a stage that publishes no dataset."""
    return page_of_unpublished(destination.final, f"{stage.value}.html")


def _destination(output: OutputConfig, cache_dir: str | None) -> DatasetInFolder:
    """Return the dataset that a run writes, in a folder or on an object store; raises PackError without a name."""
    if output.name is None:
        raise PackError("output.name must be set")
    dataset = DatasetFolder(path_in(output.dir, output.name))
    if not dataset.is_stored:
        return DatasetInFolder(Path(output.dir).expanduser() / output.name)
    if output.sqlite:
        raise PackError(f"output.sqlite=true: of a dataset on an object store no index is written ({output.dir})")
    here = cache_folder(cache_dir, output.dir) / "outputs" / short_hash(parent(dataset.path))
    return DatasetInStore(dataset.path, here / output.name)


def cache_folder(cache_dir: str | None, output_dir: str) -> Path:
    """Return the folder of the cache on this machine; for a cache on an object store, the folder that mirrors it."""
    address = cache_address(cache_dir, output_dir)
    if address is not None:
        return user_cache_folder("mirrors", short_hash(address))
    return Path(_cache_place(cache_dir, output_dir)).expanduser()


def cache_address(cache_dir: str | None, output_dir: str) -> str | None:
    """Return the address of a cache on an object store; None if the cache is a folder."""
    place = _cache_place(cache_dir, output_dir)
    return tidy_address(place) if is_address(place) else None


def sweeps_folder(output_dir: str) -> str:
    """Return the folder of sweeps: beside the datasets, or in the user's cache if those are on an object store."""
    return str(user_cache_folder("runs", "")) if is_address(output_dir) else f"{output_dir}/.runs"


def _cache_place(cache_dir: str | None, output_dir: str) -> str:
    return cache_dir or path_in(output_dir, ".cache")


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
