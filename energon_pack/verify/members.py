"""Compare the members of a pack with their source, and media with their checksums, byte for byte; decode the media."""

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import zip_longest
from typing import Any
from zlib import crc32

from energon_pack.dataset.files import PlanRow
from energon_pack.dataset.pack_json import ParsedPack
from energon_pack.dataset.shards import convert_to_pack_conversation, parts_beside_json
from energon_pack.dataset.sources import SampleReader
from energon_pack.errors import PackError, quote
from energon_pack.samples.bytes import Bytes
from energon_pack.samples.flavors.base import MESSAGES_FIELD
from energon_pack.samples.frames import load_patch_positions
from energon_pack.samples.media.kinds import KINDS, VIDEO
from energon_pack.samples.media.read_media import probe
from energon_pack.samples.media.stream_probe import frame_times
from energon_pack.samples.member import MediumInput, MemberTokens
from energon_pack.samples.pack_tokens import TOKENS_PART, members_of
from energon_pack.samples.sample import AnyPart, Part
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.samples.written_tokens import join_member_tokens
from energon_pack.sources.reader import SourceChanged
from energon_pack.sources.shard import Shard
from energon_pack.sources.tar import BLOCK
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template

_PIECE_BYTES = 1 << 20  # of a medium, that are read and compared at once


def list_media_parts(pack: ParsedPack) -> list[Part]:
    """Return the parts of a pack that packing copied from the source: all but JSON and tokens, in the tar's order."""
    return [] if pack.references else [part for part in pack.files.parts if part.name not in ("json", TOKENS_PART)]


def check_media_checksums(file: Bytes, pack: ParsedPack, expected_checksums: Sequence[int]) -> Iterator[str]:
    """Compare the media that a pack holds with the checksums of those that were packed, in the pack's order.

    If the tar has more or fewer of them, the JSON says their order.
    """
    parts: list[Part | None] = [*list_media_parts(pack)]
    if len(parts) != len(expected_checksums):
        parts = [pack.parts.get(name) for name in pack.distinct_part_names]
    if len(parts) != len(expected_checksums):
        yield f"it has {len(parts)} media, {len(expected_checksums)} were packed"
        return
    for part, checksum in zip(parts, expected_checksums, strict=True):
        if part is not None and part.size >= 0 and _checksum(file, part) != checksum:  # the check `parts` sees others
            yield f"{part.name} has other bytes than those that were packed"


def _checksum(file: Bytes, part: Part) -> int:
    checksum = 0
    for start in range(0, part.size, _PIECE_BYTES):
        checksum = crc32(file.read(part.offset + start, min(_PIECE_BYTES, part.size - start)), checksum)
    return checksum


def check_medium_decodes(file: Bytes, part: Part) -> Iterator[str]:
    """Decode a medium, and yield what fails; of a video, also that it has fewer frames than its header says."""
    try:
        if part.name.endswith(".npy"):
            load_patch_positions(file.read(part.offset, part.size), part.name)
            return
        data = file.read(part.offset, part.size)
        medium = probe(io.BytesIO(data))
        if medium.kind != VIDEO.kind:
            if defect := KINDS[medium.kind].defect(data, medium):
                yield f"{part.name}: {defect}"
        elif (number := len(frame_times(data))) < medium.num_frames:
            yield f"{part.name}: {number} frames decode, its header says {medium.num_frames}"
    except Skip as skip:
        yield f"{part.name}: {skip.detail}"
    except Exception as error:  # damaged pixels make Pillow's plugins raise anything
        yield f"{part.name} does not decode: {quote(str(error) or type(error).__name__)}"


_CHARS_BEFORE, _EXCERPT_CHARS = 20, 60  # characters before a difference, and of an excerpt


def compare_members(
    file: Bytes,
    pack: ParsedPack,
    members: Sequence[PlanRow],
    shards: Mapping[str, Shard],
    sources: SampleReader,
    settings: ReadSettings,
    again: tuple[Sequence[MemberTokens], Template] | None = None,
) -> Iterator[tuple[str, str, Iterable[str]]]:
    """Compare each member of a pack with the sample of the source that its row of the plan names.

    Args:
        file: holds all parts of the pack, as `shard_with_referenced_media` returns it.
        members: the rows of the plan for the pack.
        shards: the shards of the source by name; `sources` reads them.
        again: the packed tokens of each member, and the template that makes them anew; None: tokens are not compared.

    Yields:
        The check (a key of `CHECKS`), the sample id of the member, and its defects, which may be none.
    """
    for index, member in enumerate(members):
        shard = shards.get(member.shard)
        if shard is None or not member_lies_within_shard(member, shard):
            why = "the source has no shard" if shard is None else "it would lie beyond the end of the shard"
            yield "source text", member.sample_id, [f"{why} {quote(member.shard)}"]
            continue
        try:
            sample = sources.with_headers(member, sources.read_without_media(member, settings))
            content = convert_to_pack_conversation(sample, pack.flavor)
            parts = parts_beside_json(sample, content)
        except (PackError, Skip, OSError, IndexError) as error:  # IndexError: it lacks the turn at which it is cut
            yield "source text", member.sample_id, [_error_text(error)]
            parts = [*member.parts]
        else:
            packed = next(iter((pack.json_of_members or [])[index : index + 1]), None)
            expected = pack.flavor.member_value(index, content)
            if packed is not None or MESSAGES_FIELD not in pack.flavor.optional:
                yield "source text", member.sample_id, _text_differences(packed, expected)
            if again is not None:
                seen = Sample(sample.timed_messages, sample.media, sample.tools, sample.options)
                yield "source tokens", member.sample_id, _token_differences(again[0][index], again[1], seen)
        for name, part in zip(next(iter((pack.part_names or [])[index : index + 1]), []), parts, strict=False):
            try:
                yield "source media", member.sample_id, [*_media_differences(file, pack, name, member, part, sources)]
            except (PackError, OSError) as error:
                yield "source media", member.sample_id, [_error_text(error)]


