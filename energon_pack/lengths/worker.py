"""Measures a slice of samples in a worker: reads JSON and headers of media, renders the chat template, counts."""

import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.errors import PackError
from energon_pack.lengths.kept_tokens import TokenWriter
from energon_pack.lengths.method import Method
from energon_pack.lengths.same_media import MediaHasher
from energon_pack.run.stores.requests import reraising_store_errors
from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.cut import CUT_TYPE, schema_with_cut_type
from energon_pack.samples.flavors.fit import contents_forbidden_by_flavor_rules
from energon_pack.samples.media_marks import placeholder_kinds_without_media
from energon_pack.samples.sample import AnyPart, Message, guess_media_type_by_names, media_type
from energon_pack.samples.settings import ReadSettings, UnreadMediaPolicy
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.lmdb_pages import DamagedFile
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.sample import read_sample
from energon_pack.sources.shard import Shard
from energon_pack.sources.source_file import IndexRow, MeasuredRow, rows_of
from energon_pack.sources.tar import num_tar_bytes
from energon_pack.templates.beginnings import beginning_hashes
from energon_pack.templates.processor import load_saved_template
from energon_pack.templates.sample import Rendered, Sample
from energon_pack.templates.template import Template
from energon_pack.templates.tokens.engine import MANY_TEXTS, MANY_TEXTS_BYTES

_BATCH_SAMPLES = 512  # texts that are tokenized at once
_BATCH_CHARACTERS = 4_000_000
_MAX_UNKNOWN_KEYS = 8  # unknown keys of a sample that are reported
#: reasons of samples whose media were not all read: no name may tell a medium (LMDB key, URL), yet they are no text
_MAY_HAVE_MEDIA = (Reason.INVALID_JSON, Reason.MISSING_MEDIA, Reason.UNREADABLE_MEDIA, Reason.UNSUPPORTED_MEDIA)

#: Raise this number when measuring the same sample gives other columns or values.
LENGTHS_VERSION = 30
#: Raise this number when the same sample gets other beginnings.
BEGINNINGS_VERSION = 1


@dataclass(frozen=True)
class MeasureJob:
    """The samples that one worker measures, and the method that it measures them by."""

    shards: list[Shard]  # the shard of each sample
    samples: pa.Table  # rows of `wds.INDEX_SCHEMA`
    method: Method
    tokens_folder: Path | None = None  # the folder where its tokens are kept


@dataclass(slots=True)
class LengthsRow(MeasuredRow):
    """The measured values of one sample, or of one part of a sample that was cut: a row of `LENGTHS_SCHEMA`."""

    media_type: str | None = None  # None: unknown
    files: list[dict[str, Any]] | None = None
    num_images: int = 0
    num_audio_tokens: int = 0
    num_audios: int = 0
    clip_frames: int = 0
    num_bytes: int = 0
    num_control_tokens: int = 0
    placeholders_put_in: bool = False
    placeholders_as_text: list[str] | None = None
    assistant_first: bool = False
    does_not_fit: dict[str, str | None] | None = None
    num_weighted: int = 0
    tools_left_out: bool = False
    unknown_keys: list[str] | None = None
    image_modes: list[str] | None = None
    reasoning_left_out: bool = False
    words_left_out: bool = False
    nulls_dropped: bool = False
    num_empty_answers: int = 0
    num_removed: int = 0
    checksum: int = 0
    kept: int = 0  # see `kept_tokens`
    reason: str | None = None
    detail: str | None = None
    beginnings: list[dict[str, Any]] | None = None
    first_medium: int | None = None
    #: kind and hash of each medium; not a column; None: beginnings are not needed
    media_hashes: Sequence[tuple[str, bytes]] | None = None


@dataclass(frozen=True)
class _Uncounted:
    """A sample that is rendered as text, and whose tokens are to be counted with others in a batch."""

    row: LengthsRow
    read: ReadSample
    sample: Sample
    rendered: Rendered


def measure(job: MeasureJob) -> pa.Table:
    """Measure the samples of a job, in a worker process; return their table, a row for each sample."""
    template = load_saved_template(job.method.template_folder)
    warnings.filterwarnings("ignore", module="PIL")  # odd EXIF and the like; unreadable files are in the ledger
    with SourceReader() as reader, reraising_store_errors():
        token_writer = TokenWriter() if job.tokens_folder else None
        rows = render_and_count(_read_all(reader, job), template, _method_with_engine(job), token_writer)
        if token_writer and job.tokens_folder:
            number = token_writer.write(job.tokens_folder)
            for row in rows:
                row.kept = row.kept and number + row.kept
        return build_lengths_table(rows, job.method)


