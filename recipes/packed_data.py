"""Batches of one pack each, for training and for validation: what the recipes beside this file share."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import yaml
from megatron.energon import WorkerConfig, get_loader, get_savable_loader, get_train_dataset, get_val_dataset

from energon_pack import Journal, max_pack_len, read_manifest, train_arguments

# Energon's loader asks for pinned memory whatever the machine; without an accelerator there is nothing to pin for.
warnings.filterwarnings("ignore", "'pin_memory' argument is set as true but no accelerator")


def train_loader(
    dataset: str | Path,
    encoder: Any,
    worker: WorkerConfig,
    states: Sequence[dict[str, Any]] = (),
    micro_batches: int | None = None,
) -> "TrainLoader":
    """Batches of the train part in the order of the plan, without end.

    Args:
        states: `save_state` of every rank of a checkpoint, to go on from there.
        micro_batches: packs of each rank in a step: a warning says where steps are not even with so many.
    """
    return TrainLoader(dataset, encoder, worker, states, micro_batches)


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


def longest_pack(packed: dict[str, Any], other: str | Path | None = None) -> int:
    """Tokens for which batches need room: of the longest pack, rounded up as members are.

    Args:
        packed: energon_pack.json of the training data.
        other: packs of their own for validation. If only Energon can read them, their length is not known here.
    """
    longest, multiple = max_pack_len(packed), packed["pad_to_multiple_of"]
    if other is not None:
        with suppress(FileNotFoundError, ValueError):  # whatever is wrong with them is said when they are read
            longest = max(longest, max_pack_len(read_manifest(other)))
    return int(-(-longest // multiple) * multiple)


class Endless:
    """A loader as Megatron's training loops take it: `next` without end."""

    def __init__(self, loader: Any):
        self._loader = loader
        self._batches = self._cycle()

    def _cycle(self) -> Iterator[Any]:
        num_empty = 0
        while num_empty < 2:  # after the state of a finished epoch, the first iteration is empty
            num_empty += 1
            for batch in self._loader:
                num_empty = 0
                yield batch
        raise ValueError("this data-parallel rank has no pack of this part: pack more, or take fewer ranks or workers")

    def __iter__(self) -> "Endless":
        return self

    def __next__(self) -> Any:
        return next(self._batches)


class TrainLoader(Endless):
    """Packs without end, which any number of ranks and workers go on with.

    Raises:
        ValueError: states of a blend with other numbers of ranks or workers; see `train_arguments` for others.
    """

    def __init__(
        self,
        dataset: str | Path,
        encoder: Any,
        worker: WorkerConfig,
        states: Sequence[dict[str, Any]] = (),
        micro_batches: int | None = None,
    ):
        self._given, self._micro_batches = (dataset, encoder, worker), micro_batches
        self._begin(states)

    def _begin(self, states: Sequence[dict[str, Any]]) -> None:
        dataset, encoder, worker = self._given
        packs = get_train_dataset(dataset, **train_arguments(dataset, encoder, worker, states, self._micro_batches))
        #: what this rank was given, and its place
        self.journal = Journal(packs, states)
        self._loader = get_savable_loader(packs)
        self._batches = self._cycle()
        if not any("energon" in state for state in states):
            return
        for name, here in (("ranks", worker.world_size), ("workers", max(1, worker.num_workers))):
            if states[0][name] != here:
                raise ValueError(f"a blend goes on with as many {name} as it began with: {states[0][name]}, not {here}")
        (own,) = (state for state in states if state["rank"] == worker.rank)
        self._loader.restore_state_rank(own["energon"])

    def __next__(self) -> Any:
        batch = super().__next__()
        self.journal.add(batch)
        return batch

    def save_state(self) -> dict[str, Any]:
        """After the batches that were taken, whatever was read ahead."""
        state = self.journal.state()
        return state if state["position"] else {**state, "energon": self._loader.save_state_rank()}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Go on from this rank's own state, with as many ranks; before the first batch was taken."""
        self._begin([state])


def saved_states(file_of: Callable[[int], Path], key: str | None = None) -> list[dict[str, Any]]:
    """The state of each rank of a checkpoint, as `torch.save` wrote it.

    Of a blend it has classes of Energon's: load only what you have written.

    Args:
        file_of: the file of a rank.
        key: under which it is in the file; None: it is all of it.

    Raises:
        ValueError: a file of an earlier version, which knows nothing of other ranks.
    """

    def load(rank: int) -> dict[str, Any]:
        content = torch.load(file_of(rank), map_location="cpu", weights_only=False)
        state: dict[str, Any] = content if key is None else content[key]
        if not isinstance(state, dict):
            raise ValueError(f"{file_of(rank)} was written by an earlier version of this recipe: go on with that one")
        return state

    first = load(0)
    return [first, *map(load, range(1, first["ranks"]))]
