"""Counters of a stream's workers, in memory that a loader's processes share."""

from collections.abc import Sequence
from typing import Any

import torch

from energon_pack.samples.media.kinds import IMAGE
from energon_pack.samples.skip import Reason

#: counts over all packs that were yielded; `dropped`: members that could not be encoded; `above`: tokens beyond
#: `max_token_len` in longer packs
NAMES = ("packs", "samples", "tokens", IMAGE.plural, "dropped", "longest_wait", "above")
_COLUMNS = {name: i for i, name in enumerate((*NAMES, *Reason))}
_MAX_WORKERS = 1024


class Counted:
    """Counters in rows, one for each worker of this rank; the parent process reads them all."""

    def __init__(self) -> None:
        self._rows = torch.zeros(_MAX_WORKERS, len(_COLUMNS), dtype=torch.int64, device="cpu").share_memory_()

    def row(self, worker: int) -> "Row":
        """Return the counters of a worker.

        Raises:
            ValueError: there are too many workers.
        """
        if worker >= _MAX_WORKERS:
            raise ValueError(f"num_workers={worker + 1}: at most {_MAX_WORKERS}")
        return Row(self._rows[worker])

    def total(self, capacity: int) -> dict[str, Any]:
        """Add up the rows of all workers.

        Args:
            capacity: tokens that a pack may have; a longer pack counts as full.
        """
        sums = dict(zip(_COLUMNS, self._rows.sum(dim=0).tolist(), strict=True))
        sums["longest_wait"] = int(self._rows[:, _COLUMNS["longest_wait"]].max())
        left_out = {reason.value: number for reason in Reason if (number := sums.pop(reason))}
        room = sums["packs"] * capacity + sums.pop("above")
        fill = sums["tokens"] / room if room else 0.0
        return {**sums, "fill": fill, "left_out": left_out}


class Row:
    """The counters of one worker."""

    def __init__(self, values: torch.Tensor):
        self._values = values

    def add(self, name: str, number: int = 1) -> None:
        """Add to a counter: one of `NAMES`, or the samples left out for a `Reason`."""
        self._values[_COLUMNS[name]] += number

    def set(self, name: str, number: int) -> None:
        self._values[_COLUMNS[name]] = number

    def state(self) -> list[int]:
        values: list[int] = self._values.tolist()
        return values

    def load(self, state: Sequence[int]) -> None:
        self._values.copy_(torch.tensor(state, device="cpu"))
