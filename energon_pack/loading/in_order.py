"""Read packs in the order of their plan through Energon's loader, with any number of ranks and workers.

Energon deals each worker a stretch of the dataset, which depends on the number of workers. With `PacksInOrder` as the
task encoder, workers read one stream in turn instead. For the ranks and workers of the plan this is Energon's own
unshuffled order. Any other number of ranks and workers reads in the same order, and can resume in the middle of it.
"""

import copy
import hashlib
import io
import json
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import accumulate
from tarfile import TarError
from typing import Any, TypeVar

import numpy as np
from megatron.energon import SavableDataset, TaskEncoder, WorkerConfig
from megatron.energon.errors import FatalSampleError as FatalSampleError  # ends the training; others are only logged
from megatron.energon.flavors import BaseWebdatasetFactory
from megatron.energon.flavors.base_dataset import BaseCoreDatasetFactory
from megatron.energon.flavors.webdataset.itar_reader import ShardInfosITarReader
from megatron.energon.wrappers import MapDataset, PackingDataset
from megatron.energon.wrappers.base import BaseWrapperDataset

from energon_pack.dataset.damaged_shards import refuse_damaged_shards, unreadable_shard_error
from energon_pack.dataset.manifest import MANIFEST, ORDER_FILE
from energon_pack.errors import amount
from energon_pack.run.files import META_FOLDER
from energon_pack.run.seeded_random import Ints
from energon_pack.run.untrusted_input import parse_json
from energon_pack.steps.journal import find_position_to_resume
from energon_pack.steps.position import PackOrder, Position, State, positions_of_states
from energon_pack.steps.topology import Topology, topology_of

__all__ = ["PackStream", "PacksInOrder", "positions_of"]

_log = logging.getLogger(__name__)
#: most shards that a worker keeps open; below that, a worker keeps open all shards that it reads in turn
_MAX_OPEN = 64
Manifest = dict[str, Any]
Encoder = TypeVar("Encoder", bound="PacksInOrder")


