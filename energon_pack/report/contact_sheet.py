"""Make the contact sheet of a run, a few samples of each kind with their tokens, and draw example packs.

A click on a sample opens its pack. The samples take these steps:

    lengths, plan, remarks ──choose_tiles──► samples ──read_tiles, in a worker──► tiles ──► HTML

The kinds are the longest, the shortest, one of each remark, some drawn by chance, and what is left out. Example packs
are the first of each medium, the fullest, the emptiest, and the one with most members.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.dataset.files import PlanFile
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.pack_json import PackLookup
from energon_pack.errors import PackError
from energon_pack.lengths.worker import LengthsRow
from energon_pack.plan.items import AnyInts, Items, Lengths
from energon_pack.plan.note_counts import NAME_LISTS, NOTES, has_note
from energon_pack.plan.packs import LEFT_OUT, PackPlan, features_of_packs, media_type_of_packs
from energon_pack.report.pages.html import Html, Remark, clip_text, details, picture, section, tag
from energon_pack.report.views.packed import read_pack_view
from energon_pack.report.views.screens import pack_section
from energon_pack.report.views.view import PackPlace, make_webp_thumbnail, token_decoder_of, turns_of
from energon_pack.run.bounded_memory import split_into_blocks
from energon_pack.run.seeded_random import Ints
from energon_pack.samples.flavors import packed_flavor_or_default
from energon_pack.samples.media.kinds import KINDS, MEDIA_TYPES
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.sample import read_without_opening_media
from energon_pack.sources.shard import Shard
from energon_pack.sources.source_file import rows_of
from energon_pack.templates.processor import load_saved_template

_LeftOutCodes = npt.NDArray[np.int8]  # `PackPlan.left_out`
_TITLE = "Contact sheet"
_MAX_OF_KIND, _MAX_BY_CHANCE, _MAX_REMARKS = 4, 6, 8  # samples of a kind
_MAX_WORDS_CHARS, _MAX_CAPTION_CHARS = 150, 90  # characters
_MAX_MEDIUM_BYTES = 8 << 20  # bytes of a medium that is read; of a larger one there is no picture
_LONGEST, _SHORTEST, _REMARK, _CHANCE, _OUT = "longest", "shortest", "of a remark", "by chance", "left out"


@dataclass(frozen=True)
class ContactSheetTile:
    """A sample on the contact sheet: why it was chosen, where it is, and what is shown of it."""

    kind: str
    why: str  # its remark, or the reason for which it is in no pack
    shard: Shard
    lengths_row: LengthsRow
    num_tokens: int  # 0: it was not measured
    pack: int | None  # None: it is in no pack
    picture: bytes | None = None  # WebP
    words: str = ""  # its first words, or why there is no picture


def choose_contact_sheet_tiles(lengths: Lengths, plan: PackPlan, remarks: Sequence[Remark]) -> list[ContactSheetTile]:
    """Choose the samples of the contact sheet; their media and text are not read yet."""
    whys = {remark.sample: remark.what for remark in reversed(remarks) if remark.sample}
    picks = [*_choose_by_length(lengths, plan.left_out), *_choose_by_remarks(lengths, plan.left_out, whys)]
    numbers = np.array([number for _, number, _ in picks], np.int64)
    packs, tiles = _first_packs_with(lengths, plan, numbers), dict[int, ContactSheetTile]()
    for place, shard, row, reason in read_lengths_rows(lengths, numbers):
        kind, number, why = picks[place]
        left_out = LEFT_OUT[plan.left_out[number]]
        why = why or reason or (left_out.value if left_out else "")
        tiles[place] = ContactSheetTile(kind, why, shard, row, int(lengths.sample_lens[number]), packs.get(number))
    return [tiles[place] for place in sorted(tiles)]


def read_lengths_rows(lengths: Lengths, numbers: Ints) -> Iterator[tuple[int, Shard, LengthsRow, str | None]]:
    """Read the rows of some samples from the cache.

    Yields for each its place in `numbers`, its shard, its row, and the reason why no plan may pack it (None: it may).
    """
    for places, chunk, rows in lengths.find_cached_rows(numbers):
        table, shards = chunk.read(None).take(pa.array(rows)), chunk.owners_of_rows[rows].tolist()
        reasons = lengths.reason(table).to_pylist()
        for place, shard, *of_row in zip(places.tolist(), shards, rows_of(table, LengthsRow), reasons, strict=True):
            yield place, lengths.shards[shard].shard, *of_row


def _choose_by_length(lengths: Lengths, left_out: _LeftOutCodes) -> Iterator[tuple[str, int, str]]:
    """Choose the longest samples, the shortest, some by chance and some in no pack; yield kind, number and ""."""
    lens = lengths.sample_lens

    def first(is_in: Callable[..., npt.NDArray[np.bool_]], sign: int) -> list[int]:
        best: Ints = np.zeros(0, np.int64)
        for block in split_into_blocks(lengths.num_samples):
            here = block.start + np.flatnonzero(is_in(lens[block], left_out[block]))
            best = np.concatenate((best, here))
            best = best[np.argsort(sign * lens[best].astype(np.int64), kind="stable")[:_MAX_OF_KIND]]
        return [*map(int, best)]

    by_chance = np.random.default_rng(lengths.seed).integers(0, max(1, lengths.num_samples), 64)[: lengths.num_samples]
    packed = [number for number in dict.fromkeys(by_chance.tolist()) if lens[number] and not left_out[number]]
    kinds = {
        _LONGEST: first(lambda lens, out: (lens > 0) & (out == 0), -1),
        _SHORTEST: first(lambda lens, out: (lens > 0) & (out == 0), 1),
        _CHANCE: packed[:_MAX_BY_CHANCE],
        _OUT: first(lambda _, out: out > 0, -1) + first(lambda lens, out: (lens == 0) & (out == 0), 1),
    }
    yield from ((kind, number, "") for kind, numbers in kinds.items() for number in numbers)


def _choose_by_remarks(
    lengths: Lengths, left_out: _LeftOutCodes, whys: dict[str, str]
) -> Iterator[tuple[str, int, str]]:
    """Choose for each remark the first sample that it is about; yield kind, number, and the remark's text.

    `whys`: `Remark.sample` → the remark's text.
    """
    missing, of_arrays = dict([*whys.items()][:_MAX_REMARKS]), _remark_measures(lengths)
    for key in of_arrays.keys() & missing.keys():
        yield _REMARK, int(of_arrays[key]().argmax()), missing.pop(key)
    columns = {NOTES.get(key, key) for key in missing if key in NOTES or key in NAME_LISTS} | {*lengths.reason_columns}
    for start, _, table in lengths.tables([*columns], with_parts=False) if missing else ():
        for key, why in [*missing.items()]:
            is_of = _rows_of_remark(key, lengths, table, left_out[start : start + table.num_rows])
            if is_of.any():
                yield _REMARK, start + int(is_of.argmax()), why
                del missing[key]
        if not missing:
            return


def _remark_measures(lengths: Lengths) -> dict[str, Callable[[], AnyInts]]:
    """Return, by `Remark.sample`, functions that return an array over samples; the largest value marks the sample."""
    items, num = lengths.items, lengths.num_samples
    visual, audio = (items.counts[name][:num] for name in ("num_visual_tokens", "num_audio_tokens"))
    is_measured = lengths.sample_lens[:num] > 0
    return {
        "most_visual": lambda: visual,
        "untrained": lambda: is_measured & (items.num_supervised[:num] == 0),
        "without_features": lambda: is_measured & (items.media[:num] > 0) & (visual == 0) & (audio == 0),
    }


def _rows_of_remark(key: str, lengths: Lengths, table: pa.Table, left_out: _LeftOutCodes) -> npt.NDArray[np.bool_]:
    """Return which rows a remark (its `sample`: `key`) is about: those with a note, or left out for a reason."""
    if key in NOTES:
        return np.asarray(has_note(table[NOTES[key]]))
    if key in NAME_LISTS:
        return np.asarray(pc.is_valid(table[key]))
    is_lost = np.asarray(pc.fill_null(pc.equal(lengths.reason(table), key), False))
    is_out: npt.NDArray[np.bool_] = left_out == next((code for code, why in enumerate(LEFT_OUT) if why == key), -1)
    return is_lost | is_out


def _first_packs_with(lengths: Lengths, plan: PackPlan, samples: Ints) -> dict[int, int]:
    """Return for each of some samples the number of the first pack that holds it, or a part of it."""
    packs: dict[int, int] = {}
    num, num_packs = lengths.num_samples, 0
    for part in plan.in_blocks():
        owners = part.items.copy()
        is_part = owners >= num
        owners[is_part] = lengths.whole_of_part[owners[is_part] - num]
        places = np.flatnonzero(np.isin(owners, samples))
        in_pack = num_packs + np.searchsorted(part.starts, places, "right") - 1
        for sample, pack in zip(owners[places].tolist(), in_pack.tolist(), strict=True):
            packs.setdefault(sample, pack)
        num_packs += part.num_packs
    return packs


def read_tiles(job: tuple[Sequence[ContactSheetTile], ReadSettings]) -> list[ContactSheetTile]:
    """Read the chosen samples, and add a picture of the first medium, or the first words; may run in a worker.

    Of a sample that can't be read, `words` is the reason.
    """
    tiles, settings = job
    with SourceReader() as reader:
        return [_read_tile(reader, tile, settings) for tile in tiles]


def _read_tile(reader: SourceReader, tile: ContactSheetTile, settings: ReadSettings) -> ContactSheetTile:
    shard, row = tile.shard, tile.lengths_row
    if row.detail:
        return replace(tile, words=row.detail)
    try:
        if row.parts and KINDS[row.parts[0].kind].has_picture:
            part = row.parts[0]
            if part.size > _MAX_MEDIUM_BYTES:
                return replace(tile, words=f"{part.size / 1e6:,.0f} MB: no picture is made of it")
            return replace(tile, picture=make_webp_thumbnail(reader.read(shard, part), part.kind))
        turns = turns_of(read_without_opening_media(reader, shard, row, settings, reader.raw(shard, row)).messages)
        return replace(tile, words=" ".join(turn.text for turn in turns if turn.role != "system"))
    except (PackError, Skip, ValueError, OSError) as error:
        return replace(tile, words=str(error))


def draw_contact_sheet(tiles: Sequence[ContactSheetTile], packs: Collection[int]) -> Html | None:
    """Build the section of a page with the contact sheet; None: there are no samples.

    `packs`: numbers of the packs that the page shows; a picture links to its pack.
    """
    by_kind = {kind: [*of_kind] for kind, of_kind in groupby(tiles, key=lambda tile: tile.kind)}
    groups = []
    for kind in (_LONGEST, _SHORTEST, _REMARK, _CHANCE, _OUT):
        if figures := [_figure(tile, packs) for tile in by_kind.get(kind, ())]:
            groups.append(tag("div", tag("h3", kind.capitalize()), tag("div", *figures, class_="pictures")))
    if not groups:
        return None
    says = "A click opens the pack of a sample. Pictures are as they are stored; of text the first words are shown."
    return section(_TITLE, tag("div", *groups, class_="sheet"), says=says)


def _figure(tile: ContactSheetTile, packs: Collection[int]) -> Html:
    name = tile.shard.sample_id(tile.lengths_row.key)
    tokens = f"{tile.num_tokens:,} tokens" if tile.num_tokens else "not measured"
    shown = tag("blockquote", clip_text(tile.words, _MAX_WORDS_CHARS) or "no words")
    if tile.picture is not None:
        shown = picture(tile.picture, "image/webp", f"{name}, {tokens}", loading="lazy")
    if tile.pack is not None and tile.pack in packs:
        shown = tag("a", shown, href=f"#pack-{tile.pack}")
    why = tag("figcaption", clip_text(tile.why, _MAX_CAPTION_CHARS)) if tile.why else None
    return tag("figure", shown, tag("figcaption", tag("b", tokens), title=name), why)


# ---------------------------------------------------------------------------------------------------- example packs


#: packs that are drawn, and of each of them members, characters of a text, and pictures
_MAX_PACKS, _MAX_MEMBERS, _MAX_CHARS, _MAX_THUMBNAILS = 6, 8, 4_000, 4


@dataclass(frozen=True)
class ExamplePacksJob:
    """A worker's job: which packs of a written dataset to show on a page, and what is needed to read them."""

    folder: Path
    flavor: str
    packs: dict[int, str]  # its number in the order of the plan → why it is shown
    template_folder: str
    max_token_len: int
    shards_address: str | None = None  # the address of its shards, where they are not in the folder


