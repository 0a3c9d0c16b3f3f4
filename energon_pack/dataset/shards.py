"""Write the packed shards: bytes from the source tars, in the order of the plan.

One job writes one shard and its index from one row group of pack_plan.parquet. Media are copied; the JSON of a pack is
made from the JSON of its members. The bytes depend only on the plan and the source: they contain no time, owner or
machine.
"""

import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from energon_pack.dataset.files import PlanRow, checksums_to_bytes
from energon_pack.dataset.sources import RowsWithChecksums, SampleReader, tokens_of
from energon_pack.dataset.staging_files import mark_shard_done, read_media_checksums_if_done
from energon_pack.dataset.tar_writer import TarComparer, TarDiffers, TarWriter, size_of_finished_tar
from energon_pack.lengths.kept_tokens import KeptTokenReader
from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.flavors.base import MESSAGES_FIELD, Conversation, Fields, PackedFlavor, with_references
from energon_pack.samples.member import MemberTokens
from energon_pack.samples.pack_tokens import CHECKSUM_FIELD, PACK_FORMAT, TOKENS_PART
from energon_pack.samples.sample import AnyPart
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.written_tokens import join_member_tokens
from energon_pack.sources.media_files import END_BYTES
from energon_pack.sources.shard import Shard
from energon_pack.sources.source_file import rows_of

_MEMBERS_AT_ONCE, _BYTES_AT_ONCE = (
    256,
    32 << 20,
)  # members, and bytes of their sources, that are read and tokenized at once


def shard_name(prefix: str, number: int) -> str:
    """Return the file name of a shard: `packed-000000.tar` for the prefix `packed` and the number 0."""
    return f"{prefix}-{number:06d}.tar"


def shard_name_pattern(prefix: str) -> re.Pattern[str]:
    """Return a pattern that matches the file names of all shards with this prefix, and of their indexes."""
    return re.compile(re.escape(prefix) + r"-\d{6,}\.tar(\.idx)?")


@dataclass(frozen=True)
class ShardJob:
    """All that a worker needs to write one output shard: its row group of the plan, its source shards, and settings."""

    path: Path
    plan: Path
    row_group: int
    source: dict[str, Shard]  # the source shards it reads, by name
    settings: ReadSettings
    template_folder: str  # this and the next: see `Method`
    engine: str
    fingerprint: str
    flavor: PackedFlavor
    split: str
    checksums: npt.NDArray[np.uint32]  # for each row of the row group, the checksum of its sample as measured
    token_places: npt.NDArray[np.uint64]  # for each row, where its tokens are kept in `tokens_folder`
    tokens_folder: Path
    source_root: str | None = None  # the place of the source: packs refer to media in it; None: media are copied
    #: the identity of a run that syncs and marks each shard by itself; None: all shards are synced at the end
    identity: str | None = None
    has_messages: bool = True  # the JSON of packs holds the conversations


@dataclass(frozen=True)
class WrittenShard:
    """The figures of a finished shard."""

    name: str
    num_packs: int
    num_samples: int
    num_bytes: int
    num_bytes_read: int
    split: str = "train"
    media_sums: bytes = b""  # checksums of its media: see `dataset.files`
    was_there: bool = False  # an earlier run wrote it


def write_shard(job: ShardJob) -> WrittenShard:
    """Write one shard, then its `.tar.idx`. A shard that a killed run finished is kept if it has the right bytes."""
    table = pq.ParquetFile(job.plan).read_row_group(job.row_group)
    index = job.path.with_suffix(".tar.idx")
    present = read_media_checksums_if_done(job.path, job.identity) or _sums_if_finished(job, table, index)
    sums = present or _write_tar(job, table, index)
    if job.identity is not None:
        mark_shard_done(job.path, job.identity, sums)
    num_packs, num_bytes = index.stat().st_size // 8 - 1, job.path.stat().st_size
    return shard_figures(job, table, num_packs, num_bytes, sums, was_there=present is not None)


def shard_figures(
    job: ShardJob, table: pa.Table, num_packs: int, num_bytes: int, media_sums: bytes, was_there: bool
) -> WrittenShard:
    """Return the figures of a finished shard; `was_there`: an earlier run wrote it."""
    sizes = pc.struct_field(pc.list_flatten(table["parts"]), "size")
    if job.source_root is not None:
        sizes = pc.min_element_wise(sizes, 2 * END_BYTES)
    num_bytes_read = sum(pc.sum(column, min_count=0).as_py() for column in (table["record_size"], sizes))
    figures = num_packs, table.num_rows, num_bytes, num_bytes_read
    return WrittenShard(job.path.name, *figures, job.split, media_sums, was_there)


