"""Measuring a slice of samples in a worker: JSON, headers of media, chat template, counts."""

import warnings
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa

from energon_pack.cut import CUT_TYPE
from energon_pack.media import probe_part, with_frames
from energon_pack.method import Method
from energon_pack.packs import not_captioning
from energon_pack.record import ReadSettings
from energon_pack.sample import Part, Reason, Skip, media_type, media_type_by_name, num_placeholders, place_media
from energon_pack.sources import wds
from energon_pack.sources.reader import Reader
from energon_pack.sources.shard import Shard
from energon_pack.sources.tar import num_tar_bytes
from energon_pack.templates import Sample, Template, load_saved
from energon_pack.templates.base import Rendered
from energon_pack.timestamps import stamped

_BATCH = 512  # texts tokenized at once
_BATCH_CHARACTERS = 4_000_000
#: of samples that were never seen whole: no text, though no name tells a medium (a key of an LMDB, a URL)
_MAY_HAVE_MEDIA = (Reason.INVALID_JSON, Reason.MISSING_MEDIA, Reason.UNREADABLE_MEDIA, Reason.UNSUPPORTED_MEDIA)

_PART_TYPE = pa.list_(
    pa.struct(
        [
            ("name", pa.large_string()),
            ("offset", pa.int64()),
            ("size", pa.int64()),
            ("kind", pa.string()),  # image | video
            ("extension", pa.string()),  # of the content
        ]
    )
)
_FILES_TYPE = pa.list_(pa.struct([("name", pa.large_string()), ("size", pa.int64()), ("version", pa.string())]))
LENGTHS_SCHEMA = pa.schema(
    [
        ("key", pa.large_string()),
        ("record_part", pa.string()),
        ("record_offset", pa.int64()),
        ("record_size", pa.int64()),
        ("parts", _PART_TYPE),  # the media, in the order of their placeholders
        ("positions", wds.PART_TYPE),  # the .npy of its images, where they are members of its tar
        ("files", _FILES_TYPE),  # that it is made of beside its shard, to see whether they change; null: none can be
        ("media_type", pa.string()),
        ("token_len", pa.int32()),
        ("num_supervised", pa.int32()),
        ("num_visual_tokens", pa.int32()),
        ("num_images", pa.int32()),
        ("num_bytes", pa.int64()),  # of its JSON and media, as members of a tar
        ("num_control_tokens", pa.int32()),
        ("placeholders_put_in", pa.bool_()),
        ("placeholders_as_text", pa.bool_()),  # placeholders, but no media
        ("not_captioning", pa.large_string()),  # why it does not fit into packed_captioning; null: it does
        ("tools_left_out", pa.bool_()),  # the chat template writes nothing of its tools
        ("checksum", pa.uint32()),  # of its JSON and the ends of its media: `reader.checksum`
        ("reason", pa.string()),  # null: measured
        ("detail", pa.large_string()),
        ("cut", CUT_TYPE),  # null: a whole sample
    ]
)


@dataclass(frozen=True)
class MeasureJob:
    """A slice of the index, and how it is measured."""

    shards: list[Shard]  # of each sample
    samples: pa.Table  # of `wds.INDEX_SCHEMA`
    method: Method


def measure(job: MeasureJob) -> pa.Table:
    """Lengths of a slice of samples, as a table of `LENGTHS_SCHEMA`; runs in a worker."""
    template = load_saved(job.method.template_folder)
    rows = _Row.of_index(job.samples)
    warnings.filterwarnings("ignore", module="PIL")  # of odd EXIF and the like; what can't be opened is in the ledger
    with Reader() as reader:
        waiting: list[tuple[_Row, Rendered]] = []
        num_characters = 0
        for row, shard in zip(rows, job.shards, strict=True):
            rendered = row.render(reader, shard, template, job.method.read) if row.reason is None else None
            if rendered is None:
                continue
            waiting.append((row, rendered))
            num_characters += len(rendered.text)
            if len(waiting) == _BATCH or num_characters > _BATCH_CHARACTERS:
                _count(template, waiting, job.method.engine)
                num_characters = 0
        _count(template, waiting, job.method.engine)
    return _table(rows)


