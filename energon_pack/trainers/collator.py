"""Build a trainer's batches from rows of `as_dataset`, in whichever process the trainer's loader has."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from energon_pack.errors import PackError
from energon_pack.training.outline import Outline, outline_of
from energon_pack.training.pack_encoder import BadPack, Pack, PackEncoder, refuse_trees

#: the columns by which a row names its pack
PACK, EPOCH = "pack", "epoch"
#: of a batch with weights, what its loss is made of and no model takes
OF_LOSS = ("labels", "loss_weight", "_packed_seq_ids")


class Packs(Protocol):
    """A dataset of packs."""

    encoder: PackEncoder

    def __getitem__(self, index: tuple[int, int]) -> Pack:
        """Read and encode a pack by its epoch and number."""


class Collator:
    """Builds batches; of the model it holds a few facts and no weights, so it goes to a loader's workers.

    Args:
        packs: the dataset.
        model: of transformers; guard it first. A batch has what its `forward` takes.
        weights: batches have the weights of their tokens, too, for a trainer that is `weighted`.

    Raises:
        PackError: the packs have another layout than `neat`.
    """

    def __init__(self, packs: Packs, model: Any, weights: bool = False):
        if packs.encoder.layout != "neat":
            raise PackError(f"layout={packs.encoder.layout}: models of transformers take layout=neat")
        #: the dataset
        self.packs = packs
        #: whether batches have weights
        self.weights = weights
        self._outline: Outline = outline_of(model).for_worker()

    def __call__(self, rows: Sequence[Any], **_: Any) -> dict[str, Any]:
        """Lay the packs of some rows out, as the inputs of `model.forward`.

        Args:
            rows: of `as_dataset`, or packs. Trainers may pass settings of their own padding beside them.

        Raises:
            PackError: a row names no pack.
            BadPack: a pack can't be encoded; a token has a weight other than 1, and this collator gives none;
                samples share tokens.
        """
        return self.of_packs([self.pack(row) for row in rows])

    def pack(self, row: Any) -> Pack:
        """Return the pack that a row names; raises as a call."""
        if isinstance(row, Pack):
            return row
        if not isinstance(row, Mapping) or PACK not in row:
            found = f"the columns {', '.join(row)}" if isinstance(row, Mapping) else f"a {type(row).__name__}"
            raise PackError(
                f"a row has {found}, and none names a pack: train on packs.as_dataset(), with"
                " remove_unused_columns=False, and without the trainer's own tokenising and packing"
            )
        named = row[PACK]
        return named if isinstance(named, Pack) else self.packs[int(row[EPOCH]), int(named)]

    def of_packs(self, packs: Sequence[Pack]) -> dict[str, Any]:
        """Lay packs out; raises as a call."""
        refuse_trees(packs, "a trainer's own loss")
        batch = self.packs.encoder.batch(packs)
        if self.weights:
            inputs = batch.model_inputs(self._outline, labels=False)
            return {**inputs, **{name: batch[name] for name in OF_LOSS if name in batch}}
        if batch.get("is_weighted"):
            raise BadPack(
                f"{', '.join(pack.key for pack in packs)}: tokens have weights other than 1, which a trainer's own loss"
                " ignores: packs.collator(model, weights=True), and weighted(trainer); else leave loss_weight out"
            )
        return batch.model_inputs(self._outline)
