"""Make the packs of one lane (a worker of a rank): samples are drawn, measured by their headers, and wait in a pool.
Pixels are decoded only for the samples of the pack that is made.

Draws ─sample_for_measuring─► Measuring ─► Pool ─take─► member ─► PackEncoder ─► Pack
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from energon_pack.errors import PackError
from energon_pack.online.samples import Samples
from energon_pack.plan.pool import WaitingPool, WaitingSample
from energon_pack.plan.sample_measures import SampleMeasurer, SampleMeasures
from energon_pack.run.seeded_random import RandomStream, mix_bits_of_number
from energon_pack.samples.cut import SIDES, member_id
from energon_pack.samples.media.kinds import IMAGE
from energon_pack.samples.member import MemberInput, Shared
from energon_pack.samples.skip import Reason, Skip
from energon_pack.steps.position import Position
from energon_pack.templates.sample import Sample
from energon_pack.training.encoded import EncodedMembers, TrainingPack
from energon_pack.training.pack_encoder import PackEncoder

_FEISTEL_ROUNDS = 6
_UINT64_RANGE = 1 << 64
#: 2^64 / golden ratio
_GOLDEN_STEP = 0x9E3779B97F4A7C15


class Draw(NamedTuple):
    """A drawn sample: the index of its dataset, its number there, and how often it was drawn before."""

    dataset: int
    number: int
    #: permutations of the dataset before this one
    num_earlier_passes: int


class SampleDraws:
    """Draws samples from several datasets for one lane (a worker of a rank); lanes divide each pass over a dataset.

    Args:
        sizes: number of samples in each dataset.
        positions: this lane's position in each dataset; the order of draws depends on their epoch.
        weights: relative frequency of each dataset; by default its number of samples.
        replacement: begin a dataset anew when it is used up, so that draws never end; False: it is not drawn again.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        positions: Sequence[Position],
        weights: Sequence[float] | None = None,
        *,
        replacement: bool,
        seed: int = 0,
    ):
        self._sizes = list(sizes)
        self._weights = list(map(float, sizes if weights is None else weights))
        _check_weights(self._sizes, self._weights)
        self._replacement = replacement
        #: the whole state
        self.positions = list(positions)
        chance = RandomStream(seed, 2 * positions[0].epoch)
        self._permutation_keys = [chance.below(_UINT64_RANGE) for _ in self._sizes]
        self._phase = mix_bits_of_number(chance.below(_UINT64_RANGE) + positions[0].rank)

    def next(self) -> Draw | None:
        """Return the next draw; None: all datasets are used up."""
        datasets = [d for d, weight in enumerate(self._weights) if weight and not self._is_used_up(d)]
        if not datasets:
            return None
        dataset = datasets[self._choose_dataset([self._weights[d] for d in datasets])]
        epoch, place = divmod(self.positions[dataset].number_at(), self._sizes[dataset])
        self.positions[dataset] = self.positions[dataset].after(1)
        return Draw(
            dataset, permuted_number(place, self._sizes[dataset], self._permutation_keys[dataset] + epoch), epoch
        )

    def _is_used_up(self, dataset: int) -> bool:
        return not self._replacement and self.positions[dataset].number_at() >= self._sizes[dataset]

    def _choose_dataset(self, weights: Sequence[float]) -> int:
        """Choose a dataset so that every stretch of draws has about the right shares.

        Source: the sequence of multiples of the golden ratio, whose every stretch is spread evenly over [0, 1)
        (Knuth, The Art of Computer Programming 3, 6.4).
        """
        sums = list(accumulate(weights))
        num = sum(position.turns.first for position in self.positions)
        point = (self._phase + num * _GOLDEN_STEP) % _UINT64_RANGE / _UINT64_RANGE
        return min(bisect_right(sums, point * sums[-1]), len(sums) - 1)