def _method_with_engine(job: MeasureJob) -> Method:
    """Return the method of a job; one of many texts begins with the engine that is right for many."""
    num_bytes = pc.sum(job.samples["record_size"]).as_py() or 0
    is_many = job.method.engine == "auto" and num_bytes >= MANY_TEXTS_BYTES
    return replace(job.method, engine=MANY_TEXTS) if is_many else job.method


def render_and_count(
    samples: Iterator[tuple[LengthsRow, ReadSample | None]],
    template: Template,
    method: Method,
    token_writer: TokenWriter | None = None,
) -> list[LengthsRow]:
    """Render samples, count their tokens in batches, and write the counts into their rows; return the rows in order.

    Args:
        samples: pairs of a row without counts and its sample; None in its place: the row says why it is left out.
        token_writer: stores the tokens for later runs; None: they are not stored.
    """
    rows: list[LengthsRow] = []
    waiting: list[_Uncounted] = []
    num_characters = 0
    for row, sample in samples:
        rows.append(row)
        if sample is None or (item := _render(row, sample, template, method.read)) is None:
            continue
        waiting.append(item)
        num_characters += len(item.rendered.text)
        if len(waiting) == _BATCH_SAMPLES or num_characters > _BATCH_CHARACTERS:
            _count_tokens(template, waiting, method.engine, token_writer)
            num_characters = 0
    _count_tokens(template, waiting, method.engine, token_writer)
    return rows


def _read_all(reader: SourceReader, job: MeasureJob) -> Iterator[tuple[LengthsRow, ReadSample | None]]:
    """Read the samples of a job: each row without counts, and its sample; None if the row says why it is left out."""
    hashes = MediaHasher(reader) if job.method.with_beginnings else None
    for index_row, shard in zip(rows_of(job.samples, IndexRow), job.shards, strict=True):
        place = index_row.key, index_row.record_part, index_row.record_offset, index_row.record_size
        row = LengthsRow(*place, [], [], None, 0, 0, 0, reason=index_row.reason, detail=index_row.detail)
        if row.reason is not None:
            row.media_type = guess_media_type_by_names([part.name for part in index_row.parts])
            yield row, None
            continue
        try:
            sample = read_sample(reader, shard, index_row, job.method.read)
            row.media_type = media_type(sample.kinds)
            positions = [part for part in sample.positions if part is not None]
            parts: list[AnyPart] = [*sample.parts, *positions]
            row.files = reader.media_file_states(shard, parts, sample.removed)
        except Skip as skip:
            if isinstance(skip, DamagedFile) and not job.method.keep_damaged:
                detail = f"{skip.path} {skip.defect}, or source.on_damaged=keep packs what is whole"
                raise PackError(f"{shard.sample_id(row.key)}: {detail}") from None
            leave_out(row, skip)
            yield row, None
            continue
        row.parts = sample.parts
        beside = positions if sample.caption is None else [*positions, sample.caption]
        row.positions = list(dict.fromkeys(beside)) if shard.media_root is None else []
        set_warnings(row, sample, job.method.read)
        if hashes is not None:
            hash_media(row, hashes, shard, sample)
        row.checksum = reader.checksum(shard, sample.raw, sample.parts)
        row.num_bytes = num_tar_bytes([row.record_size, *(part.size for part in parts)])
        yield row, sample


def set_warnings(row: LengthsRow, sample: ReadSample, settings: ReadSettings) -> None:
    """Set the columns of a row that warn about its sample, such as unknown keys, or placeholders without media."""
    row.placeholders_put_in = sample.placeholders_put_in
    if settings.media is not UnreadMediaPolicy.ignore:  # then such letters are meant
        row.placeholders_as_text = placeholder_kinds_without_media(sample.messages, sample.kinds) or None
    row.assistant_first = _begins_with_assistant(sample.messages)
    row.tools_left_out = sample.leaves_out_tools
    row.unknown_keys = [*sample.unknown[:_MAX_UNKNOWN_KEYS]] or None
    row.image_modes = sorted({medium.mode for medium in sample.media if medium.mode}) or None
    row.nulls_dropped = sample.drops_nulls
    row.num_removed = len(sample.removed)


