"""Packs as loaders and trainers take them: by number, from shards on disk or made while loading, or as a stream.

    packs = PackedDataset("packed/…")
    loader = DataLoader(packs, sampler=PackSampler(packs), collate_fn=packs.collate, num_workers=4)

A pack is read and encoded; the second line is the way of `PackedDataset`:

(epoch, number) ──► its key and its members ──PackEncoder──► TrainingPack ──collate──► a batch
number ──split──► its place in the shards ──.tar.idx──► its bytes ──► members, encoded ──collate──► a batch
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.data import Dataset

from energon_pack.dataset.damaged_shards import refuse_damaged_shards
from energon_pack.dataset.encoder import pack_encoder
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.manifest import PACK_TOTALS_FILE, PackTotals, is_metadataset, read_unchanged
from energon_pack.dataset.pack_parts import PackPartReader, members_of_pack
from energon_pack.errors import PackError
from energon_pack.run.seeded_random import Ints
from energon_pack.samples.member import MemberInput
from energon_pack.sources.prepared_folder import read_prepared_folder
from energon_pack.steps.topology import ranks_here, topology_of
from energon_pack.training.batch import PackedBatch
from energon_pack.training.encoded import BadPack, TrainingPack
from energon_pack.training.member_encoder import UnreadableMember
from energon_pack.training.pack_encoder import PackEncoder

if TYPE_CHECKING:
    from energon_pack.trainers.collator import Collator

__all__ = ["PackedDataset"]


class PackDatasetBase:
    """Base of the datasets of packs: makes batches, a trainer's collator and its loss."""

    encoder: PackEncoder

    def collate(self, packs: Sequence[TrainingPack]) -> PackedBatch:
        """Lay packs out in a batch: `collate_fn` of a DataLoader."""
        return self.encoder.batch(packs)

    def collator(self, model: Any, weights: bool = False) -> "Collator":
        """Return the trainer's `data_collator`, which builds batches: the inputs of `model.forward`.

        Args:
            model: a guarded model of transformers. The collator reads a few facts from it, and does not keep it.
            weights: batches also have the weights of tokens (`loss_weight`, and weights of samples and turns). The
                trainer must then be `weighted`.
        """
        from energon_pack.trainers.collator import Collator

        return Collator(self, model, weights)

    def pair_collator(self) -> "Collator":
        """Return the `data_collator` of a trainer of preference pairs: it builds whole batches, as `collate` does."""
        from energon_pack.trainers.collator import PairCollator

        return PairCollator(self)

    def loss_func(self) -> Callable[..., Tensor]:
        """Return the loss for a Trainer's `compute_loss_func`: the mean over all trained tokens of a step.

        Without it, Trainers compute the mean of the packs' means for most models with images.
        """
        from energon_pack.trainers.collator import refuse_pair_dataset, token_mean_loss

        refuse_pair_dataset(self)
        return partial(token_mean_loss, shifted=self.encoder.labels_shifted)


