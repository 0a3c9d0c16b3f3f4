"""Keep the plan of each epoch in a file: the process that plans writes it, a loader's workers map it into memory."""

import io
from pathlib import Path

import numpy as np

from energon_pack.config import PackConfig
from energon_pack.dataset.pack_sums import PackSums
from energon_pack.dataset.plan_counts import sums_of
from energon_pack.errors import PackError
from energon_pack.plan.made import plan_of_epoch
from energon_pack.plan.packs import PackPlan
from energon_pack.run.files import write_whole
from energon_pack.run.recent import Recent
from energon_pack.run.seeded import Ints
from energon_pack.stages.planning import Planned


class EpochPlans:
    """The packs of each epoch, as many in every one.

    Args:
        folder: the folder of the files.
        num_packs: packs in every epoch.
        config: with the settings of packing, and the seed.
        first: the first epoch, with the lengths by which others are planned; None in a pickled copy, for example in a
            DataLoader worker, whose size does not grow with the number of samples.
    """

    def __init__(self, folder: Path, num_packs: int, config: PackConfig, first: Planned | None = None):
        self._folder, self._num_packs, self._config, self.first = folder, num_packs, config, first
        self._mapped: Recent[int, Ints] = Recent(2)  # an epoch's last packs and the next one's first may mix

    def items(self, epoch: int, pack: int) -> list[int]:
        """Return the numbers of a pack's items."""
        flat = self._file(epoch)
        start, end = flat[pack], flat[pack + 1]
        items: list[int] = flat[self._num_packs + 1 + start : self._num_packs + 1 + end].tolist()
        return items

    def have(self, epoch: int) -> None:
        """Write the plan of an epoch for workers, unless it is written already; raises like `plan`."""
        path = self._path(epoch)
        if path.exists():
            return
        plan, file = self.plan(epoch), io.BytesIO()
        np.save(file, np.concatenate((plan.starts, plan.items)))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, file.getvalue())

    def plan(self, epoch: int) -> PackPlan:
        """Return the plan of an epoch; raises PackError for a copy."""
        first, config = self._known(epoch), self._config
        return plan_of_epoch(first.plan, first.lengths.items, config.packing, config.seed, epoch)

    def sums(self, epoch: int) -> PackSums:
        """Return sums over the members of each pack of an epoch; raises like `plan`."""
        first = self._known(epoch)
        return sums_of(first.lengths.items, self.plan(epoch), first.cost)

    def _known(self, epoch: int) -> Planned:
        if self.first is None:
            raise PackError(
                f"epoch {epoch}: this copy of the dataset (for example in a DataLoader worker) cannot plan an epoch:"
                " call set_epoch() on the original, or build the dataset again here"
            )
        return self.first

    def _file(self, epoch: int) -> Ints:
        found = self._mapped.get(epoch)
        if found is None:
            self.have(epoch)
            found = self._mapped.put(epoch, np.load(self._path(epoch), mmap_mode="r"))
        return found

    def _path(self, epoch: int) -> Path:
        return self._folder / f"{epoch:06d}.npy"

    def __reduce__(self) -> tuple[type["EpochPlans"], tuple[Path, int, PackConfig]]:
        return EpochPlans, (self._folder, self._num_packs, self._config)
