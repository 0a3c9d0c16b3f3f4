"""Keep the plan of each epoch in a file: the process that plans writes it, a loader's workers map it into memory."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from energon_pack.errors import PackError
from energon_pack.plan.packs import PackPlan
from energon_pack.run.files import write_whole
from energon_pack.run.recent import Recent
from energon_pack.run.seeded import Ints

#: the error of a pickled copy, which holds no lengths
NO_LENGTHS = (
    "this copy of the dataset (for example in a DataLoader worker) cannot plan an epoch: call set_epoch() on the"
    " original, or build the dataset again here"
)


class EpochPlans:
    """The items of each pack, by epoch.

    Args:
        folder: the folder of the files.
        num_packs: packs in every epoch.
        make: plans an epoch; None in workers.
    """

    def __init__(self, folder: Path, num_packs: int, make: Callable[[int], PackPlan] | None = None):
        self._folder, self._num_packs, self._make = folder, num_packs, make
        self._mapped: Recent[int, Ints] = Recent(2)  # an epoch's last packs and the next one's first may mix

    def items(self, epoch: int, pack: int) -> list[int]:
        """Return the numbers of a pack's items."""
        flat = self._file(epoch)
        start, end = flat[pack], flat[pack + 1]
        items: list[int] = flat[self._num_packs + 1 + start : self._num_packs + 1 + end].tolist()
        return items

    def have(self, epoch: int) -> None:
        """Write the plan of an epoch for workers, unless it is written already.

        Raises:
            PackError: it is not written, and this is a copy of the dataset, which can't plan.
        """
        path = self._path(epoch)
        if path.exists():
            return
        if self._make is None:
            raise PackError(f"epoch {epoch}: {NO_LENGTHS}")
        plan, file = self._make(epoch), io.BytesIO()
        np.save(file, np.concatenate((plan.starts, plan.items)))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, file.getvalue())

    def _file(self, epoch: int) -> Ints:
        found = self._mapped.get(epoch)
        if found is None:
            self.have(epoch)
            found = self._mapped.put(epoch, np.load(self._path(epoch), mmap_mode="r"))
        return found

    def _path(self, epoch: int) -> Path:
        return self._folder / f"{epoch:06d}.npy"

    def __reduce__(self) -> tuple[type["EpochPlans"], tuple[Path, int]]:
        return EpochPlans, (self._folder, self._num_packs)
