"""Packs as loaders and trainers take them: by number, from shards or made while loading; the latter also as a stream.

(epoch, number) ──`_pack`──► its key and its members ──PackEncoder──► Pack ──collate──► a batch
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.data import Dataset

from energon_pack.dataset.manifest import PackTotals
from energon_pack.errors import PackError
from energon_pack.run.seeded_random import Ints
from energon_pack.samples.member import MemberInput
from energon_pack.steps.topology import ranks_here
from energon_pack.training.batch import PackedBatch
from energon_pack.training.encoded import BadPack, TrainingPack
from energon_pack.training.member_encoder import UnreadableMember
from energon_pack.training.pack_encoder import PackEncoder

if TYPE_CHECKING:
    from energon_pack.trainers.collator import Collator


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
        from energon_pack.trainers.collator import refuse_pair_dataset
        from energon_pack.trainers.loss import token_mean_loss

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
        rows = import_numbered_rows()
        ranks = ranks_here()[1] if ranks is None else ranks
        num = epochs * len(self) // ranks * ranks
        packs = PackSampler(self, 0, ranks, micro_batches).of_all_ranks(num)
        lens = np.stack([self.lens(epoch) for epoch in range(epochs)])
        return rows.NumberedRows.from_packs(packs, self.fingerprint, lens[tuple(np.array(packs).T)])


def import_numbered_rows() -> Any:
    """Import the module with rows for trainers; PackError: `datasets` is not installed."""
    try:
        from energon_pack.trainers import dataset_rows
    except ModuleNotFoundError as error:
        if error.name != "datasets":
            raise
        raise PackError(str(error)) from None
    return dataset_rows
