"""Conversations longer than a pack, cut between turns (`packing.overlong=split_turns`) or after some (`truncate_text`).

Each part is a conversation of its own: the system turn, some turns in a row, and their media. It is measured as any
sample is, and its row in the plan says what it holds of the whole.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from energon_pack.cut import Cut, exchanges, messages_of, num_media_before
from energon_pack.errors import PackError
from energon_pack.executor import LocalExecutor
from energon_pack.items import Lengths
from energon_pack.lengths import MeasuredShard, write_table
from energon_pack.measuring import LENGTHS_SCHEMA, num_tar_bytes
from energon_pack.media import Media, probe_part, with_frames
from energon_pack.plan import PackingSettings
from energon_pack.progress import Progress
from energon_pack.record import ReadSettings
from energon_pack.sample import Part, Skip, media_type, place_media
from energon_pack.sources.find import Shard
from energon_pack.sources.reader import Reader
from energon_pack.templates import Sample, Template, load_saved
from energon_pack.timestamps import stamped

CUTTING = ("split_turns", "truncate_text")
#: Raised when the same conversation is cut in another way.
_VERSION = 1
_SLICE = 200  # samples a job


@dataclass(frozen=True)
class CutJob:
    """Overlong samples of one shard: rows of its file of lengths."""

    shard: Shard
    rows: pa.Table
    template_folder: str
    read: ReadSettings
    engine: str
    settings: PackingSettings


def cut_overlong(
    lengths: Lengths,
    measured: Sequence[MeasuredShard],
    template_folder: str,
    read: ReadSettings,
    engine: str,
    settings: PackingSettings,
    cache_dir: Path,
    executor: LocalExecutor,
    progress: Progress,
) -> None:
    """Put parts in place of the samples that are too long, as far as these can be cut."""
    items = lengths.items
    overlong = settings.padded(items.lens) > settings.max_token_len
    if settings.overlong == "truncate_text":
        overlong &= items.media == 0
    rows_of = {
        number: np.flatnonzero(overlong & (items.shard == number)) for number in np.unique(items.shard[overlong])
    }
    limits = {name: value for name, value in asdict(settings).items() if name.startswith(("max_", "pad_", "overlong"))}

    def path_of(number: int) -> Path:
        how = [measured[number].path.stem, limits, _VERSION]
        return cache_dir / "cuts" / f"{hashlib.sha256(json.dumps(how).encode()).hexdigest()[:24]}.parquet"

    paths = {int(number): path_of(number) for number in rows_of}
    todo = [number for number, path in paths.items() if not path.exists()]

    def jobs() -> Iterator[CutJob]:
        for number in todo:
            table = pq.read_table(measured[number].path)
            lens = settings.padded(table["token_len"].to_numpy())
            wanted = table.filter(pa.array(lens > settings.max_token_len))
            for start in range(0, max(1, wanted.num_rows), _SLICE):
                rows = wanted.slice(start, _SLICE)
                yield CutJob(measured[number].shard, rows, template_folder, read, engine, settings)

    results = executor.map(cut, jobs())
    with progress.stage("cut", len(todo), "shards") as advance:
        for number in todo:
            table = pq.read_table(measured[number].path, columns=["token_len"])
            num_rows = int((settings.padded(table["token_len"].to_numpy()) > settings.max_token_len).sum())
            parts = [next(results) for _ in range(max(1, -(-num_rows // _SLICE)))]
            write_table(pa.concat_tables(parts), paths[number])
            advance(1)
    _take_in(lengths, paths, overlong)


def _take_in(lengths: Lengths, paths: dict[int, Path], overlong: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
    """The parts of those samples alone that this run is about: a file has all of its shard."""
    keys = {number: pq.read_table(path, columns=["key"])["key"] for number, path in paths.items()}
    names = {lengths.shard_names[number]: number for number in paths}
    is_cut = np.zeros(len(lengths.items), np.bool_)
    wanted: dict[int, pa.Array] = {}
    for start, shard, table in lengths.tables(["key"]):
        if (number := names.get(shard.name)) is not None:
            mine = (
                overlong[start : start + table.num_rows]
                & pc.is_in(table["key"], keys[number].combine_chunks()).to_numpy()
            )
            is_cut[start : start + table.num_rows] = mine
            wanted[number] = table["key"].filter(pa.array(mine)).combine_chunks()
    rows = {number: np.flatnonzero(pc.is_in(keys[number], wanted[number]).to_numpy()) for number in wanted}
    lengths.add_parts({number: (paths[number], rows[number]) for number in wanted}, is_cut)


def cut(job: CutJob) -> pa.Table:
    """The parts of overlong samples, as a table of `LENGTHS_SCHEMA`; none of those that can't be cut."""
    template = load_saved(job.template_folder)
    rows: list[dict[str, Any]] = []
    with Reader() as reader:
        for row in job.rows.to_pylist():
            if job.settings.overlong == "split_turns" or not row["parts"]:
                try:
                    rows += _Conversation(reader, row, template, job).parts()
                except Skip as skip:  # it was read well when it was measured
                    raise PackError(f"{job.shard.path} changed since it was measured ({skip}): run again") from None
    return pa.Table.from_pylist(rows, LENGTHS_SCHEMA)


