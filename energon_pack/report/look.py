"""Choose what a page shows: a few packs, each for a reason, and the longest samples with media that are left out."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from energon_pack.dataset.files import PlanFile
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.lookup import PackLookup
from energon_pack.errors import PackError
from energon_pack.plan.items import Items, Lengths
from energon_pack.plan.packs import PackPlan, features_of_packs, media_of_packs
from energon_pack.report.pages.html import Html, details
from energon_pack.report.views.packed import Place, pack_view
from energon_pack.report.views.screens import pack_section
from energon_pack.report.views.spans import vocabulary_of
from energon_pack.report.views.view import Medium, thumbnail
from energon_pack.samples.flavors import flavor_written
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.samples.sample import MediaPart
from energon_pack.samples.skip import Skip
from energon_pack.sources.reader import Reader
from energon_pack.sources.rows import parts_of
from energon_pack.sources.shard import Shard
from energon_pack.templates.processor import load_saved

_MOST, _MEMBERS, _CHARS, _THUMBNAILS = 6, 8, 4_000, 4
_MOST_BYTES = 8 << 20  # bytes of a medium that is read; a larger video is not read for a picture


@dataclass(frozen=True)
class LookJob:
    """The packs of a written dataset that a page shows."""

    folder: Path
    flavor: str
    packs: dict[int, str]  # its number in the order of the plan → why it is shown
    template_folder: str
    max_token_len: int
    stored: str | None = None  # the address of its shards, where they are not in the folder


def packs_to_look_at(items: Items, plan: PackPlan) -> dict[int, str]:
    """Return the numbers of the packs to look at, each with why: the first of each medium, the fullest, the emptiest,
    and the one with most members."""
    if not plan.num_packs:
        return {}
    kind, tokens = media_of_packs(items, plan), plan.per_pack(items.lens)
    members = features_of_packs(items, plan)["members"]
    found = {int(np.argmax(kind == code)): f"the first {MEDIA_TYPES[code]} pack" for code in np.unique(kind).tolist()}
    if plan.num_packs == 1:
        return {0: "the only one"}
    edges = {"the fullest": tokens.argmax(), "the emptiest": tokens.argmin(), "the most members": members.argmax()}
    for why, number in edges.items():
        found[int(number)] = f"{found[int(number)]}, {why}" if int(number) in found else why
    return dict(list(found.items())[:_MOST])


def look(job: LookJob) -> list[Html]:
    """Build the parts of a page that show the packs; may run in a worker, which has the tokenizer."""
    return list(_sections(job))


def _sections(job: LookJob) -> Iterator[Html]:
    folder = DatasetFolder(job.folder)
    vocabulary, plan = vocabulary_of(load_saved(job.template_folder)), PlanFile(folder)
    first = next(iter(job.packs), None)
    shards = None if job.stored is None else DatasetFolder(job.stored)
    with PackLookup(folder, flavor_written(job.flavor), shards) as packs:
        chosen = {number: packs[number] for number in job.packs}
        rows = plan.members({found.pack.files.key for found in chosen.values()})
        for number, found in chosen.items():
            place = Place(number, len(packs), found.shard, job.max_token_len)
            members = rows.get(found.pack.files.key)
            view = pack_view(found.file, found.pack, place, members, vocabulary, _THUMBNAILS, found.defects, _MEMBERS)
            shown = pack_section(view, _CHARS, _MEMBERS)
            yield details(f"Pack {number:,}: {job.packs[number]}", shown, is_open=number == first)


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