class PackStream(SavableDataset[Any]):
    """The undecoded packs that one rank reads from a position on; each iteration is one epoch.

    The first iteration after a restored state reads the rest of the state's epoch: nothing if that epoch is finished.
    `order` has for each position the number of its pack in the tars, int64[num]; None: the order of the tars.
    """

    _savable_fields = ("_position", "_count", "_epoch")

    def __init__(
        self,
        factory: BaseWebdatasetFactory[Any],
        position: Position,
        worker_config: WorkerConfig,
        reorders: bool = False,
        order: Ints | None = None,
    ):
        super().__init__(worker_config=worker_config)
        self.position, self._order, self._shards = position, order, factory.shards
        #: packs of an epoch
        self.num = len(factory) if order is None else len(order)
        self._reorders = reorders
        self._reader = ShardInfosITarReader(
            factory.path,
            factory.shards,
            part_filter=factory.part_filter,
            sample_filter=factory.sample_filter,
            itar_cache_size=min(_MAX_OPEN, _MAX_OPEN if order is not None else position.topology.row_size),
        )
        self.reset_state_own()

    def reset_state_own(self) -> None:
        #: plain, for the saved state; with `_count` it tells the next pack
        self._position = asdict(self.position)
        #: number of packs that this worker has read
        self._count = 0
        #: that of the last pack that was read: it is under way even if it has no pack left
        self._epoch, self._has_ended = max(0, self.position.last) // self.num, False
        self._stream = PackOrder(self.num, self.position.topology, self._reorders)

    @property
    def has_ended(self) -> bool:
        """Whether this rank has no pack left in the epoch that its position is in."""
        return self.position.number_at() >= (self._epoch + 1) * self.num

    def restore_state(self, state: Any) -> None:
        super().restore_state(state)
        (position,) = positions_of_states([{"position": self._position}], self.position, "save_state_rank()")
        self._stream, self._has_ended = PackOrder(self.num, position.topology, self._reorders), False

    def __iter__(self) -> Iterator[Any]:
        self.worker_config.assert_worker()
        self._epoch, self._has_ended = self._epoch + self._has_ended, False
        position, workers = Position.from_dict(self._position), max(1, self.worker_config.num_workers)
        worker, end = self.worker_config.rank_worker_id(), (self._epoch + 1) * self.num
        while (number := position.number_at(self._count * workers + worker)) < end:
            self._count += 1
            pack = self._pack(number)
            if pack is not None:
                yield pack
        self._has_ended = True

    def _pack(self, position: int) -> Any:
        """Return the parts of the pack at a position, as Energon reads them; None: the dataset excludes the pack."""
        number = self._stream.pack_at(position)
        number = number if self._order is None else int(self._order[number])
        try:
            pack = self._reader[number]
        except (OSError, TarError, ValueError) as error:
            ends = list(accumulate(shard.count for shard in self._shards))
            raise unreadable_shard_error(str(self._shards[bisect_right(ends, number)].path), error) from None
        if pack is not None:
            pack["__restore_key__"] = (type(self).__name__, position)
        return pack

    def len_worker(self, worker_idx: int | None = None) -> int:
        if worker_idx is None:
            worker_idx = self.worker_config.rank_worker_id()
        ranks = self.worker_config.world_size
        step = ranks * max(1, self.worker_config.num_workers)
        return len(range(worker_idx * ranks + self.worker_config.rank, self.num, step))

    def worker_has_samples(self) -> bool:
        return True

    def can_restore_sample(self) -> bool:
        return True

    def restore_sample(self, restore_key: tuple[Any, ...]) -> Any:
        name, position = restore_key
        if name != type(self).__name__:
            raise ValueError(f"{restore_key} is no pack of a stream")
        return self._pack(position)

    def config(self) -> dict[str, Any]:
        position, worker_config = asdict(self.position), self.worker_config.config()
        return {"type": type(self).__qualname__, "position": position, "worker_config": worker_config}

    def __str__(self) -> str:
        return f"PackStream(rank={self.position.rank}, ranks={self.position.ranks}, num={self.num})"


def positions_of(packs: Sequence[Any]) -> list[int]:
    """Return the positions of decoded packs in their `PackStream`; packs that Energon itself deals have none."""
    keys = (pack.__restore_key__[-2:] for pack in packs)
    return list(dict.fromkeys(int(key[1]) for key in keys if key[:1] == (PackStream.__name__,)))


def buffer_samples_without_pack(built_dataset: Any, choose_packs: Callable[[list[Any], bool], list[list[Any]]]) -> None:
    """Keep in Energon's buffer what `choose_packs`, which gets samples and whether they end, puts in no pack."""
    while isinstance(built_dataset, BaseWrapperDataset):
        if isinstance(built_dataset, PackingDataset):
            built_dataset.pre_packer = partial(_choose_and_keep, built_dataset, choose_packs)
        built_dataset = built_dataset.dataset


def _choose_and_keep(
    packing: Any, choose: Callable[[list[Any], bool], list[list[Any]]], samples: list[Any]
) -> list[list[Any]]:
    """Choose packs, and put the other samples back into the buffer, which Energon emptied before this call.

    The buffer is full at every call but the last.
    """
    packs = choose(samples, len(samples) < packing.buffer_size)
    chosen = {id(sample) for pack in packs for sample in pack}
    packing._reading_buffer.extend([sample for sample in samples if id(sample) not in chosen])
    return packs


