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
        return {"ranks": ranks_here()[1], **self._sampler.state_dict(self._num_taken)}


class StreamLoader(Endless):
    """Packs of a stream, without end; any number of ranks and workers goes on with them.

    Args:
        packs: a `StreamingPackedDataset` with the same `states`.
        num_workers: of this rank.
        states: `save_state` of every rank of a checkpoint, to go on from there; as many go on with the same batches.
    """

    def __init__(self, packs: StreamingPackedDataset, num_workers: int = 0, states: Sequence[dict[str, Any]] = ()):
        from torchdata.stateful_dataloader import StatefulDataLoader

        rank, ranks = ranks_here()
        self._where = {"ranks": ranks, "workers": num_workers}
        self._loader = StatefulDataLoader(packs, 1, collate_fn=packs.collate, num_workers=num_workers)
        if states and {name: states[0][name] for name in self._where} == self._where:
            self._loader.load_state_dict(states[rank]["loader"])
        super().__init__(self._loader)

    def save_state(self) -> dict[str, Any]:
        """After the batches that were taken, whatever was read ahead."""
        return {**self._where, "loader": self._loader.state_dict()}
