"""Pack endless streams of samples while training loads them: no plan, no writing, a bounded buffer.

    packs = StreamingPackedDataset(["+model=qwen2_5_vl", "packing.max_token_len=8192"], ["texts/", "images/"], [1, 2])
    loader = StatefulDataLoader(packs, batch_size=1, collate_fn=packs.collate, num_workers=4)  # of torchdata

Each worker of each rank draws its own samples and measures them by the headers of their media. It decodes pixels only
for the pack that it yields.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from energon_pack.config import PackConfig
from energon_pack.errors import PackError, check_buffer_size
from energon_pack.online.begin import SourceOf, begin
from energon_pack.online.stream_packs import Draws, OnlinePacks, StreamCounters
from energon_pack.plan.pool import Pool, WaitingSample, waiting_samples
from energon_pack.plan.sample_measures import SampleMeasurer
from energon_pack.steps.position import Position, numbers_taken_by, parsing_state
from energon_pack.steps.topology import ranks_here
from energon_pack.trainers.doors import ForTrainers, import_rows
from energon_pack.training.encoded import Pack
from energon_pack.training.pack_encoder import PackEncoder

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
        states: `state_dict` of every rank's loader (torchdata's), or of this dataset on every rank, to go on from there
            with any number of ranks and workers.
        options: options of PackEncoder: `layout`, `labels`, `pad_to`, `on_bad_member`, `dummy_image` …
            `on_bad_member` holds for samples that can't be read, too; `drop` leaves them out, and `statistics` counts
            them.

    Raises:
        PackError: an unknown setting, or one that needs a plan; a source that can't be read.
        ValueError: the errors of PackEncoder; weights that are negative, all 0 or too few; states are of other settings
            or sources, or a worker's is missing.
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
        states: Sequence[Mapping[str, Any]] = (),
        **options: Any,
    ):
        check_buffer_size("buffer_size", buffer_size)
        begun = begin(config, sources)
        #: the config with every setting
        self.config = begun.config
        #: makes packs and batches; pass it to `guard`
        rules = begun.template.rules_by(self.config.measure.engine.value)
        self.encoder = PackEncoder(begun.made, rules, **options)
        source, drop = self.config.source, options.get("on_bad_member") == "drop"
        of_labels = self.config.labels.untrained
        self._measuring = SampleMeasurer(begun.template, self.config.packing, source.control_tokens, drop, of_labels)
        self._datasets = begun.datasets
        self._place = ranks_here(rank, world_size)
        #: settings that draws and packs depend on; a state is refused if one differs
        self._given: dict[str, Any] = {
            "num_samples": [len(dataset) for dataset in self._datasets],
            "weights": None if weights is None else [float(weight) for weight in weights],
            "buffer_size": buffer_size,
            "replacement": replacement,
            "seed": self.config.seed if seed is None else seed,
            "fingerprint": begun.fingerprint,
        }
        self._counted = StreamCounters()
        self._packs: OnlinePacks | None = None
        self._epoch = 0
        #: states from which the next iteration goes on: of this worker, or of all
        self._lanes: Sequence[Mapping[str, Any]] = [lane for state in states for lane in _lanes_in(state)]
        if states and not self._lanes:
            raise PackError("states: a list with the state of every rank's loader; these have none of a stream")
        if self._lanes:
            self._go_on(self._lanes)
        else:
            self._make(0, 1)  # raises errors of settings before any worker starts

    @property
    def place(self) -> tuple[int, int]:
        """This data-parallel rank, and the number of ranks."""
        return self._place

    def as_dataset(self) -> Any:
        """Return a `datasets.IterableDataset` of this rank's packs; `collator` reads its rows.

        Set `accelerator_config={"dispatch_batches": False}` (TRL does), so that each rank reads its own packs.
        """
        return import_rows().StreamRows(self, *self.place)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration draw in the order of this epoch, unless it is that of states to go on from."""
        if epoch != self._epoch:
            self._epoch, self._lanes, self._packs = epoch, [], None

    def __iter__(self) -> Iterator[Pack]:
        self._packs, self._lanes = self._make(*_worker()), []
        return self._packs

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's state as numbers: positions, and the indices and lengths of the samples that wait."""
        packs = self._make(*_worker()) if self._lanes or self._packs is None else self._packs
        return {**self._given, **packs.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on from a `state_dict` of the same worker of the same rank."""
        self._go_on([state])

    def _go_on(self, lanes: Sequence[Mapping[str, Any]]) -> None:
        with parsing_state("state_dict()"):
            self._lanes, self._epoch = lanes, self._positions_in(lanes[0])[0].epoch
            self._make(*_worker())

    def _positions_in(self, state: Mapping[str, Any]) -> list[Position]:
        for name, value in self._given.items():
            if state[name] != value:
                raise PackError(f"{name}={value}: this state goes on with {name}={state[name]} alone")
        return [Position.from_dict(position) for position in state["positions"]]

    def statistics(self) -> dict[str, Any]:
        """Return packs, samples, tokens and images so far, fill, the longest wait in packs, samples left out by reason.

        The figures are for all workers of this rank, with packs read ahead. Counts in a loaded state are included.
        """
        return self._counted.total(self._measuring.packing.max_token_len)

    def _make(self, worker: int, num_workers: int) -> OnlinePacks:
        """Make the iterator over the packs of one worker of this rank.

        It begins with the epoch; or where this worker stopped; or, if there were other workers, with a share of what
        all of them left.
        """
        settings, (rank, ranks) = self._given, self._place
        here = Position(
            settings["fingerprint"], epoch=self._epoch, ranks=ranks * num_workers, rank=rank * num_workers + worker
        )
        positions, lane, waiting = [here for _ in self._datasets], None, list[WaitingSample]()
        if self._lanes:
            of_lanes = [self._positions_in(lane) for lane in self._lanes]
            places = [(each.ranks, each.rank) for each, *_ in of_lanes]
            if (here.ranks, here.rank) in places:
                number = places.index((here.ranks, here.rank))
                positions, lane = of_lanes[number], self._lanes[number]
            else:
                taken = [numbers_taken_by(of_dataset, "worker") for of_dataset in zip(*of_lanes, strict=True)]
                positions = [replace(here, before=before) for before in taken]
                waiting = waiting_samples(lane["pool"] for lane in self._lanes)[here.rank :: here.ranks]
        draws = Draws(
            settings["num_samples"],
            positions,
            settings["weights"],
            replacement=settings["replacement"],
            seed=settings["seed"],
        )
        pool = Pool(self._measuring.packing, settings["buffer_size"], settings["seed"])
        for sample in waiting:
            pool.add(sample.name, sample.costs, sample.group, sample.since)
        name, row = f"{self._epoch}/{here.rank}", self._counted.row(worker)
        packs = OnlinePacks(name, self._datasets, draws, self._measuring, pool, self.encoder, row)
        if lane is not None:
            packs.load(lane)
        return packs


def _lanes_in(state: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the states of a stream in that of a loader: one for each worker."""
    if not isinstance(state, Mapping):
        return
    if state.get("_steps_since_snapshot"):
        raise PackError("states that are older than the last batch: StatefulDataLoader(…, snapshot_every_n_steps=1)")
    if "positions" in state:
        yield state
        return
    for inner in state.values():
        yield from _lanes_in(inner)


def _worker() -> tuple[int, int]:
    """Return this worker's number and the number of workers; a loader without workers counts as one with one."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
