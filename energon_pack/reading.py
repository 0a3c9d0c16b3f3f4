"""Packs in the order of their plan through Energon's loader, for any number of ranks and workers.

Energon deals each worker a stretch of the dataset, which depends on how many there are. A task encoder that is
`PacksInOrder` has it read turns of one stream instead: what Energon itself reads, unshuffled, where a dataset is
trained on by those for whom it was laid out; the same order for all others, and from the middle of it.
"""

import copy
import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from megatron.energon import SavableDataset, TaskEncoder, WorkerConfig
from megatron.energon.flavors import BaseWebdatasetFactory
from megatron.energon.flavors.base_dataset import BaseCoreDatasetFactory
from megatron.energon.flavors.webdataset.itar_reader import ShardInfosITarReader
from megatron.energon.wrappers import MapDataset

from energon_pack.dataset.manifest import MANIFEST
from energon_pack.errors import amount
from energon_pack.run.files import META_FOLDER
from energon_pack.steps.journal import State, begin
from energon_pack.steps.place import Place, Share
from energon_pack.steps.stream import Stream
from energon_pack.steps.topology import Topology, topology_of

__all__ = ["PackStream", "PacksInOrder", "positions_of"]

_log = logging.getLogger(__name__)
#: shards that a worker keeps open: as many as it reads by turns, at most these
_MAX_OPEN = 64
Manifest = dict[str, Any]
Encoder = TypeVar("Encoder", bound="PacksInOrder")


class PackStream(SavableDataset[Any]):
    """Raw packs of one rank's share; an iteration ends with the epoch, the next one goes on."""

    _savable_fields = ("_share", "_count", "_epoch")

    def __init__(self, factory: BaseWebdatasetFactory[Any], share: Share, worker_config: WorkerConfig):
        super().__init__(worker_config=worker_config)
        self.share = share
        self._begun = asdict(share)
        self._reader = ShardInfosITarReader(
            factory.path,
            factory.shards,
            part_filter=factory.part_filter,
            sample_filter=factory.sample_filter,
            itar_cache_size=min(_MAX_OPEN, share.place.topology.row),
        )
        self._stream = Stream(share.place.num, share.place.topology)
        self.reset_state_own()

    def reset_state_own(self) -> None:
        #: plain, as states are; with the rest it says which pack is next
        self._share = copy.deepcopy(self._begun)
        #: packs that this worker has read
        self._count = 0
        share = Share.of(self._share)
        row = share.taken.left(0) * share.ranks
        self._epoch = share.place.taken.left(row) // share.place.num

    def restore_state(self, state: Any) -> None:
        super().restore_state(state)
        place, here = Share.of(self._share).place, self.share.place
        if (place.num, place.fingerprint) != (here.num, here.fingerprint):
            raise ValueError(f"a state of another dataset, of {place.num} packs; this one has {here.num}")
        self._stream = Stream(place.num, place.topology)

    def __iter__(self) -> Iterator[Any]:
        self.worker_config.assert_worker()
        share, workers = Share.of(self._share), max(1, self.worker_config.num_workers)
        worker, end = self.worker_config.rank_worker_id(), (self._epoch + 1) * share.place.num
        while (position := share.position(self._count * workers + worker)) < end:
            self._count += 1
            pack = self._pack(position)
            if pack is not None:
                yield pack
        self._epoch += 1

    def _pack(self, position: int) -> Any:
        """A pack's parts as Energon reads them; None: the dataset excludes it."""
        pack = self._reader[self._stream.index(position)]
        if pack is not None:
            pack["__restore_key__"] = (type(self).__name__, position)
        return pack

    def len_worker(self, worker_idx: int | None = None) -> int:
        if worker_idx is None:
            worker_idx = self.worker_config.rank_worker_id()
        ranks = self.worker_config.world_size
        step = ranks * max(1, self.worker_config.num_workers)
        return len(range(worker_idx * ranks + self.worker_config.rank, len(self._reader), step))

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
        return {"type": type(self).__qualname__, "share": self._begun, "worker_config": self.worker_config.config()}

    def __str__(self) -> str:
        return f"PackStream(rank={self.share.rank}, ranks={self.share.ranks}, num={self.share.place.num})"


def positions_of(packs: Sequence[Any]) -> list[int]:
    """Where in the stream packs are, from their restore keys; none for packs that Energon deals itself."""
    keys = (pack.__restore_key__[-2:] for pack in packs)
    return list(dict.fromkeys(int(key[1]) for key in keys if key[:1] == (PackStream.__name__,)))


class _InOrder(BaseCoreDatasetFactory[Any]):
    """A dataset that is read in the order of its plan; all else is Energon's."""

    def __init__(self, factory: BaseWebdatasetFactory[Any], share: Share, worker_config: WorkerConfig):
        self.factory, self.share, self.worker_config = factory, share, worker_config
        self.__sample_type__ = factory.__sample_type__
        self.paths, self.subflavors = factory.paths, getattr(factory, "subflavors", {})

    def __len__(self) -> int:
        return len(self.factory)

    def as_file_store(self) -> Any:
        return self.factory.as_file_store()

    def build(self, worker_rotation_offset: int = 0) -> SavableDataset[Any]:
        return MapDataset(
            PackStream(self.factory, self.share, self.worker_config),
            self.factory.load_sample,
            stateless_map_fn=True,
            map_fn_config=self.factory.config,
            worker_config=self.worker_config,
        )


