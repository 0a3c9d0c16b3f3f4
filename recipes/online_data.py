"""Packs that are built while they are loaded, as the recipes beside this file take them."""

import warnings
from collections.abc import Sequence
from typing import Any

from packed_data import Endless
from torch.utils.data import DataLoader

from energon_pack import LazyPackedDataset, PackSampler, StreamingPackedDataset, ranks_here

# torchdata's loader calls what torch no longer wants: nothing that its user could change.
warnings.filterwarnings("ignore", "'set_vital' is deprecated")


class LazyLoader(Endless):
    """Packs that are built while they are loaded, without end; any number of ranks and workers goes on with them.

    Args:
        packs: a `LazyPackedDataset`.
        num_workers: of this rank.
        states: `save_state` of every rank of a checkpoint, to go on from there.
        micro_batches: packs of each rank in a step.
    """

    def __init__(
        self,
        packs: LazyPackedDataset,
        num_workers: int = 0,
        states: Sequence[dict[str, Any]] = (),
        micro_batches: int | None = None,
    ):
        self._sampler = PackSampler(packs, micro_batches=micro_batches, states=states)
        self._num_taken = 0
        super().__init__(DataLoader(packs, 1, sampler=self._sampler, collate_fn=packs.collate, num_workers=num_workers))

    def __next__(self) -> Any:
        batch = super().__next__()
        self._num_taken += 1
        return batch

    def save_state(self) -> dict[str, Any]:
        """After the batches that were taken, whatever was read ahead."""
        return self._sampler.state_dict(self._num_taken)


class StreamLoader(Endless):
    """Packs of a stream, without end; as many ranks and workers go on with them as began.

    Args:
        packs: a `StreamingPackedDataset`.
        num_workers: of this rank.
        states: `save_state` of every rank of a checkpoint, to go on from there.
    """

    def __init__(self, packs: StreamingPackedDataset, num_workers: int = 0, states: Sequence[dict[str, Any]] = ()):
        from torchdata.stateful_dataloader import StatefulDataLoader

        self._rank, self._ranks = ranks_here()
        if states and len(states) != self._ranks:
            raise ValueError(f"a stream goes on with as many ranks as it began with: {len(states)}, not {self._ranks}")
        self._loader = StatefulDataLoader(packs, 1, collate_fn=packs.collate, num_workers=num_workers)
        if states and states[0]["workers"] != num_workers:
            raise ValueError(f"a stream goes on with as many workers: {states[0]['workers']}, not {num_workers}")
        self._num_workers = num_workers
        for state in states:
            if state["rank"] == self._rank:
                self._loader.load_state_dict(state["loader"])
        super().__init__(self._loader)

    def save_state(self) -> dict[str, Any]:
        """After the batches that were taken, whatever was read ahead."""
        where = {"rank": self._rank, "ranks": self._ranks, "workers": self._num_workers}
        return {**where, "loader": self._loader.state_dict()}
