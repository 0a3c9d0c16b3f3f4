"""Find where a run writes: the dataset `output.dir/output.name`, and its page."""

from pathlib import Path

from energon_pack.config import PackConfig, Stage
from energon_pack.config.cache_dir import cache_folder, short_hash
from energon_pack.dataset.destination import Destination
from energon_pack.dataset.files import PAGE
from energon_pack.dataset.in_folder import InFolder
from energon_pack.dataset.in_store import InStore
from energon_pack.dataset.losses import page_beside
from energon_pack.errors import PackError
from energon_pack.run.stores import is_address, parent, tidy


def destination_of(config: PackConfig) -> Destination:
    """Return where the dataset of a run will be; raises PackError if it has no name."""
    output = config.output
    if output.name is None:
        raise PackError("output.name must be set")
    if not is_address(output.dir):
        return InFolder(Path(output.dir).expanduser() / output.name)
    address = f"{tidy(output.dir)}/{output.name}"
    here = cache_folder(config.cache_dir, output.dir) / "outputs" / short_hash(parent(address))
    return InStore(address, here / output.name)


def page_of(config: PackConfig) -> Path:
    """Return the path of a run's page: in the dataset, or, for a single stage, next to where the dataset would be."""
    final = destination_of(config).final
    return final / PAGE if publishes(config) else page_beside(final, f"{config.stage.value}.html")


def publishes(config: PackConfig) -> bool:
    """Say whether a run ends with a dataset under its name."""
    return config.stage in (Stage.all, Stage.publish)
