"""Pack endless streams of samples while training loads them: no plan, no writing, a bounded buffer.

    packs = StreamingPackedDataset(["+model=qwen2_5_vl", "packing.max_token_len=8192"], ["texts/", "images/"], [1, 2])
    loader = StatefulDataLoader(packs, batch_size=1, collate_fn=packs.collate, num_workers=4)  # of torchdata

Each worker of each rank draws its own samples and measures them by the headers of their media. It decodes pixels only
for the pack that it yields.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from energon_pack.config import PackConfig
from energon_pack.errors import PackError, check_buffer_size
from energon_pack.online.stream_packs import OnlinePacks, SampleDraws, StreamCounters
from energon_pack.online.stream_setup import OF_HUGGING_FACE, StreamEpoch, StreamSource, prepare_stream
from energon_pack.plan.pool import WaitingPool, WaitingSample, waiting_samples
from energon_pack.plan.sample_measures import SampleMeasurer
from energon_pack.steps.position import Position, combine_taken_numbers, parsing_state
from energon_pack.trainers.dealer import ranks_to_deal_to, refuse_second_dealing
from energon_pack.trainers.on_disk import PackDatasetBase, import_pack_number_rows
from energon_pack.training.encoded import TrainingPack
from energon_pack.training.pack_encoder import PackEncoder, check_options
from energon_pack.training.worker_start import schedule_trial_at_fork

__all__ = ["StreamingPackedDataset"]

_log = logging.getLogger(__name__)
_COUNTED_ON = (
    "set_epoch(%d) goes to epoch %d: an epoch before that of the loaded state was set, so epochs count on from the"
    " state's (Accelerate counts from 0 in each process)"
)


class StreamingPackedDataset(PackDatasetBase, IterableDataset[TrainingPack]):
    """An iterable dataset of packs, made from samples that are drawn from several datasets.

    Args:
        config: overrides as on the command line, or a config.
        sources: the datasets to draw from. Each is a path like `source.path`, a list of overrides (such as
            `["source=jsonl", "source.path=…"]`; of other nodes than `source`, all have the same values), or a
            map-style dataset of conversations, Hugging Face's among them: see `online.user_dataset`. By default the
            paths in `source.path`.
        weights: relative frequency of each dataset; by default its number of samples.
        buffer_size: samples that wait in each worker when a pack is made; more wait if so many do not fill a pack.
        replacement: begin a used-up dataset anew in another order, so that packs never end. False: each sample is
            drawn once, by one worker of one rank, and the samples that wait at the end are packed as offline; ranks
            may then have unequal numbers of packs, and one that can pack none of its samples ends with a PackError.
        seed: the same on all ranks; by default the config's.
        rank, world_size: this data-parallel rank and their number; by default torch.distributed's, or torchrun's.
        states: `state_dict` of every rank's loader (torchdata's), or of this dataset on every rank if no loader's
            workers read it, to go on from there with any number of ranks and workers.
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
        sources: Sequence[StreamSource] | None = None,
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
        begun = prepare_stream(config, sources)
        check_options(options, begun.config.packing.layout.value)
        if (file := options.get("reference_logps")) and len(begun.datasets) > 1:
            raise PackError(f"reference_logps={file}: members of several sources may have the same id: give one source")
        #: the config with every setting
        self.config = begun.config
        #: makes packs and batches; pass it to `guard`
        rules = begun.template.rules_by(self.config.measure.engine.value)
        self.encoder = PackEncoder(begun.manifest, rules, **options)
        # nobody knows yet whether there are media in the samples
        schedule_trial_at_fork(self.encoder.members.media_processor)
        source, drop = self.config.source, options.get("on_bad_member") == "drop"
        of_labels = self.config.labels.untrained
        self._measuring = SampleMeasurer(begun.template, self.config.packing, source.control_tokens, drop, of_labels)
        self._datasets = begun.datasets
        self._place = ranks_to_deal_to(rank, world_size)
        #: settings that draws and packs depend on; a state is refused if one differs
        self._state_settings: dict[str, Any] = {
            "num_samples": [len(dataset) for dataset in self._datasets],
            "weights": None if weights is None else [float(weight) for weight in weights],
            "buffer_size": buffer_size,
            "replacement": replacement,
            "seed": self.config.seed if seed is None else seed,
            "fingerprint": begun.fingerprint,
        }
        self._identities = begun.identities
        self._counters = StreamCounters()
        self._packs: OnlinePacks | None = None
        self._epoch = StreamEpoch()
        self._has_warned_of_epoch = False
        #: states from which the next iteration goes on: of this worker, or of all
        self._states_to_resume: Sequence[Mapping[str, Any]] = [
            lane for state in states for lane in _worker_states(state)
        ]
        if states and not self._states_to_resume:
            raise PackError("states: a list with the state of every rank's loader; these have none of a stream")
        if self._states_to_resume:
            self._resume_from(self._states_to_resume)
        else:
            self._make_packs(0, 1)  # raises errors of settings before any worker starts

    @property
    def place(self) -> tuple[int, int]:
        """This data-parallel rank, and the number of ranks."""
        return self._place

    def as_dataset(self) -> Any:
        """Return a `datasets.IterableDataset` of this rank's packs; `collator` reads its rows.

        Set `accelerator_config={"dispatch_batches": False}` (TRL does), so that each rank reads its own packs.
        """
        return import_pack_number_rows().StreamRows(self, *self.place)

    @property
    def is_past_first_epoch(self) -> bool:
        """Whether the next iteration is of a later epoch than the first, and goes on with no loaded state."""
        return bool(self._epoch.number) and not self._is_resumed

    @property
    def _is_resumed(self) -> bool:
        return bool(self._states_to_resume) and not self._epoch.has_begun_in_workers

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration draw in the order of this epoch; loaded states of the same epoch are still resumed.

        Call it between iterations: a loader's workers begin theirs at different times.

        If an epoch is set that is before the one of loaded states, before or after they are loaded, it stands for
        theirs, and later ones count on from it: Accelerate counts epochs from 0 in each process.
        """
        former, number = self._epoch.number, self._epoch.set(epoch, self._is_resumed)
        if number != former:
            self._states_to_resume, self._packs = [], None
        if number != epoch and self._place[0] == 0 and not self._has_warned_of_epoch:
            _log.warning(_COUNTED_ON, epoch, number)
            self._has_warned_of_epoch = True

    def peek(self, num: int) -> list[TrainingPack]:
        """Return the first packs of the next iteration, at most `num`, which then has them again; none is counted."""
        return [*islice(self._make_packs(*_worker_and_num_workers(), StreamCounters()), num)]

    def __iter__(self) -> Iterator[TrainingPack]:
        """Yield packs from where the stream is.

        Raises:
            PackError: what reads this rank's packs would deal them to ranks once more.
        """
        refuse_second_dealing(type(self).__name__, self._place[1])
        self._epoch.begin()
        self._packs, self._states_to_resume = self._make_packs(*_worker_and_num_workers()), []
        return self._packs

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's state: its positions, and the indices and lengths of the samples in its buffer.

        Raises:
            PackError: a loader's workers make the packs, each with a state of its own.
        """
        if self._epoch.has_begun_in_workers and get_worker_info() is None:
            raise PackError(
                "a loader's workers make these packs, and each has a state of its own: torchdata's"
                " StatefulDataLoader(…).state_dict() has them all"
            )
        packs = self._packs
        if self._states_to_resume or packs is None:
            packs = self._make_packs(*_worker_and_num_workers())
        return {**self._state_settings, "sources": self._identities, **packs.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration resume from a `state_dict` of the same worker of the same rank."""
        self._resume_from([state])

    def _resume_from(self, lanes: Sequence[Mapping[str, Any]]) -> None:
        with parsing_state("state_dict()"):
            epoch = self._checked_positions(lanes[0])[0].epoch
            # states of earlier versions do not name sources
            for saved in {tuple(lane.get("sources", self._identities)) for lane in lanes}:
                _refuse_other_sources(saved, self._identities)
            self._states_to_resume = lanes
            self._epoch.load(epoch)
            self._make_packs(*_worker_and_num_workers())

    def _checked_positions(self, state: Mapping[str, Any]) -> list[Position]:
        for name, value in self._state_settings.items():
            if state[name] != value:
                raise PackError(f"{name}={value}: this state goes on with {name}={state[name]} alone")
        return [Position.from_dict(position) for position in state["positions"]]

    def statistics(self) -> dict[str, Any]:
        """Return counts of packs, samples, tokens and images so far, the fill, and skipped samples by reason.

        `longest_wait` is the number of packs that were made while a sample waited. The figures are for all workers of
        this rank, with packs that were read ahead, and with the counts of a loaded state.
        """
        return self._counters.total(self._measuring.packing.max_token_len)

    def _make_packs(self, worker: int, num_workers: int, counters: StreamCounters | None = None) -> OnlinePacks:
        """Make the iterator over the packs of one worker of this rank; by default `statistics` counts them.

        Without states it begins with the epoch. With states it resumes where this worker stopped; if the number of
        workers changed, it takes a share of what all former workers left.
        """
        settings, (rank, ranks), epoch = self._state_settings, self._place, self._epoch.number
        counters = self._counters if counters is None else counters
        here = Position(
            settings["fingerprint"], epoch=epoch, ranks=ranks * num_workers, rank=rank * num_workers + worker
        )
        positions, lane, waiting = [here for _ in self._datasets], None, list[WaitingSample]()
        if self._states_to_resume:
            of_lanes = [self._checked_positions(lane) for lane in self._states_to_resume]
            places = [(each.ranks, each.rank) for each, *_ in of_lanes]
            if (here.ranks, here.rank) in places:
                number = places.index((here.ranks, here.rank))
                positions, lane = of_lanes[number], self._states_to_resume[number]
            else:
                taken = [combine_taken_numbers(of_dataset, "worker") for of_dataset in zip(*of_lanes, strict=True)]
                positions = [replace(here, before=before) for before in taken]
                waiting = waiting_samples(lane["pool"] for lane in self._states_to_resume)[here.rank :: here.ranks]
        draws = SampleDraws(
            settings["num_samples"],
            positions,
            settings["weights"],
            replacement=settings["replacement"],
            seed=settings["seed"],
        )
        pool = WaitingPool(self._measuring.packing, settings["buffer_size"], settings["seed"])
        for sample in waiting:
            pool.add(sample.name, sample.costs, sample.group, sample.since)
        name, row = f"{epoch}/{here.rank}", counters.counters_of_worker(worker)
        lanes, sizes = range(rank * num_workers, (rank + 1) * num_workers), settings["num_samples"]
        drawn = [size for size, weight in zip(sizes, settings["weights"] or sizes, strict=True) if weight]
        num_here = sum(len(range(each, size, here.ranks)) for each in lanes for size in drawn)
        nothing = partial(counters.has_packed_nothing, num_here)
        packs = OnlinePacks(name, self._datasets, draws, self._measuring, pool, self.encoder, row, nothing)
        if lane is not None:
            packs.load_pool_and_counters(lane)
        return packs


def _refuse_other_sources(saved: Sequence[str | None], here: Sequence[str | None]) -> None:
    """Raise PackError if a state was saved with other files (by identities of samples), or with them in another order.

    Of other fingerprints of Hugging Face a warning says so: the same samples have another one if they lie elsewhere.
    """
    for number, (before, now) in enumerate(zip(saved, here, strict=True)):
        if before is None or now is None or before == now:
            continue
        if OF_HUGGING_FACE in before + now:
            _log.warning(
                "sources[%d] had another fingerprint of Hugging Face, or other source.*, when this state was saved: if"
                " its samples are others, some come twice, and some never",
                number,
            )
            continue
        raise PackError(
            f"sources[{number}] has other samples than the source there when this state was saved: give the same"
            " sources in the same order, with the same source.*"
        )


def _worker_states(state: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the states of a stream's workers that are nested in a loader's state."""
    if not isinstance(state, Mapping):
        return
    if state.get("_steps_since_snapshot"):
        raise PackError("states that are older than the last batch: StatefulDataLoader(…, snapshot_every_n_steps=1)")
    if "positions" in state:
        yield state
        return
    for inner in state.values():
        yield from _worker_states(inner)


def _worker_and_num_workers() -> tuple[int, int]:
    """Return this DataLoader worker's number and the number of workers; (0, 1) in a loader without workers."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
