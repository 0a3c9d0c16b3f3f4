"""Pack without a writing step: plan from exact lengths at the start, build packs in the loader's workers.

    config ──► lengths (cached) ──► plan of an epoch ──dataset[i]──► members read and encoded ──collate──► a batch

    packs = LazyPackedDataset(["+model=qwen2_5_vl", "source.path=…", "packing.max_token_len=8192"])
    loader = DataLoader(packs, sampler=PackSampler(packs), collate_fn=packs.collate, num_workers=4)

The packs of the first epoch equal those that the same settings write to disk.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from energon_pack.config import PackConfig, PackingConfig
from energon_pack.config.compose import config_of
from energon_pack.dataset.files import LEDGER
from energon_pack.dataset.manifest import PackTotals
from energon_pack.dataset.plan_file import totals_of_plan
from energon_pack.errors import PackError
from energon_pack.online.prepare import ITEMS_FOLDER, make_zero_in_shared_memory, prepare
from energon_pack.online.user_dataset import MapStyleDataset
from energon_pack.plan.existing_packs import exchange_members_for_epoch
from energon_pack.plan.packs import PackPlan, select_packs, split_of_packs
from energon_pack.plan.report import Report
from energon_pack.plan.splits import SPLITS
from energon_pack.run.bounded_memory import LruCache
from energon_pack.run.files import write_atomically
from energon_pack.run.seeded_random import Ints
from energon_pack.samples.member import MemberInput
from energon_pack.samples.settings import PreferenceTake
from energon_pack.samples.skip import Skip
from energon_pack.stages.planning import Planned
from energon_pack.trainers.on_disk import PacksByNumber
from energon_pack.training.member_encoder import UnreadableMember
from energon_pack.training.pack_encoder import PackEncoder, check_options
from energon_pack.training.preference import refuse_sft_options
from energon_pack.training.worker_start import schedule_trial_at_fork

__all__ = ["LazyPackedDataset"]


class LazyPackedDataset(PacksByNumber):
    """A map-style dataset of packs that are made while loading; an item is an encoded pack.

    Args:
        config: overrides as on the command line, or a config.
        conversations: a map-style dataset (Hugging Face's …) in place of `source.path`: see `online.user_dataset`.
        fingerprint: identifies `conversations`, so that their lengths are kept; by default Hugging Face's fingerprint.
        split: a split of `output.splits`: `train`, `val` or `test`.
        max_packs: how many packs to take, as mixed as all packs are; None: all.
        options: options of PackEncoder: `layout`, `labels`, `pad_to`, `on_bad_member`, `dummy_image` …

    Raises:
        PackError: a value of `config` or an argument makes no sense.
        SamplesLost: bad data cost more than `max_skipped`, or a whole modality.
    """

    def __init__(
        self,
        config: PackConfig | Sequence[str],
        conversations: MapStyleDataset | None = None,
        *,
        fingerprint: str | None = None,
        split: str = "train",
        max_packs: int | None = None,
        **options: Any,
    ):
        if split not in SPLITS:
            raise PackError(f"split={split}: one of {', '.join(SPLITS)}")
        if max_packs is not None and max_packs < 1:
            raise PackError(f"max_packs={max_packs}: at least 1")
        config = config_of(config)
        check_options(options, config.packing.layout.value)  # measuring may take hours
        if config.source.take is PreferenceTake.both:
            refuse_sft_options(config.packing.layout.value, options)
        prepared = prepare(config, conversations, fingerprint)
        self.micro_batches = prepared.micro_batches
        #: the config with every setting
        self.config = prepared.config
        #: the file that names each sample in no pack, with its reason
        self.skipped = prepared.folder / ITEMS_FOLDER / LEDGER
        rules = prepared.template.rules_by(self.config.measure.engine.value)
        self.encoder = PackEncoder(prepared.manifest, rules, **options)
        planned = prepared.planned
        if planned.report.by_media.keys() - {"text"}:
            schedule_trial_at_fork(self.encoder.members.media_processor)
        packs = np.flatnonzero(split_of_packs(planned.lengths.items, planned.plan) == SPLITS.index(split))
        if max_packs is not None:
            packs = packs[:max_packs]
        if not len(packs):
            raise PackError(f"split={split} has no pack: output.splits.{split} fills it")
        self._num_packs, name = len(packs), f"{split}-{len(packs)}"
        first = replace(planned, plan=select_packs(planned.plan, [packs]))
        self._plans = EpochPlans(prepared.folder / name, len(packs), self.config.packing, self.config.seed, first)
        self._plans.ensure_written(0)
        self._samples = prepared.samples
        self._epoch = make_zero_in_shared_memory()
        self._key_prefix = prepared.folder.name[:8]
        self.fingerprint = f"{prepared.folder.name}-{name}"

    @property
    def report(self) -> Report | None:
        """The figures of the first epoch's plan: skipped samples by reason, fill …; None in a DataLoader worker."""
        return None if self._plans.first is None else self._plans.first.report

    def _key_and_members(self, epoch: int, number: int) -> tuple[str, Iterator[MemberInput | UnreadableMember]]:
        items = self._plans.items_of_pack(epoch, number)
        return f"{self._key_prefix}_{epoch:03d}_{number:08d}", map(self._member, items)

    def _pack_totals(self, epoch: int) -> PackTotals:
        return self._plans.pack_totals(epoch)

    def _member(self, item: int) -> MemberInput | UnreadableMember:
        try:
            return self._samples.member(item)
        except (PackError, Skip, OSError) as error:
            return UnreadableMember(self._samples.sample_id(item), error)

    def set_epoch(self, epoch: int) -> None:
        """Switch to the packs of another epoch: as many packs, with other members and in another order.

        Call it between iterations: in one that is under way, workers would take the rest from this epoch.

        With `packing.max_members=1`, every epoch has the first epoch's packs, so that `lens` holds for all: Accelerate
        calls this method whichever sampler is used.
        """
        if int(epoch) < 0:
            raise ValueError(f"epoch={epoch}: from 0 on")
        epoch = 0 if self.config.packing.max_members == 1 else int(epoch)
        self.have_epoch(epoch)
        self._epoch.fill_(epoch)

    def have_epoch(self, epoch: int) -> None:
        """Write the plan of an epoch to the cache, before DataLoader workers start that read it."""
        self._plans.ensure_written(epoch)

    def plan_of(self, epoch: int) -> PackPlan:
        """Return the plan of an epoch."""
        return self._plans.plan(epoch)


class EpochPlans:
    """The plan of each epoch: which items are in which pack. All epochs have equally many packs.

    Args:
        folder: where plans are written as files for workers.
        first: the first epoch's plan, with the lengths by which others are planned; None in a pickled copy, such as in
            a DataLoader worker: so a copy does not grow with the number of samples.
    """

    def __init__(self, folder: Path, num_packs: int, packing: PackingConfig, seed: int, first: Planned | None = None):
        self._folder, self._num_packs, self.first = folder, num_packs, first
        self._packing, self._seed = packing, seed
        self._mapped_plans: LruCache[int, Ints] = LruCache(2)  # an epoch's last packs and the next one's first may mix

    def items_of_pack(self, epoch: int, pack: int) -> list[int]:
        """Return the item numbers of a pack's members."""
        flat = self._written_plan(epoch)
        start, end = flat[pack], flat[pack + 1]
        items: list[int] = flat[self._num_packs + 1 + start : self._num_packs + 1 + end].tolist()
        return items

    def ensure_written(self, epoch: int) -> None:
        """Write the plan of an epoch for workers, unless it is written already; raises like `plan`."""
        path = self._path(epoch)
        if path.exists():
            return
        plan, file = self.plan(epoch), io.BytesIO()
        np.save(file, np.concatenate((plan.starts, plan.items)))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, file.getvalue())

    def plan(self, epoch: int) -> PackPlan:
        """Return the plan of an epoch; raises PackError in a pickled copy."""
        first = self._require_first(epoch)
        size = 2 if first.lengths.has_pairs else 1
        return exchange_members_for_epoch(first.plan, first.lengths.items, self._packing, self._seed, epoch, size)

    def pack_totals(self, epoch: int) -> PackTotals:
        """Return sums over the members of each pack of an epoch; raises like `plan`."""
        first = self._require_first(epoch)
        return totals_of_plan(first.lengths.items, self.plan(epoch), first.cost_model)

    def _require_first(self, epoch: int) -> Planned:
        if self.first is None:
            raise PackError(
                f"epoch {epoch}: this copy of the dataset (for example in a DataLoader worker) cannot plan an epoch:"
                " call set_epoch() on the original, or build the dataset again here"
            )
        return self.first

    def _written_plan(self, epoch: int) -> Ints:
        plan = self._mapped_plans.get(epoch)
        if plan is None:
            self.ensure_written(epoch)
            plan = self._mapped_plans.put(epoch, np.load(self._path(epoch), mmap_mode="r"))
        return plan

    def _path(self, epoch: int) -> Path:
        return self._folder / f"{epoch:06d}.npy"

    def __reduce__(self) -> tuple[type["EpochPlans"], tuple[Path, int, PackingConfig, int]]:
        return EpochPlans, (self._folder, self._num_packs, self._packing, self._seed)