def _error_text(error: Exception) -> str:
    if isinstance(error, SourceChanged):
        return f"{error.path} changed since it was packed: put it back, or pack again"
    return str(error)


def member_lies_within_shard(member: PlanRow, shard: Shard) -> bool:
    """Tell whether a member's JSON and parts lie within its source shard, as they should; a plan may be damaged."""
    record = member.record_offset, member.record_size
    if shard.media_root is not None:  # media are files of their own
        return min(record) >= 0 and (sum(record) <= shard.size or not shard.is_read_by_place)
    parts: list[AnyPart] = [*member.parts, *member.positions]
    places = [record, *((part.offset, part.size) for part in parts)]
    return all(offset >= BLOCK and size >= 0 and offset + size <= shard.size for offset, size in places)


def _text_differences(packed: Any, expected: dict[str, Any]) -> Iterator[str]:
    if not isinstance(packed, dict):
        yield "it is not in the pack's JSON"
        return
    for name in {**expected, **packed}:  # as JSON, where 1 equals neither true nor 1.0
        texts = [_as_json(value[name]) if name in value else "missing" for value in (packed, expected)]
        if texts[0] != texts[1]:
            pairs = enumerate(zip_longest(*texts))
            start = max(0, next(place for place, pair in pairs if pair[0] != pair[1]) - _CHARS_BEFORE)
            ours, right = (text[start : start + _EXCERPT_CHARS] for text in texts)
            yield f"{name} is {ours}, in the source {right}"


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _media_differences(
    file: Bytes, pack: ParsedPack, name: str, member: PlanRow, source: AnyPart, sources: SampleReader
) -> Iterator[str]:
    """Yield how a medium (`name` in the pack) differs from its source; PackError, OSError: it can't be read."""
    part = pack.parts.get(name)
    if part is None or part.size < 0:
        return  # the check `parts` reports it
    source_file = sources.open_file_with_part_checked(member, source)
    if part.size != source.size:
        yield f"{name} has {part.size} bytes, {source.name} in the source {source.size}"
        return
    for start in range(0, source.size, _PIECE_BYTES):
        number = min(_PIECE_BYTES, source.size - start)
        ours, right = file.read(part.offset + start, number), source_file.read(source.offset + start, number)
        if ours != right:
            differs = next((i for i, pair in enumerate(zip(ours, right, strict=False)) if pair[0] != pair[1]), 0)
            yield f"{name} differs from {source.name} in the source at byte {start + differs}"
            return


def _token_differences(written: MemberTokens, template: Template, sample: Sample) -> Iterator[str]:
    """Yield a line for each difference of a member's packed tokens from those that a template makes of its sample."""
    try:
        (again,) = template.member_tokens([sample])
    except Skip as skip:
        yield f"it can't be tokenized: {skip}"
        return
    (again,) = members_of(join_member_tokens([replace(again, shared_len=written.shared_len)]))  # as bytes hold it
    numbers = len(written), len(again), written.num_supervised, again.num_supervised
    if numbers[0] != numbers[1]:
        yield f"{numbers[0]} tokens, made again {numbers[1]}"
        return
    yield from _diff("token {} is {}, made again {}", written.ids.tolist(), again.ids.tolist())
    if numbers[2] != numbers[3]:
        yield f"{numbers[2]} trained tokens, made again {numbers[3]}"
    else:
        yield from _diff("token {} has the weight {:g}, made again {:g}", written.token_weights, again.token_weights)
    if written.factor != again.factor:
        yield f"its weight is {written.factor:g}, made again {again.factor:g}"
    yield from _seen_differences(written.media, again.media)


def _diff(text: str, written: Sequence[Any], again: Sequence[Any]) -> Iterator[str]:
    pairs = enumerate(zip_longest(written, again))
    if (place := next((place for place, both in pairs if both[0] != both[1]), None)) is not None:
        yield text.format(place, written[place], again[place])


def _seen_differences(written: Sequence[MediumInput], again_media: Sequence[MediumInput]) -> Iterator[str]:
    if len(written) != len(again_media):
        yield f"{len(written)} media, made again {len(again_media)}"
        return
    for number, both in enumerate(zip(written, again_media, strict=True)):
        for name in (one.name for one in fields(MediumInput)):
            ours, again = (getattr(medium, name) for medium in both)
            if ours != again:
                yield f"medium {number} has {name} {ours}, made again {again}"
