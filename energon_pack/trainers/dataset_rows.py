"""Hugging Face datasets whose rows name packs: a trainer shuffles, deals and skips numbers, and reads no pixel.

Only this file needs `datasets`; `as_dataset` imports it when it is called.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

try:
    import datasets
    from datasets.iterable_dataset import ExamplesIterable
except ModuleNotFoundError as error:
    missing = "as_dataset needs Hugging Face's datasets, as the trainers that ask for it do: pip install datasets"
    raise ModuleNotFoundError(missing, name=error.name) from None

from energon_pack.errors import PackError
from energon_pack.run.seeded_random import Ints
from energon_pack.trainers.collator import DATASET_COLUMN, EPOCH_COLUMN, PACK_COLUMN, dataset_hash
from energon_pack.training.encoded import TrainingPack

#: columns with the tokens of a pack: the name in transformers' Trainer, and the name in ms-swift
LENGTH_COLUMNS = ("length", "lengths")
_NO_TEXT_ERROR = (
    "rows of packs are numbers, there is nothing to tokenise, truncate or pack in them: {knob}"
    " (TRL: dataset_kwargs={{'skip_prepare_dataset': True}}; axolotl: load_datasets of a plugin)"
)
Rows = TypeVar("Rows", bound="PackNumberRows")


class PackNumberRows(datasets.Dataset):
    """Rows `{pack, epoch, packs_of, length, lengths}`, in the order in which all ranks read them."""

    @classmethod
    def from_packs(cls: type[Rows], packs: Sequence[tuple[int, int]], fingerprint: str, lens: Ints) -> Rows:
        """Make rows from (epoch, number) of each pack, its dataset's fingerprint, and its number of tokens."""
        epochs, numbers = zip(*packs, strict=True)
        number = dataset_hash(fingerprint)
        columns = {PACK_COLUMN: [*numbers], EPOCH_COLUMN: [*epochs], DATASET_COLUMN: [number] * len(numbers)}
        rows: Rows = cls.from_dict(columns | dict.fromkeys(LENGTH_COLUMNS, lens.tolist()))
        return rows

    def map(self, *_: Any, **__: Any) -> Any:
        """Raise PackError: a trainer would tokenise, truncate or pack the rows."""
        raise PackError(_NO_TEXT_ERROR.format(knob="leave the trainer's preprocessing out"))

    def filter(self, *_: Any, **__: Any) -> Any:
        """Raise PackError: a trainer would leave out rows by their tokens."""
        raise PackError(_NO_TEXT_ERROR.format(knob="leave the trainer's filter out"))

    def remove_columns(self, column_names: str | list[str], *arguments: Any, **more: Any) -> Any:
        """Remove columns; raise PackError if a row would no longer name its pack."""
        names = [column_names] if isinstance(column_names, str) else list(column_names)
        if {PACK_COLUMN, EPOCH_COLUMN} & {*names}:
            raise PackError(
                f"the columns {', '.join(names)} would be removed, which name packs: remove_unused_columns=False"
            )
        return super().remove_columns(names, *arguments, **more)


class StreamRows(datasets.IterableDataset):
    """Rows `{pack}` of this rank's own packs, from a stream."""

    def __init__(self, packs: Iterable[TrainingPack], rank: int, world_size: int):
        features = datasets.Features({PACK_COLUMN: datasets.Value("null")})  # only the column's name is ever used
        super().__init__(ExamplesIterable(self._rows, {}), datasets.DatasetInfo(features=features))
        self._packs, self._rank, self._world_size = packs, rank, world_size

    def __iter__(self) -> Iterator[dict[str, TrainingPack]]:
        for pack in self._packs:
            yield {PACK_COLUMN: pack}

    def peek(self, num: int) -> list[dict[str, TrainingPack]]:
        """Return the first rows of the next iteration, at most `num`, which then has them again."""
        return [{PACK_COLUMN: pack} for pack in self._packs.peek(num)]  # type: ignore[attr-defined]

    def _rows(self) -> Iterator[tuple[int, dict[str, TrainingPack]]]:
        yield from enumerate(self)

    @property
    def num_shards(self) -> int:
        """One shard for each rank: Accelerate then asks for a shard, and no rank has to skip packs of other ranks."""
        return self._world_size

    n_shards = num_shards  # the name of older versions, which Accelerate asks

    def shard(self, num_shards: int, index: int, contiguous: bool = True) -> "StreamRows":
        """Return this dataset: its stream already belongs to this rank."""
        if (index, num_shards) != (self._rank, self._world_size):
            raise PackError(
                f"a stream of rank {self._rank} of {self._world_size}, and the trainer asks for rank {index} of"
                f" {num_shards}: StreamingPackedDataset(…, rank={index}, world_size={num_shards})"
            )
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set the stream's epoch, so that it draws packs in another order; 0 does not take it back from a later one."""
        if epoch or not self._packs.is_past_first_epoch:  # type: ignore[attr-defined]
            self._packs.set_epoch(epoch)  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        """Return the stream's state."""
        state: dict[str, Any] = self._packs.state_dict()  # type: ignore[attr-defined]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the stream from a state."""
        self._packs.load_state_dict(state_dict)  # type: ignore[attr-defined]
