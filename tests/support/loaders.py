"""The loaders of all ranks of a training, in one process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset

from energon_pack.loading import Journal, train_arguments
from energon_pack.task_encoder import PackedTaskEncoder


class Training:
    """All ranks of a training, which goes on from the states of another."""

    def __init__(self, folder: Path, processor: Path, ranks: int, states: Sequence[Any] = (), workers: int = 0):
        self.ranks = []
        for rank in range(ranks):
            worker = WorkerConfig(rank=rank, world_size=ranks, num_workers=workers)
            encoder = PackedTaskEncoder(folder, str(processor))
            packs = get_train_dataset(folder, **train_arguments(folder, encoder, worker, states))
            self.ranks.append((iter(get_savable_loader(packs)), Journal(packs, states)))

    def read(self, num: int) -> list[tuple[str, ...]]:
        """The samples of the packs of so many turns, turn by turn, and of each by rank."""
        found = []
        for _ in range(num):
            for loader, journal in self.ranks:
                batch = next(loader)
                journal.add(batch)
                found.append(tuple(batch["sample_ids"][0]))
        return found

    @property
    def states(self) -> list[Any]:
        return [journal.state() for _, journal in self.ranks]