class PacksInOrder(TaskEncoder[Any, Any, Any, Any]):
    """For a task encoder, before Energon's default one: a packed dataset is read in the order of its plan.

    That is so where it is the only one, and the settings leave its order: `shuffle_over_epochs_multiplier=None`,
    `parallel_shard_iters=1`, no shuffle buffer. `loading.train_arguments` gives them.
    """

    _states: Sequence[State] = ()
    _micro_batches: int | None = None

    def going_on(self: Encoder, states: Sequence[State], micro_batches: int | None = None) -> Encoder:
        """This encoder, with which training goes on where these states are: see `loading.train_arguments`."""
        encoder = copy.copy(self)
        encoder._states, encoder._micro_batches = states, micro_batches
        return encoder

    def build_train_datasets(
        self, *, datasets: list[Any], worker_config: WorkerConfig, shuffle_buffer_size: int | None = None, **more: Any
    ) -> SavableDataset[Any]:
        """Energon's own, of a dataset that is read in order.

        Raises:
            ValueError: see `steps.journal.begin`; or states of packs in order, where these are not read so.
        """
        manifests = [_manifest(loaded.dataset) for loaded in datasets]
        if len(datasets) == 1 and _keeps_order(datasets[0].dataset, shuffle_buffer_size):
            share = self._share_of(datasets[0].dataset, manifests[0], worker_config)
            loaded = copy.copy(datasets[0])
            loaded.dataset = _InOrder(loaded.dataset, share, worker_config)
            datasets = [loaded]
        elif any(state["share"] is not None for state in self._states):
            raise ValueError("states of packs in the order of one plan: these are shuffled, or a blend of datasets")
        elif worker_config.rank == 0:
            paths = ", ".join(str(path) for loaded in datasets for path in getattr(loaded.dataset, "paths", ()))
            if any(topology_of(manifest).has_steps for manifest in manifests):
                _log.warning(
                    "%s: packs are shuffled or blended, so steps are not even as planned; they are with one dataset and"
                    " loading.train_arguments",
                    paths,
                )
            if self._states:
                _log.warning(
                    "%s: of packs that are shuffled or blended, states only say how much was consumed; which come next,"
                    " Energon's own restore_state_rank knows",
                    paths,
                )
        found: SavableDataset[Any] = super().build_train_datasets(
            datasets=datasets, worker_config=worker_config, shuffle_buffer_size=shuffle_buffer_size, **more
        )
        return found

    def _share_of(self, factory: BaseWebdatasetFactory[Any], manifest: Manifest, worker: WorkerConfig) -> Share:
        ranks, planned = worker.world_size, topology_of(manifest)
        # Not planned for anybody: each rank of those that begin gets a stretch of shards, however many workers it has.
        topology = planned if planned != Topology() else Topology(ranks)
        share = begin(Place(len(factory), _fingerprint(factory, manifest), topology), ranks, worker.rank, self._states)
        if worker.rank == 0 and planned.has_steps:
            other = _other_steps(planned, ranks, self._micro_batches)
            if lost := other or _left_out(factory, manifest) or _within_step(planned, share):
                _log.warning("%s is laid out for %d ranks, %s", factory.path, planned.data_parallel, lost)
        return share


def _other_steps(planned: Topology, ranks: int, micro_batches: int | None) -> str:
    """What would make steps even that are not; empty where they may be."""
    if planned.row % ranks:
        return f"these are {ranks}: steps are not even; they are with ranks that divide {planned.row}"
    of_each = planned.unit // ranks
    is_other = ranks != planned.data_parallel if micro_batches is None else micro_batches % of_each > 0
    if planned.rows_per_step == 1 or not is_other:
        return ""
    with_packs = "" if micro_batches is None else f" with {amount(micro_batches, 'pack')} each"
    return f"these are {ranks}{with_packs}: steps are even with {amount(of_each, 'pack')} of each rank in a step"


def _left_out(factory: BaseWebdatasetFactory[Any], manifest: Manifest) -> str:
    """That packs are not read with which steps are even: all that come later are in other steps."""
    of_splits = [split["packs"] for split in manifest.get("splits", {}).values()]
    if not factory.sample_excludes and len(factory) in of_splits:
        return ""
    return "but split.yaml leaves out packs: steps are not even; they are where it has all packs, and no exclude"


def _within_step(planned: Topology, share: Share) -> str:
    """That others stopped in the middle of a step of these ranks, so that each step has parts of two."""
    taken, size = share.place.taken, share.ranks
    if planned.rows_per_step > 1:
        size = planned.unit
    read = taken.first + len(taken.above)
    if read % size == 0:
        return ""
    return f"but {read} packs are read: steps are not even; they are from a checkpoint after a multiple of {size} packs"


def _keeps_order(factory: Any, shuffle_buffer_size: int | None) -> bool:
    """Whether what a dataset was loaded with leaves its packs in their order."""
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


def _manifest(factory: Any) -> Manifest:
    """What a dataset says of its packing; nothing, where it does not."""
    path = getattr(factory, "path", None)
    file = None if path is None else path / META_FOLDER / MANIFEST
    content: Manifest = json.loads(file.read_text()) if file is not None and file.is_file() else {}
    return content


def _fingerprint(factory: BaseWebdatasetFactory[Any], manifest: Manifest) -> str:
    """Which packs are read: those of another packing, or of other shards, are others."""
    shards = [[shard.name, shard.count] for shard in factory.shards]
    return hashlib.sha256(json.dumps([manifest, shards], sort_keys=True).encode()).hexdigest()[:16]
