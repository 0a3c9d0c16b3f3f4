"""Pack without a writing step: plan from exact lengths at the start, build packs in the loader's workers.

    config ──► lengths (cached) ──► plan of an epoch ──dataset[i]──► members read and encoded ──collate──► a batch

    packs = LazyPackedDataset(["+model=qwen2_5_vl", "source.path=…", "packing.max_token_len=8192"])
    loader = DataLoader(packs, sampler=PackSampler(packs), collate_fn=packs.collate, num_workers=4)

The packs of the first epoch equal those that the same settings write to disk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from energon_pack.config import PackConfig
from energon_pack.config.compose import config_of
from energon_pack.dataset.files import LEDGER
from energon_pack.errors import PackError
from energon_pack.online.epochs import NO_LENGTHS, EpochPlans
from energon_pack.online.given import MapStyle
from energon_pack.online.prepare import ROWS, prepare
from energon_pack.online.rows import ItemRow, Rows
from energon_pack.plan.epochs import plan_of_epoch
from energon_pack.plan.packs import PackPlan, costs_of_packs, split_of_packs, taken
from energon_pack.plan.report import Report
from energon_pack.plan.splits import SPLITS
from energon_pack.run.seeded import Ints
from energon_pack.samples.member import MemberInput
from energon_pack.samples.skip import Skip
from energon_pack.stages.planning import Planned
from energon_pack.trainers.doors import Numbered
from energon_pack.training.batch import PackedBatch
from energon_pack.training.pack_encoder import BadPack, Pack, PackEncoder, Unread, check_options

__all__ = ["LazyPackedDataset"]


class LazyPackedDataset(Numbered, Dataset[Pack]):
    """A map-style dataset of packs, made from a source or from a dataset of conversations; an item is an encoded pack.

    Args:
        config: overrides as on the command line, or a config.
        conversations: a map-style dataset, Hugging Face's among them, in place of `source.path`: see `online.given`.
        fingerprint: identifies `conversations`, so that their lengths are kept; by default Hugging Face's fingerprint.
        split: a split of `output.splits`: `train`, `val` or `test`.
        max_packs: take only so many packs; they are as mixed as all packs are.
        options: options of PackEncoder: `layout`, `labels`, `pad_to`, `on_bad_member`, `dummy_image` …

    Raises:
        PackError: the errors of packing: an unknown setting, nothing to pack, more lost than `max_skipped` …
        ValueError: the errors of PackEncoder.
    """

    def __init__(
        self,
        config: PackConfig | Sequence[str],
        conversations: MapStyle | None = None,
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
        prepared = prepare(config, conversations, fingerprint)
        #: packs of each rank in a step
        self.micro_batches = prepared.micro_batches
        planned = prepared.planned
        #: the config with every setting
        self.config = prepared.config
        #: the figures of the plan: samples left out by reason, fill, tokens …
        self.report: Report | None = planned.report
        #: the file that names each sample in no pack, with its reason
        self.skipped = prepared.folder / "once" / LEDGER
        rules = prepared.template.rules_by(self.config.measure.engine.value)
        self.encoder = PackEncoder(prepared.made, rules, **options)
        packs = np.flatnonzero(split_of_packs(planned.lengths.items, planned.plan) == SPLITS.index(split))
        if max_packs is not None:
            packs = packs[:max_packs]
        if not len(packs):
            raise PackError(f"split={split} has no pack: output.splits.{split} fills it")
        self._planned: Planned | None = replace(planned, plan=taken(planned.plan, [packs]))
        self._plans = EpochPlans(prepared.folder / f"{split}-{len(packs)}", len(packs), self.plan_of)
        self._plans.have(0)
        self._members, self._rows = prepared.members, Rows(prepared.folder / "once" / ROWS, ItemRow)
        self._num_packs = len(packs)
        # Shared memory, so that persistent workers see a new epoch.
        self._epoch = torch.zeros((), dtype=torch.int64, device="cpu").share_memory_()
        self._keys = prepared.folder.name[:8]
        #: identifies these packs
        self.fingerprint = f"{prepared.folder.name}-{split}-{len(packs)}"

    def __len__(self) -> int:
        """Number of packs in every epoch."""
        return self._num_packs

    def __getitem__(self, index: int | tuple[int, int]) -> Pack:
        """Read and encode a pack.

        Args:
            index: its number in the epoch of `set_epoch`; or (epoch, number), which `PackSampler` gives.

        Raises:
            BadPack: a member can't be encoded, and `on_bad_member=raise`; or no member can.
        """
        if isinstance(index, list):
            raise ValueError(
                f"an index is {index!r}: LengthGroupedSampler deals batches: batch_sampler=…, not sampler=…"
            )
        epoch, number = index if isinstance(index, tuple) else (int(self._epoch), index)
        if not -self._num_packs <= number < self._num_packs:
            raise IndexError(f"pack {number} of {self._num_packs}")
        number %= self._num_packs
        key = f"{self._keys}_{epoch:03d}_{number:08d}"
        members = list(self.members(epoch, number))
        pack = self.encoder.encode(key, members)
        if pack is None:
            raise BadPack(f"{key}: none of its {len(members)} members can be encoded")
        return pack

    def __getitems__(self, indices: Sequence[Any]) -> list[Pack]:
        """Return the packs of a batch, for torch's DataLoader.

        Raises:
            ValueError: one (epoch, number) of a `PackSampler` was passed as a batch of two indices.
        """
        if isinstance(indices, tuple):
            raise ValueError(f"a batch of {indices}: PackSampler deals single packs: sampler=…, not batch_sampler=…")
        return [self[index] for index in indices]

    def members(self, epoch: int, number: int) -> Iterator[MemberInput | Unread]:
        """Read the members of a pack, without encoding them."""
        for item in self._plans.items(epoch, number):
            row = self._rows[item]
            try:
                yield self._members.member(row)
            except (PackError, Skip, OSError) as error:
                yield Unread(self._members.sample_id(row), error)

    def collate(self, packs: Sequence[Pack]) -> PackedBatch:
        """Lay packs out in a batch: `collate_fn` of a DataLoader."""
        return self.encoder.batch(packs)

    def set_epoch(self, epoch: int) -> None:
        """Switch to the packs of another epoch: as many, as full, with other members and in another order.

        With `packing.max_members=1` all epochs have the packs and numbers of the first one, for which `lens` holds:
        Accelerate calls this method whichever sampler is used.
        """
        if int(epoch) < 0:
            raise ValueError(f"epoch={epoch}: from 0 on")
        epoch = 0 if self.config.packing.max_members == 1 else int(epoch)
        self.have_epoch(epoch)
        self._epoch.fill_(epoch)

    def have_epoch(self, epoch: int) -> None:
        """Plan an epoch before workers start that will read it."""
        self._plans.have(epoch)

    def plan_of(self, epoch: int) -> PackPlan:
        """Return the plan of an epoch.

        Raises:
            PackError: this is a pickled copy, for example in a DataLoader worker.
        """
        planned = self._known
        return plan_of_epoch(planned.plan, planned.lengths.items, self.config.packing, self.config.seed, epoch)

    def costs(self, epoch: int) -> tuple[npt.NDArray[np.float64], Ints]:
        """Return the costs by which `PackSampler` makes steps even.

        Returns:
            float64[2, num_packs], the cost of each pack in the language model and in the vision encoder;
            int64[num_packs], its trained tokens.
        """
        plan, items = self.plan_of(epoch), self._known.lengths.items
        return costs_of_packs(items, plan, self._known.cost), plan.per_pack(items.num_supervised)

    def lens(self, epoch: int = 0) -> Ints:
        """The tokens of each pack of an epoch, int64[num_packs].

        With `packing.max_members=1` these are the lengths of samples, for `LengthGroupedSampler`.
        """
        return self.plan_of(epoch).per_pack(self._known.lengths.items.lens)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle only what a loader's worker needs; its size does not grow with the number of samples."""
        return {**vars(self), "_planned": None, "report": None}

    @property
    def _known(self) -> Planned:
        if self._planned is None:
            raise PackError(NO_LENGTHS)
        return self._planned