class _Conversation:
    """One overlong sample, and what its parts measure."""

    def __init__(self, reader: Reader, row: dict[str, Any], template: Template, job: CutJob):
        self._row, self._template, self._job = row, template, job
        self._parts = [tuple(part.values()) for part in row["parts"]]
        kinds = [part[3] for part in self._parts]
        place = row["record_part"], row["record_offset"], row["record_size"]
        record = reader.record(job.shard, place, bool(kinds), job.read)
        messages, _, _ = place_media(record.messages, kinds)
        num_images = kinds.count("image")
        arrays = [Part(**part) for part in row["positions"]]
        positions = reader.positions(job.shard, record, num_images, row["key"], arrays)
        self._messages = stamped(messages, reader.marks(job.shard, record, positions, num_images))
        self._tools = record.tools
        files = [Part(*part[:3]) for part in self._parts]
        media = [probe_part(reader.fd_of(job.shard, part), part) for part in files]
        self._media: list[Media] = with_frames(media, record.fields.get("video_frames"))
        self._num_before = num_media_before(self._messages, kinds)

    def parts(self) -> list[dict[str, Any]]:
        """Rows of its parts; none where it can't be cut."""
        edges = exchanges(self._messages)
        if self._job.settings.overlong == "truncate_text":
            found = self._beginning(edges)
            return [] if found is None else [self._named(found, 1, 1)]
        found_all = []
        at = 0
        while at < len(edges) - 1:
            step = _most(lambda n, at=at: self._measured(edges[at], edges[at + n]), len(edges) - 1 - at)  # type: ignore[misc]
            if step is None:
                return []
            at += step[0]
            found_all.append(step[1])
        return [self._named(row, i + 1, len(found_all)) for i, row in enumerate(found_all)]

    def _beginning(self, edges: list[int]) -> dict[str, Any] | None:
        """The longest beginning that fits: whole exchanges, or the first answer up to a token."""
        whole = _most(lambda n: self._measured(edges[0], edges[n]), len(edges) - 2)
        if whole is not None:
            return whole[1]
        answer = next(i for i, message in enumerate(self._messages) if message["role"] == "assistant")
        text = self._messages[answer]["content"]
        if not isinstance(text, str) or self._messages[answer].get("tool_calls"):
            return None
        ends = self._template.token_ends(text)
        found = _most(lambda n: self._measured(edges[0], answer + 1, ends[n - 1]), len(ends))
        return None if found is None else found[1]

    def _measured(self, first: int, end: int, num_characters: int | None = None) -> dict[str, Any] | None:
        """The row of a part; None where it does not fit."""
        here = slice(self._num_before[first], self._num_before[end])
        media, settings = self._media[here], self._job.settings
        sample = Sample(messages_of(self._messages, first, end, num_characters), media, self._tools)
        try:
            rendered = self._template.render(sample)
        except Skip:  # a template may refuse some turns without those before
            return None
        [(token_len, num_supervised)] = self._template.count([rendered], self._job.engine)
        kinds = [medium.kind for medium in media]
        num_images = kinds.count("image")
        limits = (
            (settings.padded(np.array([token_len]))[0], settings.max_token_len),
            (num_images, settings.max_images),
            (rendered.num_visual_tokens, settings.max_visual_tokens),
            (token_len**2, settings.max_attention_cost),
        )
        if any(cap is not None and value > cap for value, cap in limits):
            return None
        return self._row | {
            "parts": self._row["parts"][here],
            "files": None,  # those of the whole sample are compared
            "media_type": media_type(kinds),
            "token_len": token_len,
            "num_supervised": num_supervised,
            "num_visual_tokens": rendered.num_visual_tokens,
            "num_images": num_images,
            "num_bytes": num_tar_bytes(
                [self._row["record_size"], *(part["size"] for part in self._row["parts"][here])]
            ),
            "cut": Cut("", first, end, num_characters, "".join(part[3][0] for part in self._parts))._asdict(),
        }

    def _named(self, row: dict[str, Any], number: int, num_parts: int) -> dict[str, Any]:
        return row | {"cut": row["cut"] | {"part": f"{number}of{num_parts}"}}


def _most(measured: Callable[[int], dict[str, Any] | None], limit: int) -> tuple[int, dict[str, Any]] | None:
    """The largest number from 1 to `limit` for which there is a row, found by doubling and halving."""
    best: tuple[int, dict[str, Any]] | None = None
    step = 1
    too_many = limit + 1
    while (number := (best[0] if best else 0) + step) < too_many:
        row = measured(number)
        if row is None:
            too_many = number
            break
        best, step = (number, row), step * 2
    low = best[0] if best else 0
    too_many = min(too_many, limit + 1)
    while too_many - low > 1:
        middle = (low + too_many) // 2
        row = measured(middle)
        if row is None:
            too_many = middle
        else:
            low, best = middle, (middle, row)
    return best
