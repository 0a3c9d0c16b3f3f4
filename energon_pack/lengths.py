"""Exact token lengths of all samples: one Parquet file a source shard, kept in the cache.

    shard ──index──► index/<key>.parquet ──measure, in slices──► lengths/<key>.parquet

The key of a file is all its content depends on: the shard's identity, and for lengths the model's fingerprint and
how samples are read. `packing.*` is not in it, so a sweep over packing settings measures once.
"""

import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import accumulate, chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from energon_pack.errors import PackError
from energon_pack.executor import LocalExecutor
from energon_pack.media import Media, open_part, probe
from energon_pack.progress import Progress
from energon_pack.record import ReadSettings, media_parts
from energon_pack.sample import Part, Reason, Skip, media_type, media_type_by_name, place_media
from energon_pack.sources import wds
from energon_pack.templates import Sample, Template, load_saved
from energon_pack.templates.base import Rendered

#: Raised when measuring the same sample gives other columns or values.
LENGTHS_VERSION = 1

_SLICE = 2000  # samples a job: small enough that one shard uses all cores
_BATCH = 512  # texts tokenized at once
_BATCH_CHARACTERS = 4_000_000

_PART_TYPE = pa.list_(
    pa.struct(
        [
            ("name", pa.string()),
            ("offset", pa.int64()),
            ("size", pa.int64()),
            ("kind", pa.string()),  # image | video
            ("extension", pa.string()),  # of the content
        ]
    )
)
LENGTHS_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("record_part", pa.string()),
        ("record_offset", pa.int64()),
        ("record_size", pa.int64()),
        ("parts", _PART_TYPE),  # the media, in the order of their placeholders
        ("media_type", pa.string()),
        ("token_len", pa.int32()),
        ("num_supervised", pa.int32()),
        ("num_visual_tokens", pa.int32()),
        ("num_control_tokens", pa.int32()),
        ("placeholders_put_in", pa.bool_()),
        ("reason", pa.string()),  # null: measured
        ("detail", pa.string()),
    ]
)


@dataclass(frozen=True)
class MeasureJob:
    """A slice of one shard's index, and what measuring needs."""

    shard_path: str
    samples: pa.Table
    template_folder: str
    settings: ReadSettings


@dataclass(frozen=True)
class IndexedShard:
    """A shard and its file of `wds.INDEX_SCHEMA`."""

    shard: wds.Shard
    path: Path
    num_samples: int


@dataclass(frozen=True)
class MeasuredShard:
    """A shard and its file of `LENGTHS_SCHEMA`."""

    shard: wds.Shard
    path: Path
    was_cached: bool


def index_shards(
    shards: list[wds.Shard], keep_damaged: bool, cache_dir: Path, executor: LocalExecutor, progress: Progress
) -> list[IndexedShard]:
    """Index every shard that is not in the cache yet.

    Raises:
        PackError: a tar is compressed, or damaged and `keep_damaged` is off.
    """
    paths = [cache_dir / "index" / f"{_key(shard, [wds.INDEX_VERSION])}.parquet" for shard in shards]
    todo = [(shard, path) for shard, path in zip(shards, paths, strict=True) if not path.exists()]
    with progress.stage("index", len(todo), "shards") as advance:
        for _ in executor.map(_index_one, todo):
            advance(1)
    files = [pq.ParquetFile(path) for path in paths]
    damaged = [
        f"{shard.path}: {what} at byte {offset}"
        for shard, file in zip(shards, files, strict=True)
        for offset, what in wds.damage_of(file.schema_arrow)
    ]
    if damaged and not keep_damaged:
        others = f" (and {len(damaged) - 1} more like it)" if len(damaged) > 1 else ""
        raise PackError(f"damaged tar {damaged[0]}{others}; source.on_damaged=keep packs what is whole")
    return [
        IndexedShard(shard, path, file.metadata.num_rows)
        for shard, path, file in zip(shards, paths, files, strict=True)
    ]


def first_samples(indexed: list[IndexedShard], limit: int | None, num_excluded: int) -> list[IndexedShard]:
    """The shards that hold the first `limit` samples, of which `num_excluded` may not count."""
    if limit is None:
        return indexed
    before = accumulate((item.num_samples for item in indexed), initial=0)
    return [item for item, count in zip(indexed, before, strict=False) if count < limit + num_excluded]


def measure_shards(
    indexed: list[IndexedShard],
    template_folder: str,
    settings: ReadSettings,
    cache_dir: Path,
    executor: LocalExecutor,
    progress: Progress,
) -> list[MeasuredShard]:
    """Measure every shard that is not in the cache yet."""
    how = [load_saved(template_folder).fingerprint, asdict(settings), LENGTHS_VERSION]
    paths = [cache_dir / "lengths" / f"{_key(item.shard, how)}.parquet" for item in indexed]
    todo = [(item, path) for item, path in zip(indexed, paths, strict=True) if not path.exists()]

    def jobs() -> Iterator[MeasureJob]:
        for item, _ in todo:
            index = pq.read_table(item.path)
            for start in range(0, max(1, item.num_samples), _SLICE):
                rows = pa.array(range(start, min(start + _SLICE, item.num_samples)), pa.int64())
                yield MeasureJob(item.shard.path, index.take(rows), template_folder, settings)

    results = executor.map(measure, jobs())
    with progress.stage("measure", sum(item.num_samples for item, _ in todo), "samples") as advance:
        for item, path in todo:
            tables: list[pa.Table] = []
            while not tables or sum(table.num_rows for table in tables) < item.num_samples:
                tables.append(next(results))
                advance(tables[-1].num_rows)
            _write(pa.concat_tables(tables), path)
    measured = {path for _, path in todo}
    return [MeasuredShard(item.shard, path, path not in measured) for item, path in zip(indexed, paths, strict=True)]


