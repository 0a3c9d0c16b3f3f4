"""Packs of endless streams of samples, made while training loads them: no plan, no writing, a bounded buffer.

    dataset = StreamingPackedDataset([texts, images], weights=[1, 2], …)
    loader = torchdata.stateful_dataloader.StatefulDataLoader(dataset, batch_size=1, collate_fn=dataset.collate)

Each worker of each rank draws samples of its own, measures them by their headers, and decodes pixels only of the pack
that it hands on. What has no end and what is drawn again are shuffled anew each time.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from energon_pack.errors import PackError
from energon_pack.online.counted import Counted
from energon_pack.online.draws import Draws
from energon_pack.online.measuring import Measuring
from energon_pack.online.packs import OnlinePacks
from energon_pack.online.pool import Pool
from energon_pack.online.samples import Samples
from energon_pack.training.batch import PackedBatch
from energon_pack.training.pack_encoder import Pack, PackEncoder

__all__ = ["StreamingPackedDataset"]


class StreamingPackedDataset(IterableDataset[Pack]):
    """Packs of samples that are drawn from several datasets.

    Args:
        sources: datasets.
        weights: how often a sample of each is drawn; by default as often as it has some.
        buffer_size: samples that wait in each worker when a pack is made of them; where so many fill none, more.
        replacement: a dataset that is used up begins anew in another order, and packs never end; else each sample is
            drawn once by one worker of one rank, and what waits at the end is packed as it would be offline. Ranks then
            end after numbers of packs of their own.
        seed: of all ranks alike.
        rank, world_size: by default those of torch.distributed, or of the environment's RANK and WORLD_SIZE.
    """

    def __init__(
        self,
        sources: Sequence[Samples],
        weights: Sequence[float] | None = None,
        *,
        encoder: PackEncoder,
        measuring: Measuring,
        buffer_size: int = 100,
        replacement: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ):
        self._sources = sources
        #: makes packs and batches; `guard` asks it, too
        self.encoder = encoder
        self._measuring = measuring
        self._rank, self._world_size = _place(rank, world_size)
        #: on which draws and packs depend: a state goes on with the same alone
        self._given: dict[str, Any] = {
            "world_size": self._world_size,
            "rank": self._rank,
            "sizes": [len(source) for source in sources],
            "weights": None if weights is None else [float(weight) for weight in weights],
            "buffer_size": buffer_size,
            "replacement": replacement,
            "seed": seed,
        }
        self._epoch = 0
        self._counted = Counted()
        self._packs: OnlinePacks | None = None
        self._state: dict[str, Any] | None = None
        self._make(0, 1)  # refuses settings before any worker is started

    def set_epoch(self, epoch: int) -> None:
        """The next iteration draws in the order of this epoch."""
        self._epoch, self._state = epoch, None

    def __iter__(self) -> Iterator[Pack]:
        self._packs = self._make(*_worker())
        if self._state is not None:
            self._packs.load(self._state["packs"])
            self._state = None
        return self._packs

    def state_dict(self) -> dict[str, Any]:
        """Where this worker is, as numbers: counters, and the indices and lengths of the samples that wait."""
        if self._packs is None:
            return self._state or {**self._here(), "packs": None}
        return {**self._here(), "packs": self._packs.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next iteration go on from a `state_dict` of the same rank and worker.

        Raises:
            ValueError: of other ones, or of other settings.
        """
        here = {**self._here(), "epoch": state["epoch"]}
        for name, value in here.items():
            if state.get(name) != value:
                raise ValueError(f"{name}={value}: the state is of {name}={state.get(name)}, and goes on with that alone")
        self._epoch = state["epoch"]
        self._state, self._packs = (state if state["packs"] else None), None

    def statistics(self) -> dict[str, Any]:
        """Packs, samples, tokens and images so far, fill, the longest wait in packs, and samples left out by reason.

        Of all workers of this rank, what they read ahead included; those that went on from a state count from there.
        """
        return self._counted.total(self._measuring.packing.max_token_len)

    def collate(self, packs: Sequence[Pack]) -> PackedBatch:
        """Packs as a batch: for `collate_fn`."""
        return self.encoder.batch(packs)

    def _here(self) -> dict[str, Any]:
        worker, num_workers = _worker()
        return {**self._given, "num_workers": num_workers, "worker": worker, "epoch": self._epoch}

    def _make(self, worker: int, num_workers: int) -> OnlinePacks:
        """The packs of one worker of this rank, from the start."""
        given = self._given
        lane = self._rank * num_workers + worker
        draws = Draws(
            given["sizes"],
            given["weights"],
            replacement=given["replacement"],
            seed=given["seed"],
            epoch=self._epoch,
            lane=lane,
            lanes=self._world_size * num_workers,
        )
        pool = Pool(self._measuring.packing, given["buffer_size"], given["seed"])
        name = f"{self._epoch}/{lane}"
        return OnlinePacks(
            name, self._sources, draws, self._measuring, pool, self.encoder, self._counted.row(worker)
        )


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """This rank, and how many there are.

    Raises:
        PackError: only one of the two is given, or they are none.
    """
    if (rank is None) != (world_size is None):
        raise PackError(f"rank={rank}, world_size={world_size}: give both, or neither")
    if rank is None or world_size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if not 0 <= rank < world_size:
        raise PackError(f"rank={rank}, world_size={world_size}: ranks count from 0 to world_size - 1")
    return rank, world_size


def _worker() -> tuple[int, int]:
    """This worker of the loader, and how many there are; a loader without any counts as one with one."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
