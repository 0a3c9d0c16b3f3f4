"""Read a sample, from its row to its messages, its media and the times of its frames.

    IndexRow    ──read_sample──►     media are searched, their headers read, and put in the order of their placeholders
    MeasuredRow ──read_measured_sample──►      the headers of its media are read again
    MeasuredRow ──read_without_opening_media──►  its media are not opened, because their bytes are only copied

All three then do the same: JSON ─► record ─► placeholders ─► patch positions ─► times ─► `ReadSample`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO

from energon_pack.samples.bytes import ByteRange, as_file
from energon_pack.samples.caption_beside import read_with_caption_beside
from energon_pack.samples.conversation import (
    TIME_FIELDS,
    PlacedRecord,
    ReadSample,
    match_placeholders_with_media,
    options_of,
    with_times_in_text,
)
from energon_pack.samples.cut import (
    REJECTED,
    Cut,
    fields_of_part,
    indices_within_kind,
    media_indices_of_part,
    messages_of_part,
)
from energon_pack.samples.frames import load_patch_positions
from energon_pack.samples.hints import without_useless_hint
from energon_pack.samples.media.kinds import KINDS, VIDEO
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.read_media import probe_part, with_requested_settings
from energon_pack.samples.media_parts import find_document_pictures, is_document_with_named_pictures, refuse_other_kinds
from energon_pack.samples.raw_record import parse_sample_json
from energon_pack.samples.record import Record
from energon_pack.samples.sample import AnyPart, MediaPart, Part, guess_media_type_by_names, media_type
from energon_pack.samples.settings import MissingMediaPolicy, ReadSettings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.unread_media import media_file_names, refuse_unread_media, unread_media_skip
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.sample_ratio import remove_copy_mark
from energon_pack.sources.shard import Shard, TarShard
from energon_pack.sources.source_file import IndexRow, MeasuredRow, SampleRow


def read_sample(reader: SourceReader, shard: Shard, row: IndexRow, settings: ReadSettings) -> ReadSample:
    """Read an indexed sample: its record, and its media's headers, in the order of their placeholders.

    Raises:
        Skip: the sample can't be packed; its attribute `media_type` is a guess of the sample's media type, and a hint
            in its detail was tried.
        PackError: the shard changed.
    """
    try:
        return _read_indexed(reader, shard, row, settings)
    except Skip as skip:

        def read(change: Callable[[ReadSettings], ReadSettings]) -> ReadSample:
            own = shard.own.reading and change(shard.own.reading)
            return _read_indexed(reader, replace(shard, own=replace(shard.own, reading=own)), row, change(settings))

        raise without_useless_hint(skip, read) from None


def _read_indexed(reader: SourceReader, shard: Shard, row: IndexRow, settings: ReadSettings) -> ReadSample:
    """Do `read_sample`, without trying the hint of a Skip."""
    seems, raw = guess_media_type_by_names([part.name for part in row.parts]), b""
    try:
        raw = reader.raw(shard, row)
        record, caption = _read_record(reader, shard, row, row.parts if seems else [], raw, seems is not None, settings)
        seems = record.declared or seems or guess_media_type_by_names(record.listed_media or ())
        find = partial(reader.media, shard, key=remove_copy_mark(row.key), parts=row.parts)
        record, listed = _find_media(record, settings, find)
        looked_at = _read_headers(reader, shard, listed)
        kinds = [medium.kind for medium in looked_at]
        seems = media_type(kinds)
        refuse_other_kinds(record, remove_copy_mark(row.key), listed, looked_at)
        placed = match_placeholders_with_media(record, kinds)
        if settings.media is None:
            _refuse_unread(reader, shard, row, placed.record, [part.name for part in listed], kinds)
        opened = [listed[i] for i in placed.order]
        media = _with_requested(reader, shard, opened, [looked_at[i] for i in placed.order], placed.record.fields)
        positions, marks = _read_positions_and_times(reader, shard, placed, row.key, row.parts)
        parts = [MediaPart(*listed[i], looked_at[i].kind, looked_at[i].extension) for i in placed.order]
        return ReadSample.of_record(raw, placed, parts, media, positions, marks, caption)
    except Skip as skip:
        skip.media_type = skip.media_type or seems or _guess_media_type_by_names(raw)
        raise


def _read_record(
    reader: SourceReader,
    shard: Shard,
    row: SampleRow,
    parts: Sequence[Part],
    raw: bytes,
    has_media: bool,
    settings: ReadSettings,
) -> tuple[Record, Part | None]:
    """Parse a sample's record from its JSON or text, `raw`; return also the txt of its tar that is its caption.

    `parts`: the txt is one of these; none if the sample has no media.
    """

    def read(value: Any) -> Record:
        encoded = value if isinstance(value, bytes) else json.dumps(value).encode()
        return shard.read_record(encoded, row.record_part, has_media, settings)

    txt = next((part for part in parts if part.name.lower() == "txt"), None)
    is_json = isinstance(shard, TarShard) and shard.field_map is None and row.record_part.lower() == "json"
    if txt is None or not (txt.size and is_json):
        return read(raw), None
    record, is_captioned = read_with_caption_beside(read, raw, partial(reader.read, shard, txt))
    return record, txt if is_captioned else None


def _find_media(
    record: Record, settings: ReadSettings, find: Callable[[Record], list[Part]]
) -> tuple[Record, list[Part]]:
    """Find the media that a record lists; return also the record, without pictures that `missing_media` removes.

    `find`: returns the media that a record lists, in that order; raises Skip if one is missing.
    """
    if not is_document_with_named_pictures(record):
        return record, find(record)

    def picture(name: str) -> Part:
        [part] = find(replace(record, listed_media=[name]))
        if not part.size:
            raise Skip(Reason.MISSING_MEDIA, f"{name!r} has no bytes")
        return part

    return find_document_pictures(record, settings.missing_media, picture)


def _refuse_unread(
    reader: SourceReader, shard: Shard, row: IndexRow, record: Record, read: Sequence[str], kinds: Sequence[str]
) -> None:
    """Raise Skip if a sample has media besides those that are read. `read`, `kinds`: names and kinds of these."""
    is_mapped = isinstance(shard, TarShard) and shard.field_map is not None  # then the map says what is taken
    for part in () if read or is_mapped else row.parts:  # a medium, although its name does not say so
        if part.name != row.record_part and (kind := _kind_of_part(reader, shard, part)):
            raise unread_media_skip(f"its part {part.name!r} is", kind, "", "`name` lists media;")
    refuse_unread_media(record, read, kinds, partial(_kind_of_name, reader, shard, row), shard.media_root is None)


def _kind_of_name(reader: SourceReader, shard: Shard, row: IndexRow, name: str) -> str | None:
    try:
        (part,) = reader.position_parts(shard, [name], row.key, row.parts)
    except Skip:
        return None
    return None if part is None else _kind_of_part(reader, shard, part)


def _kind_of_part(reader: SourceReader, shard: Shard, part: Part) -> str | None:
    try:
        return probe_part(reader.part_file(shard, part), part).kind
    except Skip:
        return None


def _guess_media_type_by_names(raw: bytes) -> str | None:
    """Guess the media type of an unreadable sample by the names in its JSON; None: it names no media."""
    try:
        value = parse_sample_json(raw)
    except Skip:
        return None
    if not isinstance(value, dict):
        return None
    kinds = [medium.kind for medium in KINDS.values() if any(map(value.get, medium.keys))]
    return guess_media_type_by_names(list(media_file_names(value))) or (media_type(kinds) if kinds else None)


def read_measured_sample(reader: SourceReader, shard: Shard, row: MeasuredRow, settings: ReadSettings) -> ReadSample:
    """Read a measured sample again, with the headers of its media."""
    return with_headers(reader, shard, read_without_opening_media(reader, shard, row, settings, reader.raw(shard, row)))


def with_headers(reader: SourceReader, shard: Shard, sample: ReadSample) -> ReadSample:
    """Return a sample of `read_without_opening_media` with its `media`, read from the headers of their files."""
    media = _read_headers(reader, shard, sample.parts)
    return sample._replace(media=_with_requested(reader, shard, sample.parts, media, sample.fields))


def read_without_opening_media(
    reader: SourceReader, shard: Shard, row: MeasuredRow, settings: ReadSettings, raw: bytes
) -> ReadSample:
    """Read a measured sample from its JSON or text, `raw`; its media are not opened, and `media` is empty."""
    kinds = row.cut.sample_media_kinds if row.cut else [part.kind for part in row.parts]
    record, _ = _read_record(reader, shard, row, row.positions, raw, bool(kinds), settings)
    key = remove_copy_mark(row.key)
    # as when it was measured
    if settings.missing_media is MissingMediaPolicy.remove and is_document_with_named_pictures(record):
        parts = {part.name: Part(*part[:3]) for part in row.parts}
        find = partial(shard.media, key=key, parts=[*parts.values()], look_up=partial(_find_measured_part, parts))
        record, _ = _find_media(record, settings, find)
    placed = match_placeholders_with_media(record, kinds)
    positions, marks = _read_positions_and_times(reader, shard, placed, key, row.positions)
    sample = ReadSample.of_record(raw, placed, [] if row.cut else row.parts, [], positions, marks)
    return cut_sample(sample, row.cut)._replace(parts=row.parts) if row.cut else sample


def _find_measured_part(parts: Mapping[str, Part], name: str) -> Part:
    """Return the part of a measured sample that has this name; Skip: it was missing."""
    if name not in parts:
        raise Skip(Reason.MISSING_MEDIA, f"{name!r} was missing when it was measured")
    return parts[name]


def cut_sample(whole: ReadSample, cut: Cut) -> ReadSample:
    """Return the part of a sample that a cut selects: some turns, with their media, fields and times."""
    if cut.form == REJECTED:
        whole = whole._replace(messages=[*whole.rejected])
    media = media_indices_of_part(whole.messages, cut)
    images = indices_within_kind(cut, media, "i")
    messages = messages_of_part(whole.messages, cut)
    marks = [whole.time_texts[number] for number in images] if whole.time_texts else []
    positions = [whole.positions[number] for number in images] if whole.positions else []
    return whole._replace(
        messages=messages,
        timed_messages=with_times_in_text(messages, marks),
        fields=fields_of_part(whole.fields, cut, media),
        parts=[whole.parts[number] for number in media] if whole.parts else [],
        positions=positions if any(positions) else [],
        time_texts=marks,
        media=[whole.media[number] for number in media] if whole.media else [],
    )


def _read_headers(reader: SourceReader, shard: Shard, parts: Sequence[AnyPart]) -> list[Media]:
    return [read_header(reader, shard, part, shard.decodes_videos) for part in parts]


def read_header(reader: SourceReader, shard: Shard, part: AnyPart, decodes_videos: bool) -> Media:
    """Read kind and size of a medium; the frames of a video are counted by decoding all if `decodes_videos`."""
    file = reader.part_file(shard, part)
    medium = probe_part(file, part)
    if not decodes_videos or medium.kind != VIDEO.kind:
        return medium
    from energon_pack.samples.media.stream_probe import decode_frame_times
    from energon_pack.samples.media.streams import turn_pyav_errors_into_skip

    with turn_pyav_errors_into_skip("video"):
        return replace(medium, num_frames=len(decode_frame_times(as_file(ByteRange(file, part.offset, part.size)))))


def _with_requested(
    reader: SourceReader, shard: Shard, parts: Sequence[AnyPart], media: Sequence[Media], fields: dict[str, Any]
) -> list[Media]:
    def opened(index: int) -> BinaryIO:
        part = parts[index]
        return as_file(ByteRange(reader.part_file(shard, part), part.offset, part.size))

    return with_requested_settings(media, fields.get("video_frames"), options_of(fields), opened)


def _read_positions_and_times(
    reader: SourceReader, shard: Shard, placed: PlacedRecord, key: str, parts: Sequence[Part]
) -> tuple[list[Part | None], list[str]]:
    """Return the .npy part of each image's patch positions, and the time marks made of them; both empty: no times."""
    if placed.record.fields.keys().isdisjoint(TIME_FIELDS):
        return [], []
    names = placed.patch_position_files
    positions = reader.position_parts(shard, names, key, parts) if names else []
    arrays = [None if part is None else load_patch_positions(reader.read(shard, part), part.name) for part in positions]
    return positions, placed.time_texts(arrays)