def _render(row: LengthsRow, sample: ReadSample, template: Template, settings: ReadSettings) -> _Uncounted | None:
    """Render a sample as text; None: its row now says why it is left out."""
    try:
        seen = Sample(sample.timed_messages, sample.media, sample.tools, sample.options)
        rendered = template.render(seen)
        rendered.skip_if_left_out(settings.control_tokens)
        row.does_not_fit = contents_forbidden_by_flavor_rules(sample)
    except Skip as skip:
        leave_out(row, skip)
        return None
    for name, number in rendered.media_counts(sample.kinds).items():
        setattr(row, name, number)
    row.num_control_tokens = rendered.num_control_tokens
    row.tools_left_out |= rendered.leaves_out_tools
    row.reasoning_left_out = rendered.leaves_out_reasoning
    row.words_left_out = rendered.leaves_out_words
    row.num_empty_answers = rendered.empty_answers.number
    if unread := _keys_unread_by_template(sample, seen, template.spec.variables):
        row.unknown_keys = list(dict.fromkeys([*sample.unknown, *unread]))
    return _Uncounted(row, sample, seen, rendered)


def _keys_unread_by_template(sample: ReadSample, seen: Sample, variables: Collection[str]) -> list[str]:
    """Return keys of a sample that the chat template would read as variables, and variables that it does not read."""
    said = seen.options.chat_template_kwargs
    left = [key for key, value in sample.fields.items() if value and key in variables and key not in said]
    return [*left, *(f"chat_template_kwargs.{key}" for key in said if key not in variables)]


def leave_out(row: LengthsRow, skip: Skip) -> None:
    """Write into a row why its sample is left out of all packs, and clear the columns of media and warnings."""
    row.reason, row.detail = skip.reason.value, skip.detail
    row.media_type = skip.media_type or row.media_type
    if row.media_type is None and skip.reason not in _MAY_HAVE_MEDIA:
        row.media_type = "text"
    row.parts, row.positions, row.num_bytes, row.checksum, row.num_removed = [], [], 0, 0, 0
    row.placeholders_put_in = row.assistant_first = row.tools_left_out = row.nulls_dropped = False
    row.placeholders_as_text = row.unknown_keys = row.image_modes = None


def _count_tokens(template: Template, waiting: list[_Uncounted], engine: str, token_writer: TokenWriter | None) -> None:
    made = template.tokens_of([item.sample for item in waiting], [item.rendered for item in waiting], engine)
    for item, member in zip(waiting, made, strict=True):
        row = item.row
        row.token_len, row.num_supervised, row.num_weighted = len(member), member.num_supervised, member.num_weighted
        row.kept = token_writer.add(member, item.read, row.checksum) if token_writer else 0
        if not row.token_len:
            row.reason, row.detail = Reason.PROCESSOR_ERROR.value, "the chat template renders nothing"
        if (tokens := item.rendered.token_range) and row.token_len != tokens[1] - tokens[0]:
            row.reason, row.detail = Reason.BAD_MESSAGE.value, f"token_range {tokens} ends behind its last token"
    hash_beginnings(template, [(item.row, item.rendered) for item in waiting])
    waiting.clear()


def hash_media(row: LengthsRow, hashes: MediaHasher, shard: Shard, sample: ReadSample) -> None:
    """Read and hash a sample's media; set `media_hashes` and `first_medium` of its row."""
    row.media_hashes = hashes.hash_media_of_sample(shard, sample.parts, sample.media)
    row.first_medium = hashes.hash_first_medium(shard, sample.parts)


def hash_beginnings(template: Template, samples: Sequence[tuple[LengthsRow, Rendered]]) -> None:
    """Hash beginnings of samples into the column `beginnings` of their rows, except where `media_hashes` is None."""
    asked = [(row, rendered, row.media_hashes) for row, rendered in samples if row.media_hashes is not None]
    found = beginning_hashes(template, [rendered for _, rendered, _ in asked], [media for _, _, media in asked])
    for (row, _, _), of_sample in zip(asked, found, strict=True):
        row.beginnings = [beginning._asdict() for beginning in of_sample] or None


def build_lengths_table(rows: Sequence[LengthsRow], method: Method, cut_type: pa.StructType = CUT_TYPE) -> pa.Table:
    """Convert rows to an Arrow table of the columns that the method measures (`Method.schema`).

    Args:
        cut_type: the type of the column `cut`; a cut with more fields than this type is shortened.
    """
    schema = schema_with_cut_type(method.schema, cut_type)
    values = {field.name: list(map(attrgetter(field.name), rows)) for field in schema}
    values["cut"] = [cut and cut[: cut_type.num_fields] for cut in values["cut"]]
    return pa.table([pa.array(values[field.name], field.type) for field in schema], schema=schema)


def _begins_with_assistant(messages: Sequence[Message]) -> bool:
    """Tell whether a conversation of several turns begins with an answer, so that its roles may be swapped."""
    first = next((message["role"] for message in messages if message["role"] != "system"), None)
    return first == "assistant" and len(messages) > 1
