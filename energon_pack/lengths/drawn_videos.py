"""Decodes the videos that the audit draws, before the plan, and compares their frames with those that were counted.

Measuring counts packets, because headers may lie and decoding takes long. Some packets show no frame: where a drawn
video has such packets, all videos of its source file are measured again, by decoding.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from energon_pack.errors import amount
from energon_pack.lengths.audit import DrawnRows, draw_samples_to_audit, result_file
from energon_pack.lengths.measure import MeasuredShard, measure_shards
from energon_pack.lengths.method import Method
from energon_pack.run.console import say
from energon_pack.run.files import write_atomically
from energon_pack.run.stores.requests import reraising_store_errors
from energon_pack.run.workshop import Workshop
from energon_pack.samples.media.kinds import VIDEO
from energon_pack.samples.skip import Skip
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.sample import read_header
from energon_pack.sources.source_file import MeasuredRow, rows_of

_VIDEO = VIDEO.kind


@dataclass(frozen=True)
class _OtherCount:
    """A drawn video that decodes to another number of frames than its packets: its sample, and the two numbers."""

    shard: int  # the number of its source file
    sample: str
    num_packets: int
    num_frames: int


def remeasure_miscounted_videos(
    measured: list[MeasuredShard], method: Method, share: float, seed: int, workshop: Workshop
) -> list[MeasuredShard]:
    """Return measured shards; where a drawn video's packets are not its frames, the shard is measured by decoding.

    Args:
        share: of the samples, 0 to 1, drawn as the audit draws them.
    """
    kept = result_file("decoded", measured, method, share, seed)
    found = _read_counts(kept)
    if found is None:
        drawn = filter(None, map(_only_with_video, draw_samples_to_audit(measured, share, seed)))
        found = [one for of_job in workshop.executor.map(_other_counts, drawn) for one in of_job]
        write_atomically(kept, json.dumps(list(map(asdict, found))).encode())
    if not found:
        return measured
    numbers = sorted({one.shard for one in found})
    first = found[0]
    say(
        f"{first.sample}: {first.num_packets:,} frames in the file, {first.num_frames:,} when decoded: the videos of"
        f" {amount(len(numbers), 'source file')} are counted by decoding all"
    )
    indexed = [replace(measured[n].indexed, shard=replace(measured[n].shard, decodes_videos=True)) for n in numbers]
    decoded = dict(zip(numbers, measure_shards(indexed, method, workshop), strict=True))
    return [decoded.get(number, item) for number, item in enumerate(measured)]


def _read_counts(kept: Path) -> list[_OtherCount] | None:
    """Read what an earlier run found; None: there is no such file, or it was cut short."""
    try:
        return [_OtherCount(**one) for one in json.loads(kept.read_bytes())]
    except (FileNotFoundError, ValueError):
        return None


def _only_with_video(drawn: DrawnRows) -> DrawnRows | None:
    """Leave out drawn rows without a video; return None if no row is left."""
    shards, chunk, indices = drawn
    parts = chunk.read(["parts"])["parts"].take(indices).to_pylist()
    having = [index for index, own in zip(indices, parts, strict=True) if any(part["kind"] == _VIDEO for part in own)]
    return (shards, chunk, having) if having else None


@reraising_store_errors()
def _other_counts(drawn: DrawnRows) -> list[_OtherCount]:
    """Return the videos of drawn rows whose packets are not their frames; damaged ones are left to the audit."""
    shards, chunk, indices = drawn
    numbers = chunk.owners_of_rows[indices].tolist()
    rows = rows_of(chunk.read().take(indices), MeasuredRow)
    found: list[_OtherCount] = []
    with SourceReader() as reader:
        for number, row in zip(numbers, rows, strict=True):
            with suppress(Skip):
                for part in (part for part in row.parts if part.kind == _VIDEO):
                    packets, frames = (read_header(reader, shards[number], part, decodes) for decodes in (False, True))
                    if packets != frames:
                        name = shards[number].sample_id(row.key)
                        found.append(_OtherCount(number, name, packets.num_frames, frames.num_frames))
    return found
