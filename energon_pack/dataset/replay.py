"""Choose samples and keep them beside the manifest, so that a loader with other versions can measure them again.

A seeded draw takes them from the packed samples: first the longest and the shortest, those with most and with fewest
visual tokens and images, then any. A process beside the run reads them while the packs are written.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from energon_pack.lengths.measure import LengthsWrong
from energon_pack.lengths.method import Method
from energon_pack.lengths.table_cache import Chunk
from energon_pack.plan.items import Items, Lengths
from energon_pack.plan.packs import PackPlan
from energon_pack.run.context import Run
from energon_pack.run.scratch import blocks
from energon_pack.run.seeded import Ints, random_keys
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.samples.skip import Skip
from energon_pack.sources.reader import Reader, whole_if_small
from energon_pack.sources.rows import MeasuredRow, rows_of
from energon_pack.sources.sample import read_again
from energon_pack.sources.shard import Shard
from energon_pack.templates.processor import load_saved
from energon_pack.templates.replay import MOST_SAMPLES, record
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template

_STREAM = 0x5E9
_LEAST_SAMPLES = 100
_SHARE = 50  # one sample of so many: reading them again costs little compared with measuring
#: columns that are left out of the draw if no sample has any: so datasets without sounds keep the draw of old versions
_OF_SOUNDS = ("num_audios", "num_audio_tokens")
_EXTREMES = 8  # samples at each end of each number
_MOST_MS = (
    1500.0  # milliseconds that a loader may take to expand the media of all kept samples (`MediaRules.expand_ms`)
)


@dataclass(frozen=True)
class ReplayJob:
    """Rows of chunks of lengths, the shards of each chunk by number, and the place of each row in the draw."""

    rows: list[tuple[dict[int, Shard], Chunk, Ints, Ints]]
    method: Method


def start_replay(lengths: Lengths, plan: PackPlan, method: Method, seed: int, run: Run) -> "Future[bytes]":
    """Start to read the samples to keep, beside the run; the result is the file that holds them."""
    chosen = draw(lengths.items, plan.is_packed(lengths.scratch), seed)
    rows = [
        ({number: lengths.shards[number].shard for number in chunk.numbers}, chunk, there, places)
        for places, chunk, there in lengths.places(chosen)
    ]
    return run.executor.start(make_replay, ReplayJob(rows, method))


def draw(items: Items, is_packed: npt.NDArray[np.bool_], seed: int) -> Ints:
    """Draw items for a replay, the most telling first: the same for the same seed, in whatever order they are packed.

    After the extremes, samples with and without media alternate while there are both: they tell different things.
    """
    num_packed = int(np.count_nonzero(is_packed))
    number = min(num_packed, MOST_SAMPLES, max(_LEAST_SAMPLES, num_packed // _SHARE))
    found, keys = np.zeros(0, np.int64), np.zeros(0, np.uint64)
    num_seen = 0
    for block in blocks(len(is_packed)):
        new = block.start + np.flatnonzero(is_packed[block])
        found = np.concatenate((found, new))
        keys = np.concatenate((keys, random_keys(len(new), seed, _STREAM, num_seen)))
        num_seen += len(new)
        first = _first(items.take(found), keys, 2 * number)  # enough samples of either kind
        found, keys = found[first], keys[first]
    return found[_first(items.take(found), keys, 0)][:number]


def _first(items: Items, keys: npt.NDArray[np.uint64], most: int) -> Ints:
    """Order some items: the extremes, then others by their keys, those with media and those without in turn.

    Args:
        most: how many to return; 0: all.
    """
    by_key = np.argsort(keys)
    ends: list[Ints] = []
    for name, counts in items.counts.items():
        if name in _OF_SOUNDS and not counts.any():
            continue
        order = by_key[np.argsort(counts[by_key], kind="stable")]
        ends += [order[::-1][:_EXTREMES], order[:_EXTREMES]]
    has_media = items.media[by_key] > MEDIA_TYPES.index("text")
    of_its_kind = np.where(has_media, np.cumsum(has_media), np.cumsum(~has_media))
    in_turn = by_key[np.argsort(of_its_kind, kind="stable")]
    ranks = np.concatenate([*ends, in_turn[: most or len(in_turn)]])
    _, place = np.unique(ranks, return_index=True)
    return ranks[np.sort(place)]


def make_replay(job: ReplayJob) -> bytes:
    """Read the samples of a job, and return the content of the file that keeps them.

    Raises:
        LengthsWrong: a sample has another length now: its length came from a cache that other versions filled.
        PackError: the source changed.
    """
    template = load_saved(job.method.template_folder)
    with Reader() as reader:
        return record(template, _samples(job, template, reader)).to_bytes()


def _samples(job: ReplayJob, template: Template, reader: Reader) -> Iterator[Sample]:
    """Yield samples in the order of the draw, with their packed lengths; no more than a loader measures in time."""
    found: list[tuple[int, Shard, MeasuredRow]] = []
    for shards, chunk, there, places in job.rows:
        numbers = chunk.numbers_of_rows[there].tolist()
        rows = rows_of(chunk.read().take(there), MeasuredRow)
        found += zip(places.tolist(), [shards[number] for number in numbers], rows, strict=True)
    ms_left = _MOST_MS
    in_order = sorted(found, key=itemgetter(0))
    for _, shard, row in reader.ahead(in_order, lambda one: [one[1:]], whole_if_small):
        ms = sum(template.rules.expand_ms.get(part.kind, 0.0) for part in row.parts)
        if ms <= ms_left:
            ms_left -= ms
            yield _as_packed(reader, shard, row, job.method, template)


def _as_packed(reader: Reader, shard: Shard, row: MeasuredRow, method: Method, template: Template) -> Sample:
    try:
        read = read_again(reader, shard, row, method.read)
        sample = Sample(read.timed, read.media, read.tools, read.options)
        token_len = str(len(template.encode(sample).ids))
    except Skip as skip:
        token_len = f"no ({skip})"
    if token_len != str(row.token_len):
        raise LengthsWrong(
            f"{shard.sample_id(row.key)} has {token_len} tokens measured again, {row.token_len} as measured before: by"
            " other versions, or of another file? Nothing is published; the same command measures anew"
        )
    return sample