class _InOrderFactory(BaseCoreDatasetFactory[Any]):
    """Energon's dataset factory, except that packs are read in the order of the plan."""

    def __init__(self, factory: BaseWebdatasetFactory[Any], stream: PackStream):
        self.factory, self.stream = factory, stream
        self.__sample_type__ = factory.__sample_type__
        self.paths, self.subflavors = factory.paths, getattr(factory, "subflavors", {})

    def __len__(self) -> int:
        return self.stream.num

    def as_file_store(self) -> Any:
        return self.factory.as_file_store()

    def build(self, worker_rotation_offset: int = 0) -> SavableDataset[Any]:
        options: dict[str, Any] = {"stateless_map_fn": True, "map_fn_config": self.factory.config}
        return MapDataset(self.stream, self.factory.load_sample, worker_config=self.stream.worker_config, **options)


class PacksInOrder(TaskEncoder[Any, Any, Any, Any]):
    """A base class for task encoders, listed before Energon's DefaultTaskEncoder: it reads packs in their plan's order.

    The dataset must be the only one, and the settings must keep its order: `shuffle_over_epochs_multiplier=None`,
    `parallel_shard_iters=1`, no shuffle buffer. `loading.train_arguments` returns such settings.
    """

    _states: Sequence[State] = ()
    _micro_batches: int | None = None

    def going_on(self: Encoder, states: Sequence[State], micro_batches: int | None = None) -> Encoder:
        """Return a copy of this encoder that resumes from `Journal.state()` of the ranks: see `train_arguments`."""
        encoder = copy.copy(self)
        encoder._states, encoder._micro_batches = states, micro_batches
        return encoder

    def build_train_datasets(
        self, *, datasets: list[Any], worker_config: WorkerConfig, shuffle_buffer_size: int | None = None, **more: Any
    ) -> SavableDataset[Any]:
        """Call Energon's own method; a single unshuffled dataset is replaced by one that is read in order."""
        manifests = [manifest_of(loaded.dataset) for loaded in datasets]
        for loaded, manifest in zip(datasets, manifests, strict=True):
            if worker_config.rank == 0 and isinstance(loaded.dataset, BaseWebdatasetFactory):
                refuse_damaged_shards(
                    str(loaded.dataset.path), manifest, [shard.name for shard in loaded.dataset.shards]
                )
        if len(datasets) == 1 and _keeps_order(datasets[0].dataset, shuffle_buffer_size):
            stream = self._stream_of(datasets[0].dataset, manifests[0], worker_config)
            if self._states and worker_config.rank == 0 and not more.get("repeat", True) and stream.has_ended:
                told = "the states are of a finished epoch: repeat=False reads nothing, repeat=True the next epoch"
                _log.warning("%s: %s", datasets[0].dataset.path, told)
            loaded = copy.copy(datasets[0])
            loaded.dataset = _InOrderFactory(loaded.dataset, stream)
            datasets = [loaded]
        elif any(state["position"] is not None for state in self._states):
            raise ValueError("states of packs in the order of one plan: these are shuffled, or a blend of datasets")
        elif worker_config.rank == 0:
            paths = ", ".join(str(path) for loaded in datasets for path in getattr(loaded.dataset, "paths", ()))
            has_steps = any(topology_of(manifest).has_several_packs_per_step for manifest in manifests)
            lost = ["steps are not even as planned; they are with one dataset and loading.train_arguments"] * has_steps
            if self._states:
                lost += ["states only say how much was consumed; which come next, Energon's restore_state_rank knows"]
            if lost:
                _log.warning("%s: packs are shuffled or blended, so %s", paths, "; and ".join(lost))
        built: SavableDataset[Any] = super().build_train_datasets(
            datasets=datasets, worker_config=worker_config, shuffle_buffer_size=shuffle_buffer_size, **more
        )
        return built

    def _stream_of(self, factory: BaseWebdatasetFactory[Any], manifest: Manifest, worker: WorkerConfig) -> PackStream:
        ranks, planned = worker.world_size, topology_of(manifest)
        has_one_turn = manifest.get("turns", 1) == 1
        # Without a planned topology each rank that begins gets a stretch of shards, however many workers it has.
        topology = Topology(ranks) if planned == Topology() and has_one_turn else planned
        order = _order_of_packs(factory, manifest)
        num = len(factory) if order is None else len(order)
        here = Position(f"{num} packs ({_fingerprint(factory, manifest)})", topology, ranks=ranks, rank=worker.rank)
        position = find_position_to_resume(self._states, here, num)
        of_splits = [split["packs"] for split in manifest.get("splits", {}).values()]
        has_all = not factory.sample_excludes and len(factory) in of_splits  # else all later packs move
        is_even = has_all and _has_even_steps(planned, position, self._micro_batches)
        if worker.rank == 0 and planned.has_several_packs_per_step and not is_even:
            warning = (
                "%s: steps are not even as planned for %d ranks: here are %s%s, from pack %d on; they are with ranks"
                " that divide %d, steps of %d packs of all ranks, from whole steps on, with no pack excluded"
            )
            with_packs = f" with {amount(self._micro_batches, 'pack')} each" if self._micro_batches else ""
            read, all_packs = position.before.first + len(position.before.above), planned.unit_size
            _log.warning(
                warning,
                factory.path,
                planned.data_parallel,
                amount(ranks, "rank"),
                with_packs,
                read,
                planned.row_size,
                all_packs,
            )
        return PackStream(factory, position, worker, has_one_turn, order)


