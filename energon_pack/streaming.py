"""Pack endless streams of samples while training loads them: no plan, no writing, a bounded buffer.

    packs = StreamingPackedDataset(["+model=qwen2_5_vl", "packing.max_token_len=8192"], ["texts/", "images/"], [1, 2])
    loader = StatefulDataLoader(packs, batch_size=1, collate_fn=packs.collate, num_workers=4)  # of torchdata

Each worker of each rank draws its own samples and measures them by the headers of their media. It decodes pixels only
for the pack that it yields.
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
from energon_pack.steps.journal import reading
from energon_pack.trainers.doors import ForTrainers, import_rows
from energon_pack.training.batch import PackedBatch
from energon_pack.training.pack_encoder import Pack, PackEncoder

__all__ = ["StreamingPackedDataset"]


class StreamingPackedDataset(ForTrainers, IterableDataset[Pack]):
    """An iterable dataset of packs, made from samples that are drawn from several datasets.

    Args:
        config: overrides as on the command line, or a config.
        sources: the datasets to draw from. Each is a path like `source.path`, a list of overrides (such as
            `["source=jsonl", "source.path=…"]`), or a map-style dataset of conversations, Hugging Face's among them:
            see `online.given`. By default the paths in `source.path`.
        weights: relative frequency of each dataset; by default its number of samples.
        buffer_size: samples that wait in each worker when a pack is made; more wait if so many do not fill a pack.
        replacement: begin a used-up dataset anew in another order, so that packs never end. False: each sample is
            drawn once, by one worker of one rank, and the samples that wait at the end are packed as offline; ranks
            may then have unequal numbers of packs.
        seed: the same on all ranks; by default the config's.
        rank, world_size: this data-parallel rank and their number; by default torch.distributed's, or torchrun's.
        options: options of PackEncoder: `layout`, `labels`, `pad_to`, `on_bad_member`, `dummy_image` …
            `on_bad_member` holds for samples that can't be read, too; `drop` leaves them out, and `statistics` counts
            them.

    Raises:
        PackError: an unknown setting, or one that needs a plan; a source that can't be read.
        ValueError: the errors of PackEncoder; weights that are negative, all 0 or too few.
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
        #: the config with every setting
        self.config = begun.config
        #: makes packs and batches; pass it to `guard`
        self.encoder = PackEncoder(begun.made, begun.template.input_rules, **options)
        source, drop = self.config.source, options.get("on_bad_member") == "drop"
        of_labels = self.config.labels.untrained
        self._measuring = Measuring(begun.template, self.config.packing, source.control_tokens, drop, of_labels)
        self._datasets = begun.datasets
        rank, world_size = ranks_here(rank, world_size)
        #: settings that draws and packs depend on; a state is refused if one differs
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
        self._make(0, 1)  # raises errors of settings before any worker starts

    @property
    def place(self) -> tuple[int, int]:
        """This data-parallel rank, and the number of ranks."""
        return self._given["rank"], self._given["world_size"]

    def as_dataset(self) -> Any:
        """Return a `datasets.IterableDataset` of this rank's packs; `collator` reads its rows.

        Set `accelerator_config={"dispatch_batches": False}` (TRL does), so that each rank reads its own packs.

        Raises:
            PackError: `datasets` is not installed.
        """
        return import_rows().StreamRows(self, *self.place)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration draw in the order of this epoch."""
        self._epoch, self._state = epoch, None

    def __iter__(self) -> Iterator[Pack]:
        self._packs = self._make(*_worker())
        if self._state is not None:
            self._packs.load(self._state["packs"])
            self._state = None
        return self._packs

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's state as numbers: counters, and the indices and lengths of the samples that wait."""
        if self._packs is None:
            return self._state or {**self._here(), "packs": None}
        return {**self._here(), "packs": self._packs.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on from a `state_dict` of the same rank and worker.

        Raises:
            ValueError: the state is from another rank, worker or settings.
        """
        with reading("state_dict()"):
            here, packs = {**self._here(), "epoch": state["epoch"]}, state["packs"]
        for name, value in here.items():
            if state.get(name) != value:
                raise ValueError(f"{name}={value}: this state goes on with {name}={state.get(name)} alone")
        if packs is not None:
            with reading("state_dict()"):
                self._make(*_worker()).load(packs)
        self._epoch = state["epoch"]
        self._state, self._packs = (state if packs else None), None

    def statistics(self) -> dict[str, Any]:
        """Return packs, samples, tokens and images so far, fill, the longest wait in packs, samples left out by reason.

        The figures are for all workers of this rank, with packs read ahead. Counts in a loaded state are included.
        """
        return self._counted.total(self._measuring.packing.max_token_len)

    def collate(self, packs: Sequence[Pack]) -> PackedBatch:
        """Lay packs out in a batch: `collate_fn` of a DataLoader."""
        return self.encoder.batch(packs)

    def _here(self) -> dict[str, Any]:
        worker, num_workers = _worker()
        return {**self._given, "num_workers": num_workers, "worker": worker, "epoch": self._epoch}

    def _make(self, worker: int, num_workers: int) -> OnlinePacks:
        """Make the iterator over the packs of one worker of this rank, from the start."""
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
    """Return this worker's number and the number of workers; a loader without workers counts as one with one."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
