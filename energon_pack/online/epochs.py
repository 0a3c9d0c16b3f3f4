"""The plan of each epoch as a file: the process that plans writes it, a loader's workers map it into memory."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from energon_pack.errors import PackError
from energon_pack.plan.plan import PackPlan
from energon_pack.run.files import write_whole
from energon_pack.run.seeded import Ints

#: why a copy that was pickled, a loader's worker's for one, plans nothing
NO_LENGTHS = "a copy of the dataset has no lengths to plan by: call set_epoch of the one it is of, or make it anew here"


class EpochPlans:
    """Which items each pack of an epoch has.

    Args:
        folder: of the files.
        num_packs: of every epoch.
        make: the plan of an epoch; workers have none.
    """

    def __init__(self, folder: Path, num_packs: int, make: Callable[[int], PackPlan] | None = None):
        self._folder, self._num_packs, self._make = folder, num_packs, make
        self._mapped: dict[int, Ints] = {}

    def items(self, epoch: int, pack: int) -> list[int]:
        """The numbers of a pack's items."""
        flat = self._file(epoch)
        start, end = flat[pack], flat[pack + 1]
        items: list[int] = flat[self._num_packs + 1 + start : self._num_packs + 1 + end].tolist()
        return items

    def have(self, epoch: int) -> None:
        """Have the plan of an epoch where workers find it.

        Raises:
            PackError: it is not there, and this is a copy of the dataset, which can't plan.
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
        found = self._mapped.pop(epoch, None)
        if found is None:
            self.have(epoch)
            while len(self._mapped) > 1:  # an epoch's last packs may come among the next one's first
                self._mapped.pop(next(iter(self._mapped)))
            found = np.load(self._path(epoch), mmap_mode="r")
        self._mapped[epoch] = found
        return found

    def _path(self, epoch: int) -> Path:
        return self._folder / f"{epoch:06d}.npy"

    def __reduce__(self) -> tuple[type["EpochPlans"], tuple[Path, int]]:
        return EpochPlans, (self._folder, self._num_packs)
