"""Record what a rank trained on, for checkpoints: its place in the stream, and how many packs, samples and tokens.

Batches are counted when they come out of the loader; packs that its workers have read ahead do not count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from typing import Any

from energon_pack.steps.position import Position, State, combine_taken_numbers, parsing_state, positions_of_states

#: items of a batch that the journal reads
_BATCH_KEYS = ("__key__", "positions", "sample_ids", "num_tokens", "num_trained")
_METHOD = "Journal.state()"


@dataclass(frozen=True)
class Consumed:
    """Counts of packs, samples and tokens that were trained on."""

    #: packs; in the plan's order, packs that lost all members count, too
    packs: int = 0
    #: members: a sample that was cut counts once for each part
    samples: int = 0
    #: tokens of members, without padding
    tokens: int = 0
    #: tokens that the loss is computed on
    trained: int = 0

    def __add__(self, other: "Consumed") -> "Consumed":
        return Consumed(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, part.name):,} {part.name}" for part in fields(self))


class Journal:
    """Counts what this rank has trained on, batch by batch, and makes the state that a checkpoint stores.

    Args:
        dataset: the result of `get_train_dataset`.
        states: the states that training goes on from, the same as for `loading.train_arguments`.
    """

    def __init__(self, dataset: Any, states: Sequence[State] = ()):
        worker = dataset.worker_config
        self._ranks, self._rank = worker.world_size, worker.rank
        self._stream = _pack_stream_of(dataset)
        self._read = [0] * max(1, worker.num_workers)
        #: consumed before this run: by all ranks, or by this rank if it continues from only its own state
        self.before = Consumed()
        #: consumed by this rank in this run
        self.own = Consumed()
        self._batches = 0
        with parsing_state(_METHOD):
            if _is_state_of_rank(states, self._ranks, self._rank):
                self.before, self.own = _consumed(states[0]["before"]), _consumed(states[0]["own"])
                self._batches = int(states[0]["batches"])
            elif states:
                of_ranks = [_consumed(state["own"]) for state in states]
                self.before = sum(of_ranks, _consumed(states[0]["before"]))

    def add(self, batch: Mapping[str, Any]) -> None:
        """Count a batch that came out of the loader; it may hold any number of packs."""
        if lacking := [name for name in _BATCH_KEYS if name not in batch]:
            raise ValueError(f"a batch without {', '.join(lacking)}: a `batch` of your own has to keep them")
        packs = len(batch["__key__"])
        if self._stream is not None:
            packs = 0
            for number in batch["positions"]:
                turn, worker = divmod(self._stream.position.index_of(number), len(self._read))
                packs += turn + 1 - self._read[worker]
                self._read[worker] = turn + 1
        samples = sum(map(len, batch["sample_ids"]))
        self.own += Consumed(packs, samples, batch["num_tokens"], batch["num_trained"])
        self._batches += 1

    @property
    def num_packs(self) -> int | None:
        """Packs in an epoch; None if packs are shuffled, or drawn from several datasets."""
        return None if self._stream is None else int(self._stream.num)

    def epochs(self, consumed: Consumed) -> float | None:
        """Return how many epochs a number of consumed packs is, as a fraction; None if `num_packs` is None."""
        return None if self.num_packs is None else consumed.packs / self.num_packs

    def state(self) -> dict[str, Any]:
        """Return this rank's state for a checkpoint: numbers, texts, dicts and lists."""
        state = {"before": asdict(self.before), "own": asdict(self.own), "batches": self._batches}
        state |= {"ranks": self._ranks, "rank": self._rank, "workers": len(self._read)}
        stream = self._stream
        return state | {"position": None if stream is None else asdict(stream.position.after(*self._read))}


def _consumed(values: Mapping[str, Any]) -> Consumed:
    return Consumed(**{name: int(value) for name, value in values.items()})


def find_position_to_resume(states: Sequence[State], start_position: Position, num_packs: int) -> Position:
    """Return the position from which a rank reads on.

    Args:
        states: of a checkpoint: of this rank alone if as many ranks train, else of all ranks. Empty: training starts.
        start_position: the position of this rank at the start of the stream.
        num_packs: packs of an epoch.

    Raises:
        ValueError: the states do not belong together, or to this stream.
    """
    if not states:
        return start_position
    positions = positions_of_states(states, start_position, _METHOD)
    if _is_state_of_rank(states, start_position.ranks, start_position.rank):
        return positions[0]
    taken = combine_taken_numbers(positions)
    is_end = taken.first % num_packs == 0 and not taken.above  # an epoch's last row may not be whole
    with parsing_state(_METHOD):
        batches = {int(state["rank"]): int(state["batches"]) for state in states}
    if len(set(batches.values())) > 1 and not is_end:
        numbers = ", ".join(f"rank {number} had {n} batches" for number, n in sorted(batches.items()))
        raise ValueError(f"states of several steps ({numbers}): give those of one checkpoint")
    return replace(start_position, topology=positions[0].topology, before=taken)


def _is_state_of_rank(states: Sequence[State], ranks: int, rank: int) -> bool:
    """Say whether this is the state of this rank alone, with as many ranks."""
    return len(states) == 1 and (states[0]["ranks"], states[0]["rank"]) == (ranks, rank)


def _pack_stream_of(dataset: Any) -> Any:
    """Return the one `PackStream` inside an Energon dataset and its wrappers; None: there are several, or none."""
    inner: Sequence[Any] = getattr(dataset, "datasets", ())
    return dataset if hasattr(dataset, "position") else _pack_stream_of(inner[0]) if len(inner) == 1 else None