def choose_example_packs(items: Items, plan: PackPlan) -> dict[int, str]:
    """Choose packs that a page shows, with a reason for each: the first of each medium, the fullest, the emptiest, the
    one with most members. Returns number of the pack → reason.
    """
    if not plan.num_packs:
        return {}
    kind, tokens = media_type_of_packs(items, plan), plan.sum_per_pack(items.lens)
    members = features_of_packs(items, plan)["members"]
    found = {int(np.argmax(kind == code)): f"the first {MEDIA_TYPES[code]} pack" for code in np.unique(kind).tolist()}
    if plan.num_packs == 1:
        return {0: "the only one"}
    edges = {"the fullest": tokens.argmax(), "the emptiest": tokens.argmin(), "the most members": members.argmax()}
    for why, number in edges.items():
        found[int(number)] = f"{found[int(number)]}, {why}" if int(number) in found else why
    return dict(list(found.items())[:_MAX_PACKS])


def draw_example_packs(job: ExamplePacksJob) -> dict[int, Html]:
    """Draw each pack of a job as a section of a page; return number of the pack → section. May run in a worker.

    The first packs are shown with their members, the others as a bar.
    """
    return dict(_sections(job))


def _sections(job: ExamplePacksJob) -> Iterator[tuple[int, Html]]:
    folder = DatasetFolder(job.folder)
    vocabulary, plan = token_decoder_of(load_saved_template(job.template_folder)), PlanFile(folder)
    first = next(iter(job.packs), None)
    shards = None if job.shards_address is None else DatasetFolder(job.shards_address)
    with PackLookup(folder, packed_flavor_or_default(job.flavor), shards) as packs:
        chosen = {number: packs[number] for number in job.packs}
        rows = plan.rows_of_packs({found.pack.files.key for found in chosen.values()})
        for order, (number, found) in enumerate(chosen.items()):
            place = PackPlace(number, len(packs), found.shard, job.max_token_len)
            members, most = rows.get(found.pack.files.key), _MAX_MEMBERS if order < _MAX_PACKS else 0
            try:
                view = read_pack_view(
                    found.file, found.pack, place, members, vocabulary, _MAX_THUMBNAILS, found.defects, most
                )
                shown = pack_section(view, _MAX_CHARS, most)
            except PackError as error:  # a page ends no run
                shown = tag("p", str(error), class_="bad")
            yield number, details(f"Pack {number:,}: {job.packs[number]}", shown, is_open=number == first)
