"""Packs of endless streams of samples, made while training loads them: no plan, no writing, a bounded buffer.

    packs = StreamingPackedDataset(["+model=qwen2_5_vl", "packing.max_token_len=8192"], ["texts/", "images/"], [1, 2])
    loader = StatefulDataLoader(packs, batch_size=1, collate_fn=packs.collate, num_workers=4)  # of torchdata

Each worker of each rank draws samples of its own, measures them by the headers of their media, and decodes pixels only
of the pack that it hands on.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from energon_pack.config import PackConfig
from energon_pack.errors import check_buffer_size
from energon_pack.online.begin import SourceOf, begin
from energon_pack.online.counted import Counted
from energon_pack.online.packs import OnlinePacks
from energon_pack.online.ranks import ranks_here
from energon_pack.pooling.draws import Draws
from energon_pack.pooling.measuring import Measuring
from energon_pack.pooling.pool import Pool
from energon_pack.training.batch import PackedBatch
from energon_pack.training.pack_encoder import Pack, PackEncoder

__all__ = ["StreamingPackedDataset"]


class StreamingPackedDataset(IterableDataset[Pack]):
    """Packs of samples that are drawn from several datasets.

    Args:
        config: overrides as on the command line, or a config.
        sources: datasets that are drawn from, each a path as of `source.path`, overrides that say more (as
            `["source=jsonl", "source.path=…"]`), or a map-style dataset of conversations, Hugging Face's among them:
            see `online.given`. By default what `source.path` lists.
        weights: how often a sample of each is drawn; by default as often as it has some.
        buffer_size: samples that wait in each worker when a pack is made of them; where so many fill none, more.
        replacement: a dataset that is used up begins anew in another order, and packs never end; else each sample is
            drawn once, by one worker of one rank, and what waits at the end is packed as it would be offline: ranks
            then end after numbers of packs of their own.
        seed: of all ranks alike; by default that of the config.
        rank, world_size: data-parallel ones; by default torch.distributed's, or torchrun's.
        options: of PackEncoder: `layout`, `labels`, `pad_to`, `on_bad_member`, `dummy_image` … `on_bad_member` holds
            for samples that can't be read, too; `drop` leaves them out, and `statistics` counts them.

    Raises:
        PackError: an unknown setting, or one that needs a plan; a source that can't be read.
        ValueError: as PackEncoder; weights that are no shares.
    """

    def __init__(
        self,
        config: PackConfig | Sequence[str],
        sources: Sequence[SourceOf] | None = None,
        weights: Sequence[float] | None = None,
        *,
        buffer_size: int = 100,
        replacement: bool = True,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Any,
    ):
        check_buffer_size("buffer_size", buffer_size)
        begun = begin(config, sources)
        #: every setting
        self.config = begun.config
        #: makes batches, too; `guard` asks it
        self.encoder = PackEncoder(begun.made, begun.template, **options)
        source, drop = self.config.source, options.get("on_bad_member") == "drop"
        self._measuring = Measuring(begun.template, self.config.packing, source.control_tokens, drop)
        self._datasets = begun.datasets
        rank, world_size = ranks_here(rank, world_size)
        #: on which draws and packs depend: a state goes on with the same alone
        self._given: dict[str, Any] = {
            "world_size": world_size,
            "rank": rank,
            "num_samples": [len(dataset) for dataset in self._datasets],
            "weights": None if weights is None else [float(weight) for weight in weights],
            "buffer_size": buffer_size,
            "replacement": replacement,
            "seed": self.config.seed if seed is None else seed,
            "fingerprint": begun.fingerprint,
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
                raise ValueError(f"{name}={value}: this state goes on with {name}={state.get(name)} alone")
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
        lane = given["rank"] * num_workers + worker
        draws = Draws(
            given["num_samples"],
            given["weights"],
            replacement=given["replacement"],
            seed=given["seed"],
            epoch=self._epoch,
            lane=lane,
            lanes=given["world_size"] * num_workers,
        )
        pool = Pool(self._measuring.packing, given["buffer_size"], given["seed"])
        name = f"{self._epoch}/{lane}"
        return OnlinePacks(name, self._datasets, draws, self._measuring, pool, self.encoder, self._counted.row(worker))


def _worker() -> tuple[int, int]:
    """This worker of the loader, and how many there are; a loader without any counts as one with one."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