def _index_one(job: tuple[wds.Shard, Path]) -> None:
    _write(wds.index_shard(job[0]), job[1])


def _key(shard: wds.Shard, how: list[object]) -> str:
    identity = [os.path.realpath(shard.path), shard.size, shard.mtime_ns, how]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]


def _write(table: pa.Table, path: Path) -> None:
    """Whole or not at all: a killed run leaves no half file under a name that is trusted later."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{uuid.uuid4().hex}.tmp")
    pq.write_table(table, temporary)
    os.replace(temporary, path)


# -------------------------------------------------------------------------------------------------- in a worker


def measure(job: MeasureJob) -> pa.Table:
    """Lengths of a slice of samples, as a table of `LENGTHS_SCHEMA`; runs in a worker."""
    template = load_saved(job.template_folder)
    rows = _Row.of_index(job.samples)
    fd = os.open(job.shard_path, os.O_RDONLY)
    try:
        waiting: list[tuple[_Row, Rendered]] = []
        num_characters = 0
        for row in rows:
            rendered = row.render(fd, template, job.settings) if row.reason is None else None
            if rendered is None:
                continue
            waiting.append((row, rendered))
            num_characters += len(rendered.text)
            if len(waiting) == _BATCH or num_characters > _BATCH_CHARACTERS:
                _tokenize(template, waiting)
                num_characters = 0
        _tokenize(template, waiting)
    finally:
        os.close(fd)
    return _table(rows)


def _tokenize(template: Template, waiting: list[tuple["_Row", Rendered]]) -> None:
    for (row, _), tokens in zip(waiting, template.tokenize([rendered for _, rendered in waiting]), strict=True):
        row.token_len, row.num_supervised = len(tokens.ids), tokens.num_supervised
    waiting.clear()


@dataclass
class _Row:
    """One sample on its way from an index row to a lengths row."""

    key: str
    record_part: str
    record_offset: int
    record_size: int
    reason: str | None
    detail: str | None
    all_parts: list[Part]
    #: what the sample seems to be until its media were looked at; None: can't be told
    media_type: str | None
    parts: list[tuple[str, int, int, str, str]] = field(default_factory=list)  # as _PART_TYPE
    token_len: int = 0
    num_supervised: int = 0
    num_visual_tokens: int = 0
    num_control_tokens: int = 0
    placeholders_put_in: bool = False

    @classmethod
    def of_index(cls, samples: pa.Table) -> list["_Row"]:
        names = ("key", "record_part", "record_offset", "record_size", "reason", "detail")
        columns = [samples.column(name).to_pylist() for name in names]
        parts = [[Part(*part) for part in row] for row in wds.parts_of(samples)]
        return [
            cls(**dict(zip(names, row, strict=True)), all_parts=all_parts, media_type=media_type_by_name(all_parts))
            for row, all_parts in zip(zip(*columns, strict=True), parts, strict=True)
        ]

    def render(self, fd: int, template: Template, settings: ReadSettings) -> Rendered | None:
        """The sample as text, or None and `reason` set."""
        try:
            has_media = self.media_type is not None
            record = wds.read_record(fd, self.record_part, self.record_offset, self.record_size, has_media, settings)
            self.media_type = record.declared or self.media_type
            parts = media_parts(record, self.key, self.all_parts)
            media = [_probe(fd, part) for part in parts]
            self.media_type = media_type([medium.kind for medium in media])
            messages, order, put_in = place_media(record.messages, [medium.kind for medium in media])
            rendered = template.render(Sample(messages, [media[i] for i in order], record.tools))
            if rendered.num_control_tokens and settings.control_tokens == "skip":
                raise Skip(Reason.CONTROL_TOKEN, "a message spells a special token (source.control_tokens=keep)")
        except Skip as skip:
            self.reason, self.detail = skip.reason.value, skip.detail
            if self.media_type is None and skip.reason is not Reason.INVALID_JSON:
                self.media_type = "text"
            return None
        self.parts = [(*parts[i], media[i].kind, media[i].extension) for i in order]
        self.placeholders_put_in = put_in
        self.num_visual_tokens = rendered.num_visual_tokens
        self.num_control_tokens = rendered.num_control_tokens
        return rendered


def _probe(fd: int, part: Part) -> Media:
    try:
        return probe(open_part(fd, part.offset, part.size))
    except Skip as skip:
        raise Skip(skip.reason, f"{part.name}: {skip.detail}") from None


def _table(rows: list[_Row]) -> pa.Table:
    fields = list(_PART_TYPE.value_type)
    flat = list(chain.from_iterable(row.parts for row in rows))
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row.parts))
    structs = pa.StructArray.from_arrays(
        [pa.array([part[i] for part in flat], field.type) for i, field in enumerate(fields)], fields=fields
    )
    columns = {"parts": pa.ListArray.from_arrays(pa.array(starts, pa.int32()), structs)}
    return pa.table(
        [
            columns.get(field.name)
            if field.name in columns
            else pa.array([getattr(row, field.name) for row in rows], field.type)
            for field in LENGTHS_SCHEMA
        ],
        schema=LENGTHS_SCHEMA,
    )
