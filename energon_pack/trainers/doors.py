"""The methods that give packs to trainers with loaders of their own; your own loop needs none of their modules."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_pack.errors import PackError
from energon_pack.online.ranks import ranks_here
from energon_pack.run.seeded import Ints
from energon_pack.training.pack_encoder import PackEncoder

if TYPE_CHECKING:
    from energon_pack.trainers.collator import Collator
    from energon_pack.trainers.loss import TokenMean

_MISSING = "as_dataset needs Hugging Face's datasets, as the trainers that ask for it do: pip install datasets"


class ForTrainers:
    """Packs that a trainer takes: `collator` and `loss_func`."""

    encoder: PackEncoder

    def collator(self, model: Any, weights: bool = False) -> "Collator":
        """Return the trainer's `data_collator`, which builds batches: the inputs of `model.forward`.

        Args:
            model: a guarded model of transformers. The collator reads a few facts from it, and does not keep it.
            weights: batches also have the weights of tokens (`loss_weight`, and weights of samples and turns). The
                trainer must then be `weighted`.
        """
        from energon_pack.trainers.collator import Collator

        return Collator(self, model, weights)  # type: ignore[arg-type]

    def loss_func(self) -> "TokenMean":
        """Return the loss for a Trainer's `compute_loss_func`: the mean over all trained tokens of a step.

        Without it, Trainers compute the mean of the packs' means for most models with images.
        """
        from energon_pack.trainers.loss import TokenMean

        return TokenMean(shifted=self.encoder.labels_shifted)


class Numbered(ForTrainers):
    """Packs that are read by number."""

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
        steps. A trainer that shuffles it still trains each pack once. Columns: `pack`, `epoch`, and the tokens of the
        pack under the names by which trainers group: `length` and `lengths`.

        Args:
            epochs: epochs of packs, one after another; then train one epoch of this dataset. Each epoch of lazy packs
                has other packs.
            ranks: data-parallel ranks; by default the ranks of torch.distributed or torchrun. To resume with another
                number of ranks, give the number of the first run, and keep ranks × accumulated packs the same.
            micro_batches: packs of each rank in a step: gradient accumulation; by default
                `packing.topology.micro_batches`.

        Returns:
            Each pack of all epochs once. The last packs are left out if they are fewer than `ranks`.

        Raises:
            PackError: `datasets` is not installed.
            ValueError: there are fewer packs than one step takes.
        """
        from energon_pack.samplers import PackSampler

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

        Set `accelerator_config={"dispatch_batches": False}` (TRL does), so that each rank reads its own packs.

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