def _has_even_steps(planned: Topology, position: Position, micro_batches: int | None) -> bool:
    """Tell whether the planned steps stay whole with these ranks, their packs in a step, and this position."""
    ranks, before = position.ranks, position.before
    if planned.row_size % ranks:
        return False
    size, of_each = ranks, planned.unit_size // ranks
    if planned.rows_per_step > 1:
        size = planned.unit_size
        if ranks != planned.data_parallel if micro_batches is None else micro_batches % of_each > 0:
            return False
    return (before.first + len(before.above)) % size == 0


def _keeps_order(factory: Any, shuffle_buffer_size: int | None) -> bool:
    """Tell whether a dataset's loader settings keep the order of its packs."""
    return (
        isinstance(factory, BaseWebdatasetFactory)
        and type(factory).build is BaseWebdatasetFactory.build
        and factory.training
        and factory.shuffle_over_epochs is None
        and factory.parallel_shard_iters == 1
        and factory.subset is None
        and (shuffle_buffer_size or 0) <= 1
        and len(factory) > 0
    )


def manifest_of(dataset_factory: Any) -> Manifest:
    """Return the dataset's energon_pack.json; empty if there is none."""
    path = getattr(dataset_factory, "path", None)
    file = None if path is None else path / META_FOLDER / MANIFEST
    content: Manifest = parse_json(file.read_bytes()) if file is not None and file.is_file() else {}
    return content


def _order_of_packs(factory: BaseWebdatasetFactory[Any], manifest: Manifest) -> Ints | None:
    """Return the pack numbers of an order over several datasets; None: it is one. Raises ValueError if it is stale."""
    if not manifest.get("parts"):
        return None
    for part in manifest["parts"]:
        file = factory.path / part["path"] / META_FOLDER / MANIFEST
        if hashlib.sha256(file.read_bytes()).hexdigest()[:16] != part["digest"]:
            raise ValueError(f"{factory.path}: {part['path']} was packed again since: make the order anew")
    order: Ints = np.load(io.BytesIO((factory.path / META_FOLDER / ORDER_FILE).read_bytes()))
    if len(factory) != manifest["splits"]["train"]["packs"]:
        raise ValueError(f"{factory.path}: an order is of the split train, as it was when the order was made")
    return order


def _fingerprint(factory: BaseWebdatasetFactory[Any], manifest: Manifest) -> str:
    """Return a hash that identifies the packs: another packing or other shards give another hash."""
    shards = [[shard.name, shard.count] for shard in factory.shards]
    return hashlib.sha256(json.dumps([manifest, shards], sort_keys=True).encode()).hexdigest()[:16]