class PacksByNumber(PackDatasetBase, Dataset[TrainingPack]):
    """A map-style dataset of packs; an item is an encoded pack."""

    #: packs of each rank in a step
    micro_batches: int
    #: identifies these packs
    fingerprint: str
    _num_packs: int
    _epoch: Any = 0  # of a number without one

    @abstractmethod
    def _key_and_members(self, epoch: int, number: int) -> tuple[str, Iterable[MemberInput | UnreadableMember]]:
        """Return a pack's key and its members, not encoded."""

    @abstractmethod
    def _pack_totals(self, epoch: int) -> PackTotals:
        """Return sums over the members of each pack of an epoch: tokens, costs."""

    def __len__(self) -> int:
        """Number of packs in every epoch."""
        return self._num_packs

    def __getitem__(self, index: int | tuple[int, int]) -> TrainingPack:
        """Read and encode a pack.

        Args:
            index: its number in the epoch of `set_epoch`; or (epoch, number), which `PackSampler` gives.
        """
        if isinstance(index, list):
            raise ValueError(
                f"an index is {index!r}: LengthGroupedSampler deals batches: batch_sampler=…, not sampler=…"
            )
        epoch, number = index if isinstance(index, tuple) else (int(self._epoch), index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"pack {number} of {len(self)}")
        number %= len(self)
        key, members = self._key_and_members(epoch, number)
        pack = self.encoder.encode(key, members)
        if pack is None:
            raise BadPack(f"{key}: none of its {len([*self.members(epoch, number)])} members can be encoded")
        return pack

    def __getitems__(self, indices: Sequence[Any]) -> list[TrainingPack]:
        """Return the packs of a batch, for torch's DataLoader."""
        if isinstance(indices, tuple):
            raise ValueError(f"a batch of {indices}: PackSampler deals single packs: sampler=…, not batch_sampler=…")
        return [self[index] for index in indices]

    def members(self, epoch: int, number: int) -> Iterator[MemberInput | UnreadableMember]:
        """Read the members of a pack, without encoding them."""
        yield from self._key_and_members(epoch, number)[1]

    def have_epoch(self, epoch: int) -> None:
        """Plan an epoch, before workers start that read it."""

    def costs(self, epoch: int) -> tuple[npt.NDArray[np.float64], Ints]:
        """Return the costs by which `PackSampler` makes steps even.

        Returns:
            float64[2, num_packs], the cost of each pack in the language model and in the vision encoder;
            int64[num_packs], its trained tokens.
        """
        lm, vision, _, trained = self._pack_totals(epoch)
        return np.stack([lm, vision]), trained.astype(np.int64)

    def lens(self, epoch: int = 0) -> Ints:
        """Return the number of tokens of each pack of an epoch, int64[num_packs].

        With `packing.max_members=1` these are the lengths of samples, for `LengthGroupedSampler`.
        """
        return self._pack_totals(epoch).tokens.astype(np.int64)

    def as_dataset(self, epochs: int = 1, ranks: int | None = None, micro_batches: int | None = None) -> Any:
        """Return a `datasets.Dataset` whose rows name packs, in an order with even steps; `collator` reads them.

        A trainer that reads one pack a batch in this order (`train_sampling_strategy="sequential"`) has even steps; one
        that shuffles it trains each pack once, too. Columns: `pack`, `epoch`, `packs_of` (the dataset's number), and
        the pack's tokens under the names by which trainers group: `length` and `lengths`.

        Args:
            epochs: epochs of packs, one after another; then train one epoch of this dataset. Each epoch of lazy packs
                has other packs.
            ranks: data-parallel ranks; by default the ranks of torch.distributed or torchrun. To resume with another
                number of ranks, give the number of the first run, and keep ranks × accumulated packs the same.
            micro_batches: packs of each rank in a step: gradient accumulation; by default
                `packing.topology.micro_batches`.

        Returns:
            Each pack of all epochs once. The last packs are left out if they are fewer than `ranks`.
        """
        from energon_pack.trainers.samplers import PackSampler

        if epochs < 1:
            raise PackError(f"epochs={epochs}: at least 1")
        rows = import_pack_number_rows()
        ranks = ranks_here()[1] if ranks is None else ranks
        num = epochs * len(self) // ranks * ranks
        packs = PackSampler(self, 0, ranks, micro_batches).of_all_ranks(num)
        lens = np.stack([self.lens(epoch) for epoch in range(epochs)])
        return rows.PackNumberRows.from_packs(packs, self.fingerprint, lens[tuple(np.array(packs).T)])


def import_pack_number_rows() -> Any:
    """Import the module with rows for trainers; PackError: `datasets` is not installed."""
    try:
        from energon_pack.trainers import dataset_rows
    except ModuleNotFoundError as error:
        if error.name != "datasets":
            raise
        raise PackError(str(error)) from None
    return dataset_rows