def _count(template: Template, waiting: list[tuple["_Row", Rendered]], engine: str) -> None:
    counts = template.count([rendered for _, rendered in waiting], engine)
    for (row, _), (token_len, num_supervised) in zip(waiting, counts, strict=True):
        row.token_len, row.num_supervised = token_len, num_supervised
        if not row.token_len:
            row.reason, row.detail = Reason.PROCESSOR_ERROR.value, "the chat template renders nothing"
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
    positions: list[dict[str, Any]] = field(default_factory=list)
    files: list[dict[str, Any]] | None = None
    token_len: int = 0
    num_supervised: int = 0
    num_visual_tokens: int = 0
    num_images: int = 0
    num_bytes: int = 0
    num_control_tokens: int = 0
    placeholders_put_in: bool = False
    placeholders_as_text: bool = False
    not_captioning: str | None = None
    tools_left_out: bool = False
    checksum: int = 0

    @classmethod
    def of_index(cls, samples: pa.Table) -> list["_Row"]:
        names = ("key", "record_part", "record_offset", "record_size", "reason", "detail")
        columns = [samples.column(name).to_pylist() for name in names]
        parts = [[Part(*part) for part in row] for row in wds.parts_of(samples)]
        return [
            cls(
                **dict(zip(names, row, strict=True)),
                all_parts=all_parts,
                media_type=media_type_by_name([part.name for part in all_parts]),
            )
            for row, all_parts in zip(zip(*columns, strict=True), parts, strict=True)
        ]

    def render(self, reader: Reader, shard: Shard, template: Template, settings: ReadSettings) -> Rendered | None:
        """The sample as text, or None and `reason` set."""
        try:
            place = self.record_part, self.record_offset, self.record_size
            raw = reader.raw(shard, place)
            record = shard.record(raw, self.record_part, self.media_type is not None, settings)
            self.media_type = record.declared or self.media_type or media_type_by_name(record.listed_media or ())
            parts = reader.media(shard, record, self.key, self.all_parts)
            media = with_frames(
                [probe_part(reader.part_file(shard, part), part) for part in parts], record.fields.get("video_frames")
            )
            self.media_type = media_type([medium.kind for medium in media])
            messages, order, put_in = place_media(record.messages, [medium.kind for medium in media])
            num_images = sum(medium.kind == "image" for medium in media)
            positions = reader.positions(shard, record, num_images, self.key, self.all_parts)
            marks = reader.marks(shard, record, positions, num_images)
            self.files = reader.files(shard, [*parts, *positions])
            rendered = template.render(Sample(stamped(messages, marks), [media[i] for i in order], record.tools))
            if rendered.num_control_tokens and settings.control_tokens == "skip":
                raise Skip(Reason.CONTROL_TOKEN, "a message spells a special token (source.control_tokens=keep)")
        except Skip as skip:
            self.reason, self.detail = skip.reason.value, skip.detail
            if self.media_type is None and skip.reason not in _MAY_HAVE_MEDIA:
                self.media_type = "text"
            return None
        self.parts = [(*parts[i], media[i].kind, media[i].extension) for i in order]
        if shard.media_root is None:
            self.positions = [part._asdict() for part in dict.fromkeys(positions) if part is not None]
        self.placeholders_put_in = put_in
        self.placeholders_as_text = not media and num_placeholders(messages) > 0
        self.checksum = reader.checksum(shard, raw, [parts[i] for i in order])
        self.num_visual_tokens = rendered.num_visual_tokens
        self.num_images = num_images
        sizes = (part.size for part in (*parts, *positions) if part is not None)
        self.num_bytes = num_tar_bytes([self.record_size, *sizes])
        self.not_captioning = not_captioning(messages, record.tools, [medium.kind for medium in media])
        self.num_control_tokens = rendered.num_control_tokens
        self.tools_left_out = rendered.leaves_out_tools
        return rendered


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
            else pa.array([getattr(row, field.name, None) for row in rows], field.type)
            for field in LENGTHS_SCHEMA
        ],
        schema=LENGTHS_SCHEMA,
    )