def _write_tar(job: ShardJob, table: pa.Table, index: Path) -> bytes:
    """Write a shard and its index; return the checksums of its media."""
    parts = unfinished_files_folder(job.path.parent)
    parts.mkdir(exist_ok=True)
    temporary = parts / f"{job.path.name}.{uuid.uuid4().hex}"
    with open(temporary, "wb", buffering=0) as file:
        written = write_packs(TarWriter(file.fileno()), job, table)
    _put_in_place(temporary, job.path, job.identity is not None)
    temporary.write_bytes(written.tar_index)
    _put_in_place(temporary, index, job.identity is not None)
    return written.media_sums


def _put_in_place(temporary: Path, path: Path, is_synced: bool) -> None:
    if is_synced:
        fd = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    os.replace(temporary, path)


def unfinished_files_folder(staging: Path) -> Path:
    """Return the folder in which files are written before they move to the staging folder, with a name of their own."""
    return staging.with_name(f"{staging.name}.parts")


def num_unfinished_bytes(staging: Path) -> int:
    """Return the number of bytes that are written of unfinished shards."""
    num_bytes = 0
    with suppress(OSError), os.scandir(unfinished_files_folder(staging)) as entries:
        for entry in entries:
            with suppress(OSError):  # it was finished meanwhile
                num_bytes += entry.stat().st_size
    return num_bytes


def _sums_if_finished(job: ShardJob, table: pa.Table, index: Path) -> bytes | None:
    """Return the checksums of media of a shard that an earlier run wrote; None: it wrote none, or not each byte of it
    equals what would be written now.

    Shards are synced only at the end, so after a power cut a file may hold anything, and nothing else would notice a
    byte that changed between two runs.
    """
    if not (index.exists() and job.path.exists()):
        return None
    with open(job.path, "rb", buffering=0) as file:
        try:
            expected = write_packs(TarComparer(file.fileno()), job, table)
        except TarDiffers:
            return None
    size = size_of_finished_tar(int(np.frombuffer(expected.tar_index, "<u8")[-1]))
    is_same = index.read_bytes() == expected.tar_index and job.path.stat().st_size == size
    return expected.media_sums if is_same else None


class WrittenPacks(NamedTuple):
    """What is known of all packs of a shard once they are written."""

    tar_index: bytes  # the `.tar.idx`: the offset of each pack, and the end of the last (uint64)
    media_sums: bytes  # see `dataset.files`


def write_packs(tar: TarWriter, job: ShardJob, table: pa.Table) -> WrittenPacks:
    """Write all packs of a shard."""
    starts: list[int] = []
    bounds: list[int] = []  # for each pack, how many media are before it
    with SampleReader(job.source) as sources, KeptTokenReader(job.tokens_folder) as kept:
        places = iter(job.token_places.tolist())
        rows = zip(rows_of(table, PlanRow), job.checksums.tolist(), strict=True)
        put = _write_with_media if job.source_root is None else _write_with_references
        for members in sources.read_ahead(_groups_of_whole_packs(rows), are_copied=job.source_root is None):
            of_each = zip(members, islice(places, len(members)), strict=True)
            known = [None if row.cut else kept.find(place, checksum) for (row, checksum), place in of_each]
            samples = [
                sources.read_without_media(row, job.settings, its) for (row, _), its in zip(members, known, strict=True)
            ]
            tokens = tokens_of(members, samples, known, sources, job.template_folder, job.engine)
            each = zip(members, samples, tokens, strict=True)
            whole = (_PackMember(row, checksum, sample, its) for (row, checksum), sample, its in each)
            packs = groupby(whole, key=lambda member: member.row.pack)
            for pack in [_content_of_pack(key, list(rows), job) for key, rows in packs]:
                starts.append(tar.position)
                bounds.append(len(tar.checksums))
                for member, ends in zip(pack.members, put(tar, pack, sources, job.source_root), strict=True):
                    row = member.row
                    sources.refuse_changed_sample(row, member.sample, ends[: len(row.parts)], member.checksum)
        starts.append(tar.position)
        bounds.append(len(tar.checksums))
        tar.finish()
    return WrittenPacks(np.array(starts, dtype="<u8").tobytes(), checksums_to_bytes(bounds, tar.checksums))


def _groups_of_whole_packs(rows: Iterable[tuple[PlanRow, int]]) -> Iterator[RowsWithChecksums]:
    """Yield members of whole packs, several packs at once: a tokenizer is faster with many texts."""
    together: RowsWithChecksums = []
    bytes_left = _BYTES_AT_ONCE
    for _, pack in groupby(rows, key=lambda row: row[0].pack):
        members = list(pack)
        num_bytes = sum(row.record_size + sum(part.size for part in row.parts) for row, _ in members)
        if together and (len(together) >= _MEMBERS_AT_ONCE or num_bytes > bytes_left):
            yield together
            together, bytes_left = [], _BYTES_AT_ONCE
        together, bytes_left = together + members, bytes_left - num_bytes
    if together:
        yield together


