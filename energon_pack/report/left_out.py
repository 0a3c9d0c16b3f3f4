"""A contact sheet of samples that the plan leaves out: the longest with images or videos, each with a picture."""

from dataclasses import dataclass

import numpy as np

from energon_pack.errors import PackError
from energon_pack.plan.items import Lengths
from energon_pack.plan.packs import PackPlan
from energon_pack.report.views.thumbnails import thumbnail
from energon_pack.report.views.view import Medium
from energon_pack.samples.sample import MediaPart
from energon_pack.samples.skip import Skip
from energon_pack.sources.reader import Reader
from energon_pack.sources.rows import parts_of
from energon_pack.sources.shard import Shard

_MOST = 6  # samples that are shown
_MOST_BYTES = 8 << 20  # bytes of a medium that is read; a larger video is not read for a picture


@dataclass(frozen=True)
class LeftOut:
    """A sample that is in no pack, with its first medium."""

    shard: Shard
    part: MediaPart
    sample_id: str
    num_tokens: int  # of the sample


def left_out_pictures(lengths: Lengths, plan: PackPlan) -> list[LeftOut]:
    """Return the longest samples with media that the plan leaves out."""
    num, items = lengths.num_samples, lengths.items
    numbers = np.flatnonzero((plan.left_out[:num] > 0) & (items.media[:num] > 0))
    numbers = numbers[np.argsort(-lengths.sample_lens[numbers], kind="stable")[:_MOST]]
    found: dict[int, LeftOut] = {}
    for of_numbers, chunk, rows in lengths.places(numbers):
        table, shards = chunk.read(["key", "parts"]).take(rows), chunk.numbers_of_rows[rows]
        ids = lengths.sample_ids(shards, table)
        for place, shard, name, parts in zip(of_numbers, shards, ids, parts_of(table["parts"]), strict=True):
            if parts:
                tokens = int(lengths.sample_lens[numbers[place]])
                found[int(place)] = LeftOut(lengths.shards[shard].shard, parts[0], name, tokens)
    return [found[place] for place in sorted(found)]


def drawn(pictures: list[LeftOut]) -> list[Medium]:
    """Draw the pictures; may run in a worker. A picture that can't be read or drawn says why."""
    with Reader() as reader:
        return [_medium(reader, picture) for picture in pictures]


def _medium(reader: Reader, picture: LeftOut) -> Medium:
    data, problem = None, None
    try:
        if picture.part.size <= _MOST_BYTES:
            data = thumbnail(reader.read(picture.shard, picture.part), picture.part.kind)
        else:
            problem = f"{picture.part.size / 1e6:,.0f} MB: no picture is made of it"
    except (PackError, Skip, ValueError, OSError) as error:
        problem = str(error)
    return Medium(picture.part.kind, picture.sample_id, num_tokens=picture.num_tokens, data=data, problem=problem)