def permuted_number(place: int, size: int, key: int) -> int:
    """Return the number at `place` in a pseudorandom permutation of 0 … size - 1, without computing the others.

    `key` chooses the permutation.

    Source: Black, Rogaway, "Ciphers with Arbitrary Finite Domains", 2002: a Feistel network over the next power of 4,
    applied until its result is in range.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    keys = [mix_bits_of_number(key * _FEISTEL_ROUNDS + number) for number in range(_FEISTEL_ROUNDS)]
    while True:
        high, low = place >> half, place & mask
        for of_round in keys:
            high, low = low, high ^ mix_bits_of_number(of_round + low) & mask
        place = high << half | low
        if place < size:
            return place


def _check_weights(sizes: Sequence[int], weights: Sequence[float]) -> None:
    if len(sizes) != len(weights) or min(weights, default=0) < 0 or not 0 < sum(weights) < float("inf"):
        raise ValueError(f"weights={weights}: one of at least 0 for each of {len(sizes)} datasets, not all 0")
    for number, (size, weight) in enumerate(zip(sizes, weights, strict=True)):
        if weight and not size:
            raise ValueError(f"weights[{number}]={weight:g} of a dataset that is empty")


#: counts over all packs that were yielded; `dropped`: members that could not be encoded; `excess`: tokens beyond
#: `max_token_len` in longer packs; `removed`: pictures that are missing, whose places were removed
COUNTERS = ("packs", "samples", "tokens", IMAGE.plural, "dropped", "longest_wait", "excess", "removed")
_COUNTER_COLUMNS = {name: i for i, name in enumerate((*COUNTERS, *(reason.value for reason in Reason)))}
_MAX_WORKERS = 1024


class StreamCounters:
    """Counts of packs, samples, tokens and skipped samples of each worker of this rank, in shared memory."""

    def __init__(self) -> None:
        rows = torch.zeros(_MAX_WORKERS, len(_COUNTER_COLUMNS), dtype=torch.int64, device="cpu")
        self._rows: torch.Tensor = rows.share_memory_()

    def counters_of_worker(self, worker: int) -> torch.Tensor:
        """Return the counters of a worker: int64, one for each of `COUNTERS`, then one for each `Reason`."""
        if worker >= _MAX_WORKERS:
            raise ValueError(f"num_workers={worker + 1}: at most {_MAX_WORKERS}")
        return self._rows[worker]

    def has_packed_nothing(self, num_left_out: int) -> bool:
        """Tell whether the workers have made no pack, and have left out so many samples."""
        sums = self._rows.sum(dim=0)
        return not sums[_COUNTER_COLUMNS["packs"]] and int(sums[len(COUNTERS) :].sum()) >= num_left_out

    def total(self, max_token_len: int) -> dict[str, Any]:
        """Add up the counters of all workers; the fill is a share of `max_token_len`, the most of a pack."""
        sums = dict(zip(_COUNTER_COLUMNS, self._rows.sum(dim=0).tolist(), strict=True))
        sums["longest_wait"] = int(self._rows[:, _COUNTER_COLUMNS["longest_wait"]].max())
        left_out = {reason.value: number for reason in Reason if (number := sums.pop(reason))}
        room = sums["packs"] * max_token_len + sums.pop("excess")
        fill = sums["tokens"] / room if room else 0.0
        return {**sums, "fill": fill, "left_out": left_out}


def _packable_none(last: Skip) -> PackError:
    return PackError(f"none of the samples drawn can be packed: {last}")


class OnlinePacks(Iterator[TrainingPack]):
    """An iterator over the packs of one lane (a worker of a rank), which resumes between packs from its `state`.

    Args:
        packed_nothing: tells whether all samples of this rank are drawn, and none is packed: an error at the end.
    """

    def __init__(
        self,
        name: str,
        datasets: Sequence[Samples],
        draws: SampleDraws,
        measuring: SampleMeasurer,
        pool: WaitingPool,
        encoder: PackEncoder,
        counters: torch.Tensor,
        packed_nothing: Callable[[], bool],
    ):
        self._name, self._datasets, self._draws, self._measuring = name, datasets, draws, measuring
        self._pool, self._encoder, self._counters = pool, encoder, counters
        self._packed_nothing = packed_nothing
        self._last_skip: Skip | None = None
        self._has_ended = False
        self._num_skipped_in_row = 0

    def __next__(self) -> TrainingPack:
        """Draw and measure samples until a pack can be made, and return it encoded."""
        while True:
            self._fill_pool()
            waiting = self._pool.take()
            if not waiting:
                if self._last_skip is not None and self._packed_nothing():
                    raise _packable_none(self._last_skip)
                raise StopIteration
            dropped: list[str] = []
            members = [*self._read_members(waiting, dropped)]
            pack = self._encoder.encode(f"{self._name}/{self._pool.num_packs - 1}", members) if members else None
            self._add_to_counters(dropped=len(members) if pack is None else len(pack.dropped))
            if pack is not None:
                self._count_pack(pack, sum(member.num_removed for member in members))
                return replace(pack, dropped=[*dropped, *pack.dropped])

    def state(self) -> dict[str, Any]:
        """Return positions, waiting samples and counters as JSON values, for `load_pool_and_counters`."""
        return {
            "positions": [asdict(position) for position in self._draws.positions],
            "has_ended": self._has_ended,
            "pool": self._pool.state(),
            "counted": dict(zip(_COUNTER_COLUMNS, self._counters.tolist(), strict=True)),
        }

    def load_pool_and_counters(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state` of this lane; the draws already have its `positions`."""
        self._has_ended = state["has_ended"]
        self._pool.load(state["pool"])
        counted = state["counted"]
        if isinstance(counted, list):  # of an earlier version, which did not count removed places
            counted = dict(zip((name for name in _COUNTER_COLUMNS if name != "removed"), counted, strict=False))
        self._counters.copy_(torch.tensor([counted.get(name, 0) for name in _COUNTER_COLUMNS], device="cpu"))

    def _fill_pool(self) -> None:
        while not self._has_ended and (missing := self._pool.num_samples_to_add):
            draws = [draw for draw in (self._draws.next() for _ in range(missing)) if draw is not None]
            self._measure_into_pool(draws)
            if len(draws) < missing:
                self._pool.plan_rest()
                self._has_ended = True

    def _measure_into_pool(self, draws: Sequence[Draw]) -> None:
        looked = [self._sample_or_skip(draw) for draw in draws]
        measured = iter(self._measuring.measure_sides([sample for sample in looked if not isinstance(sample, Skip)]))
        for draw, sample in zip(draws, looked, strict=True):
            result = sample if isinstance(sample, Skip) else next(measured)
            if isinstance(result, SampleMeasures):
                name = (*draw, *(result.pair or (result.token_len,)))
                self._pool.add(name, result.costs, self._measuring.group(result, draw.dataset))
                self._num_skipped_in_row = 0
            else:
                self._leave_out(draw, result)

    def _sample_or_skip(self, draw: Draw) -> list[Sample] | Skip:
        """Return a drawn sample, alone in a list, or the two sides of a drawn pair."""
        dataset = self._datasets[draw.dataset]
        try:
            if self._encoder.pairs is not None:
                return dataset.read_pair_sides_for_measuring(draw.number)
            return [dataset.sample_for_measuring(draw.number)]
        except Skip as skip:
            return skip

    def _read_members(self, waiting: Sequence[WaitingSample], dropped: list[str]) -> Iterator[MemberInput]:
        for sample in waiting:
            draw, lens = Draw(*sample.name[:3]), sample.name[3:]
            dataset = self._datasets[draw.dataset]
            try:
                if self._encoder.pairs is None:
                    yield replace(dataset.member(draw.number), token_len=lens[0])
                    continue
                chosen, rejected = dataset.read_pair_sides(draw.number)
            except Skip as skip:
                self._leave_out(draw, skip)
                sides = (None,) if self._encoder.pairs is None else SIDES
                dropped += [member_id(dataset.sample_id(draw.number), side) for side in sides]
                continue
            yield replace(chosen, token_len=lens[0])
            yield replace(rejected, token_len=lens[1], shared=Shared(*lens[2:]))

    def _leave_out(self, draw: Draw, skip: Skip) -> None:
        self._measuring.leave_out(self._datasets[draw.dataset].sample_id(draw.number), skip)
        self._add_to_counters(**{skip.reason: 1})
        self._num_skipped_in_row += 1
        if self._num_skipped_in_row > sum(map(len, self._datasets)):
            raise _packable_none(skip)
        self._last_skip = skip

    def _count_pack(self, pack: TrainingPack, num_removed: int) -> None:
        tokens = EncodedMembers.of(pack.members).tokens.num_tokens_in_row
        more = max(0, tokens - self._measuring.packing.max_token_len)
        images = sum(member.num_images for member in pack.members)
        num_samples = len(pack.members) // (1 if self._encoder.pairs is None else 2)
        counts = {"packs": 1, "samples": num_samples, "tokens": tokens, "excess": more, "removed": num_removed}
        self._add_to_counters(**counts, **{IMAGE.plural: images})
        self._counters[_COUNTER_COLUMNS["longest_wait"]] = self._pool.longest_wait

    def _add_to_counters(self, **counts: int) -> None:
        for name, num in counts.items():
            self._counters[_COUNTER_COLUMNS[name]] += num