# ------------------------------------------------------------------------------------------------------- a pack


class _PackMember(NamedTuple):
    """A member of a pack."""

    row: PlanRow
    checksum: int  # of its sample, as measured
    sample: ReadSample
    tokens: MemberTokens


class _PackContent(NamedTuple):
    """The content of a pack."""

    key: str
    flavor: PackedFlavor
    value: Fields  # its JSON
    tokens: bytes
    members: Sequence[_PackMember]
    parts: list[list[tuple[str, AnyPart]]]  # for each member, the name and place of each part


def _content_of_pack(key: str, pack: Sequence[_PackMember], job: ShardJob) -> _PackContent:
    members, samples = [member.row for member in pack], [member.sample for member in pack]
    tokens = join_member_tokens([member.tokens for member in pack]).to_bytes()
    conversations = [
        convert_to_pack_conversation(sample, job.flavor, member.num_shared_media)
        for sample, member in zip(samples, members, strict=True)
    ]
    shared_lens = [member.shared_len for member in members]
    shared = {"shared_lens": shared_lens} if "shared_lens" in job.flavor.meta else {}
    meta = {
        "format": PACK_FORMAT,
        "pack_id": key,
        "sample_ids": [member.sample_id for member in members],
        "token_lens": [member.token_len for member in members],
        "num_supervised": [member.num_supervised for member in members],
        "total_token_len": sum(member.token_len for member in members) - sum(shared_lens),
        **shared,
        "fingerprint": job.fingerprint,
        "source_parts": [[part.name for part in member.parts] for member in members],
        CHECKSUM_FIELD: crc32(tokens),
    }
    value = job.flavor.write(conversations, meta)
    if not job.has_messages:
        del value[MESSAGES_FIELD]
    parts = map(parts_beside_json, samples, conversations)
    named = [list(zip(*both, strict=True)) for both in zip(job.flavor.parts(value), parts, strict=True)]
    return _PackContent(key, job.flavor, value, tokens, pack, named)


def _write_with_media(tar: TarWriter, pack: _PackContent, sources: SampleReader, root: str | None) -> list[list[bytes]]:
    """Write a pack that holds its media; return the first and last bytes of each member's media."""
    _add_json_and_tokens(tar, pack, pack.value)
    return [
        [
            sources.read_part_ends(member.row, part)
            if number < member.row.num_shared_media
            else sources.copy_part(tar, f"{pack.key}.{name}", member.row, part)
            for number, (name, part) in enumerate(its)
        ]
        for member, its in zip(pack.members, pack.parts, strict=True)
    ]


def _write_with_references(
    tar: TarWriter, pack: _PackContent, sources: SampleReader, root: str | None
) -> list[list[bytes]]:
    """Write a pack that refers to its media in the source; return the first and last bytes of each member's media."""
    references = [
        [(name, *sources.reference_to(name, member.row, part, root or "")) for name, part in its]
        for member, its in zip(pack.members, pack.parts, strict=True)
    ]
    first = {name: reference for its in reversed(references) for name, reference, _ in its}  # members may share media
    members = [[first[name] for name, _, _ in its] for its in references]
    _add_json_and_tokens(tar, pack, with_references(pack.value, pack.flavor, members))
    return [[ends.first + ends.last for _, _, ends in its] for its in references]


def _add_json_and_tokens(tar: TarWriter, pack: _PackContent, value: Fields) -> None:
    tar.add(f"{pack.key}.json", json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    tar.add(f"{pack.key}.{TOKENS_PART}", pack.tokens)


def convert_to_pack_conversation(sample: ReadSample, flavor: PackedFlavor, num_shared_media: int = 0) -> Conversation:
    """Return a sample in the form of its pack's JSON; `num_shared_media`: of the first, with the member before."""
    messages = sample.timed_messages if flavor.times_in_text else sample.messages
    media = [(part.kind, part.extension) for part in sample.parts]
    has_positions = [] if flavor.times_in_text else [part is not None for part in sample.positions]
    return Conversation(messages, sample.tools, sample.fields, media, has_positions, sample.is_timed, num_shared_media)


def parts_beside_json(sample: ReadSample, content: Conversation) -> list[AnyPart]:
    """Return the parts of a sample that lie in a pack beside the JSON: media, then any patch positions."""
    return [*sample.parts, *(part for part in sample.positions if part is not None and content.has_positions)]
