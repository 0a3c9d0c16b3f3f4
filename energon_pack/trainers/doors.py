"""The methods by which packs go into trainers that have loaders of their own."""

from abc import abstractmethod
from typing import Any

import numpy as np

from energon_pack.errors import PackError
from energon_pack.online.ranks import ranks_here
from energon_pack.run.seeded import Ints
from energon_pack.samplers import PackSampler
from energon_pack.trainers.collator import Collator
from energon_pack.trainers.loss import TokenMean
from energon_pack.training.pack_encoder import PackEncoder

_MISSING = "as_dataset needs Hugging Face's datasets, as the trainers that ask for it do: pip install datasets"


class ForTrainers:
    """Packs that a trainer takes: `collator` and `loss_func`."""

    encoder: PackEncoder

    def collator(self, model: Any, weights: bool = False) -> Collator:
        """Return what builds a trainer's batches (`data_collator`): the inputs of `model.forward`.

        Args:
            model: of transformers, guarded. It is asked for a few facts now, and not kept.
            weights: give the weights of tokens, too (`loss_weight`, and those of samples and turns): the trainer must
                be `weighted`, which knows what to do with them.
        """
        return Collator(self, model, weights)  # type: ignore[arg-type]

    def loss_func(self) -> TokenMean:
        """Return the loss for a Trainer's `compute_loss_func`: the mean over all trained tokens of a step.

        Without it, Trainers take the mean of the packs' means for most models with images.
        """
        return TokenMean(shifted=self.encoder.labels_shifted)


class Numbered(ForTrainers):
    """Packs that are known by number."""

    micro_batches: int

    @abstractmethod
    def __len__(self) -> int:
        """Number of packs in every epoch."""

    @abstractmethod
    def lens(self, epoch: int = 0) -> Ints:
        """The tokens of each pack of an epoch, int64[num_packs]."""

    def as_dataset(self, epochs: int = 1, ranks: int | None = None, micro_batches: int | None = None) -> Any:
        """Return a `datasets.Dataset` whose rows name packs, in an order with even steps; `collator` reads them.

        A trainer that reads it in this order (`train_sampling_strategy="sequential"`), with one pack a batch, has even
        steps; one that shuffles it has each pack once all the same. Columns: `pack`, `epoch`, and the tokens, by the
        names that trainers group by: `length` and `lengths`.

        Args:
            epochs: of packs, one after another; train one epoch of this dataset then. Lazy packs are others in each.
            ranks: data-parallel ranks; by default those of torch.distributed or torchrun. To go on with other ranks,
                give the number that began, and keep ranks × accumulated packs.
            micro_batches: packs of each rank in a step: gradient accumulation; by default
                `packing.topology.micro_batches`.

        Returns:
            Of all epochs each pack once, but for the last ones, fewer than `ranks`, that not every rank would have.

        Raises:
            PackError: `datasets` is not installed.
            ValueError: there are fewer packs than one step has.
        """
        if epochs < 1:
            raise PackError(f"epochs={epochs}: at least 1")
        rows = _rows()
        ranks = ranks_here()[1] if ranks is None else ranks
        num = epochs * len(self) // ranks * ranks
        packs = PackSampler(self, 0, ranks, micro_batches).of_all_ranks(num)  # type: ignore[arg-type]
        lens = np.stack([self.lens(epoch) for epoch in range(epochs)])
        return rows.PackRows.of(packs, lens[tuple(np.array(packs).T)])


class Streamed(ForTrainers):
    """Packs of a stream."""

    @property
    @abstractmethod
    def place(self) -> tuple[int, int]:
        """This rank, and the number of ranks."""

    def as_dataset(self) -> Any:
        """Return a `datasets.IterableDataset` of this rank's packs; `collator` reads its rows.

        Set `accelerator_config={"dispatch_batches": False}` (TRL does), so that each rank reads its own.

        Raises:
            PackError: `datasets` is not installed.
        """
        return _rows().StreamRows(self, *self.place)


def _rows() -> Any:
    try:
        from energon_pack.trainers import rows
    except ModuleNotFoundError as error:
        if error.name != "datasets":
            raise
        raise PackError(_MISSING) from None
    return rows
