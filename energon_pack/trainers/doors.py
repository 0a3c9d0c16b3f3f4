"""The methods that give packs to trainers with loaders of their own; your own loop needs none of their modules."""

from typing import TYPE_CHECKING, Any

from energon_pack.errors import PackError
from energon_pack.training.pack_encoder import PackEncoder

if TYPE_CHECKING:
    from energon_pack.trainers.collator import Collator
    from energon_pack.trainers.loss import TokenMean


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


def import_rows() -> Any:
    """Return the module of rows that trainers take; raises PackError if `datasets` is not installed."""
    try:
        from energon_pack.trainers import rows
    except ModuleNotFoundError as error:
        if error.name != "datasets":
            raise
        what = "as_dataset needs Hugging Face's datasets, as the trainers that ask for it do: pip install datasets"
        raise PackError(what) from None
    return rows
