"""Record what a rank trained on, for checkpoints: its place in the stream, and how many packs, samples and tokens.

Batches are counted when they come out of the loader; packs that its workers have read ahead do not count.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

from energon_pack.errors import PackError, one_line
from energon_pack.steps.place import Place, Share, joined

#: items of a batch that the journal reads
_NOTED = ("__key__", "positions", "sample_ids", "num_tokens", "num_trained")
#: state of one rank, from `Journal.state`
State = Mapping[str, Any]


@dataclass(frozen=True)
class Consumed:
    """How much was trained on."""

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
    """Counts the batches of a loader, with any number of packs in each.

    Args:
        dataset: the result of `get_train_dataset`.
        states: the states that training goes on from, the same as for `loading.train_arguments`.
    """

    def __init__(self, dataset: Any, states: Sequence[State] = ()):
        worker = dataset.worker_config
        self._ranks, self._rank = worker.world_size, worker.rank
        self._share: Share | None = _share_in(dataset)
        self._read = [0] * max(1, worker.num_workers)
        #: consumed before this run: by all ranks, or by this rank if it continues from only its own state
        self.before = Consumed()
        #: consumed by this rank in this run
        self.own = Consumed()
        self._batches = 0
        with reading("Journal.state()"):
            if is_of_rank(states, self._ranks, self._rank):
                self.before, self.own = _consumed(states[0]["before"]), _consumed(states[0]["own"])
                self._batches = int(states[0]["batches"])
            elif states:
                own = [_consumed(state["own"]) for state in states]
                self.before = sum(own, _consumed(states[0]["before"]))

    def add(self, batch: Mapping[str, Any]) -> None:
        """Count a batch.

        Raises:
            ValueError: the batch lacks an item that the journal reads.
        """
        if lacking := [name for name in _NOTED if name not in batch]:
            raise ValueError(f"a batch without {', '.join(lacking)}: a `batch` of your own has to keep them")
        packs = len(batch["__key__"])
        if self._share is not None:
            packs = 0
            for position in batch["positions"]:
                turn, worker = divmod(self._share.index(position), len(self._read))
                packs += turn + 1 - self._read[worker]
                self._read[worker] = turn + 1
        samples = sum(map(len, batch["sample_ids"]))
        self.own += Consumed(packs, samples, batch["num_tokens"], batch["num_trained"])
        self._batches += 1

    @property
    def num_packs(self) -> int | None:
        """Packs in an epoch; None if packs are shuffled, or drawn from several datasets."""
        return None if self._share is None else self._share.place.num

    def epochs(self, consumed: Consumed) -> float | None:
        """Return the number of epochs; None if `num_packs` is None."""
        return None if self.num_packs is None else consumed.packs / self.num_packs

    def state(self) -> dict[str, Any]:
        """Return this rank's state for a checkpoint: numbers, texts, dicts and lists."""
        state = {"before": asdict(self.before), "own": asdict(self.own), "batches": self._batches}
        state |= {"ranks": self._ranks, "rank": self._rank, "workers": len(self._read)}
        return state | {"share": None if self._share is None else asdict(self._share.after(self._read))}


def _consumed(values: Mapping[str, Any]) -> Consumed:
    return Consumed(**{name: int(value) for name, value in values.items()})


def refuse_none(states: Sequence[State], of: str) -> None:
    """Raise ValueError if these are no states of ranks.

    Args:
        of: the method that returns such states, for the message.
    """
    are_listed = isinstance(states, Sequence) and not isinstance(states, str)
    if not are_listed or any(not isinstance(each, Mapping) or "share" not in each for each in states):
        raise ValueError(f"states: a list with what {of} was on each rank; these are none, or a single one")


@contextmanager
def reading(of: str) -> Iterator[None]:
    """Raise ValueError where a state has another form than the method `of` gives it."""
    try:
        yield
    except PackError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:  # RuntimeError: torch
        raise ValueError(f"a state that is damaged, or that {of} did not give: {one_line(error)}") from None


def begin(place: Place, ranks: int, rank: int, states: Sequence[State]) -> Share:
    """Return the share that a rank reads, from the beginning or from the states of a checkpoint.

    Args:
        place: the beginning of this dataset.
        states: states of all ranks of a checkpoint; or none; or this rank's alone, if the number of ranks stays.

    Raises:
        ValueError: the states are from another dataset, from different steps, or not from a single packed dataset.
    """
    if not states:
        return Share(place, ranks, rank)
    with reading("Journal.state(), or state_dict()"):
        if any(state["share"] is None for state in states):
            raise PackError("states of a blend: it is no blend now, and its packs would come twice")
        shares = [Share.of(state["share"]) for state in states]
        batches = {int(state["rank"]): int(state["batches"]) for state in states}
    other = shares[0].place
    if (other.num, other.fingerprint) != (place.num, place.fingerprint):
        raise ValueError(
            f"states of another dataset, of {other.num} packs ({other.fingerprint}); this one has"
            f" {place.num} ({place.fingerprint}): go on with the one that they are of"
        )
    if is_of_rank(states, ranks, rank):
        return shares[0]
    place = joined(shares)
    is_end = place.taken.first % place.num == 0 and not place.taken.above  # an epoch's last row may not be whole
    if len(set(batches.values())) > 1 and not is_end:
        said = ", ".join(f"rank {number} had {n} batches" for number, n in sorted(batches.items()))
        raise ValueError(f"states of several steps ({said}): give those of one checkpoint")
    return Share(place, ranks, rank)


def is_of_rank(states: Sequence[State], ranks: int, rank: int) -> bool:
    """Say whether this is the state of this rank alone, with as many ranks."""
    return len(states) == 1 and (states[0]["ranks"], states[0]["rank"]) == (ranks, rank)


def _share_in(dataset: Any) -> Share | None:
    """Return the share that an Energon dataset reads, however it is wrapped."""
    share: Share | None = getattr(dataset, "share", None)
    inner: Sequence[Any] = getattr(dataset, "datasets", ())
    return share if share is not None or len(inner) != 1 else _share_in(inner[0])