class PackedDataset(PacksByNumber):
    """A map-style dataset of the packs of a folder; an item is an encoded pack.

    Args:
        path: folder of the packed dataset, or its address on an object store.
        processor: folder or hub id, in place of the files in the dataset; a class with code of its own needs one.
        split: a split that its split.yaml names.
        trust_remote_code: run the processor's own code.
        options: options of PackEncoder: `layout`, `labels`, `pad_to`, `on_bad_member`, `dummy_image` …

    Raises:
        PackError: there is no such split, or no pack in it; or the dataset is a Metadataset.
        FileNotFoundError: the folder is not a dataset that this package packed.
        ValueError: the errors of PackEncoder; a processor with another tokenizer than that of the packing; or another
            version of this package packed the dataset.
    """

    #: each epoch has the same packs in another order
    repeats = True

    def __init__(
        self,
        path: str | Path,
        processor: str | None = None,
        *,
        split: str = "train",
        trust_remote_code: bool = False,
        **options: Any,
    ):
        if is_metadataset(path):
            raise PackError(f"{path} is a file: name the folder of one packed dataset")
        self.encoder = pack_encoder(path, processor, trust_remote_code, **options)
        self.micro_batches = topology_of(self.encoder.made).micro_batches
        self._files = PackPartReader(DatasetFolder(path))
        numbers, sums = self._in_split(split), self._read_sums()
        if not len(numbers):
            raise PackError(f"split={split}: {path} has no pack in it: output.splits.{split} of the packing fills it")
        self._num_packs, self._numbers = len(numbers), numbers
        self._split_sums = PackTotals(*(column[numbers] for column in sums))
        self._seed = int((self.encoder.made["content"].get("plan") or {}).get("seed", 0))
        of_seed = f"-seed{self._seed}" * bool(self._seed)  # earlier versions had orders, so states, of seed 0 alone
        self.fingerprint = f"{self.encoder.made['key_prefix']}-{split}-{len(numbers)}{of_seed}"

    def _key_and_members(self, epoch: int, number: int) -> tuple[str, Iterable[MemberInput]]:
        parts = self._files.parts(int(self._numbers[number]))
        return parts["__key__"], members_of_pack(parts, self.encoder.made["flavor"], self._files.read_media)

    def _pack_totals(self, epoch: int) -> PackTotals:
        return self._split_sums

    @cached_property
    def config(self) -> SimpleNamespace:
        """The `seed` and `packing` settings with which the dataset was packed; samplers need them."""
        from energon_pack.plan.settings import PackingConfig
        from energon_pack.run.untrusted_input import dataclass_from_dict

        packing = dataclass_from_dict(PackingConfig, self.encoder.made["content"]["packing"])
        return SimpleNamespace(seed=self._seed, packing=packing)

    def _in_split(self, split: str) -> Ints:
        """Return the numbers of a split's packs in the dataset; PackError: the split or a shard of it is missing."""
        folder, manifest = self._files.folder, self.encoder.made
        prepared = read_prepared_folder(folder.path, split, "split")
        if prepared is None:
            raise PackError(f"{folder} has no split.yaml: python -m energon_pack.verify says what is wrong")
        shard_names = (prepared.shards or frozenset()) - prepared.excluded_shards
        if ranks_here()[0] == 0:
            refuse_damaged_shards(folder.path, manifest, sorted(shard_names))
        shards = np.repeat([*self._files.shard_counts], [*self._files.shard_counts.values()])
        prefix, excluded = manifest.get("key_prefix"), prepared.excluded_keys
        taken = [
            number
            for number, shard in enumerate(shards.tolist())
            if shard in shard_names and f"{prefix}_{number:08d}" not in excluded.get(shard, ())
        ]
        return np.array(taken, np.int64)

    def _read_sums(self) -> PackTotals:
        """Read sums over the members of each pack of the dataset; PackError: they are not of these shards."""
        folder, hashes = self._files.folder, self.encoder.made.get("hashes", {})
        try:
            sums = PackTotals.read(read_unchanged(folder.path, PACK_TOTALS_FILE, hashes.get(PACK_TOTALS_FILE)))
        except (OSError, ValueError) as error:
            raise PackError(str(error)) from None
        if len(sums.tokens) != len(self._files):
            raise PackError(
                f"{folder} has {len(self._files)} packs, and {PACK_TOTALS_FILE} has {len(sums.tokens)}:"
                " python -m energon_pack.verify says what is wrong"
            )
        return sums
