"""Batches of one pack each, for training and for validation: what the recipes beside this file share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from megatron.energon import WorkerConfig, get_loader, get_savable_loader, get_train_dataset, get_val_dataset


def train_loader(dataset: str | Path, encoder: Any, worker: WorkerConfig) -> Any:
    """Batches of the train part, without end; `save_state_rank` and `restore_state_rank` go on where it was."""
    packs = get_train_dataset(
        dataset,
        worker_config=worker,
        batch_size=1,
        shuffle_buffer_size=None,  # packs are in random order already
        max_samples_per_sequence=None,
        task_encoder=encoder,
    )
    return get_savable_loader(packs)


def val_loader(dataset: str | Path, encoder: Any, worker: WorkerConfig, other: str | Path | None = None) -> Any:
    """Batches of the validation data, once through; None where there are none, which is said.

    Args:
        dataset: its part `val` is taken, if it has one.
        other: packs of their own for validation instead: their part `val`, or else `train`.
    """
    has_val = "val" in parts(other or dataset)
    if not has_val and other is None:
        if worker.rank == 0:
            print(f"no validation: {dataset} has no part val, and no other dataset was given", flush=True)
        return None
    packs = get_val_dataset(
        other or dataset,
        split_part="val" if has_val else "train",
        worker_config=worker,
        batch_size=1,
        task_encoder=encoder,
    )
    return get_loader(packs)


def parts(dataset: str | Path) -> set[str]:
    """The parts of a packed dataset, or of a Metadataset's YAML, that are not empty."""
    path = Path(dataset)
    if path.is_dir():
        split = yaml.safe_load((path / ".nv-meta" / "split.yaml").read_text())["split_parts"]
    else:
        split = yaml.safe_load(path.read_text())["splits"]
    return {name for name, content in split.items() if content}


class Endless:
    """A loader as Megatron's training loops take it: `next` without end, and a state to save and restore."""

    def __init__(self, loader: Any):
        self._loader = loader
        self._batches = self._cycle()

    def _cycle(self) -> Iterator[Any]:
        while True:
            is_empty = True
            for batch in self._loader:
                is_empty = False
                yield batch
            if is_empty:
                raise ValueError(
                    "this data-parallel rank has no pack of this part: pack more, or take fewer ranks or workers"
                )

    def __iter__(self) -> "Endless":
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def save_state(self) -> Any:
        return self._loader.save_state_rank()

    def restore_state(self, state: Any) -> None:
        """Go on from a saved state; before the first batch was taken."""
        self._loader.restore_state_rank(state)
        self._batches = self._cycle()
