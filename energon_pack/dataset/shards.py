"""Write the packed shards: bytes from the source tars, in the order of the plan.

One job writes one shard and its index from one row group of pack_plan.parquet. Media go from file to file inside
the kernel where it can; the JSON of a pack is made from the JSON of its members. The bytes depend only on the plan
and the source: they contain no time, owner or machine.
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

from energon_pack.dataset.files import PlanRow
from energon_pack.dataset.sources import Members, Sources, tokens_of
from energon_pack.dataset.tar_writer import TarComparer, TarDiffers, TarWriter, tar_len
from energon_pack.lengths.kept_tokens import KeptTokens
from energon_pack.run.files import write_whole
from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.flavors.base import Conversation, Fields, PackedFlavor
from energon_pack.samples.flavors.references import with_references
from energon_pack.samples.flavors.schema import MESSAGES_FIELD
from energon_pack.samples.pack_tokens import pack_tokens
from energon_pack.samples.sample import AnyPart
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.tokens import MemberTokens
from energon_pack.samples.tokens_part import CHECKSUM_FIELD, PACK_FORMAT, TOKENS_PART
from energon_pack.sources.referenced import END
from energon_pack.sources.rows import rows_of
from energon_pack.sources.shard import Shard

#: extension of the file that marks a finished shard
DONE = ".done"
_AT_ONCE, _BYTES_AT_ONCE = 256, 32 << 20  # members, and bytes of their sources, that are read and tokenized at once


def shard_name(prefix: str, number: int) -> str:
    """Return the name of a shard: `packed-000000.tar`."""
    return f"{prefix}-{number:06d}.tar"


def shard_names(prefix: str) -> re.Pattern[str]:
    """Return what the names of all shards and of their indexes match."""
    return re.compile(re.escape(prefix) + r"-\d{6,}\.tar(\.idx)?")


@dataclass(frozen=True)
class ShardJob:
    """One output shard, and its sources."""

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
    kept: npt.NDArray[np.uint64]  # for each row, where its tokens are kept in `tokens_folder`
    tokens_folder: Path
    root: str | None = None  # the place of the source: packs refer to media in it; None: media are copied
    #: the identity of a run that syncs and marks each shard by itself; None: all shards are synced at the end
    identity: str | None = None
    has_messages: bool = True  # the JSON of packs holds the conversations


@dataclass(frozen=True)
class WrittenShard:
    name: str
    num_packs: int
    num_samples: int
    num_bytes: int
    num_bytes_read: int
    split: str = "train"
    was_there: bool = False  # an earlier run wrote it


def write_shard(job: ShardJob) -> WrittenShard:
    """Write one shard, then its `.tar.idx`; if the index is there, a killed run finished the shard, and it is kept."""
    table = pq.ParquetFile(job.plan).read_row_group(job.row_group)
    index = job.path.with_suffix(".tar.idx")
    was_there = is_done(job.path, job.identity) or _is_finished(job, table, index)
    if not was_there:
        _write_tar(job, table, index)
    if job.identity is not None:
        write_whole(_done_file(job.path), _done(job.path, job.identity))
    return written_shard(job, table, index.stat().st_size // 8 - 1, job.path.stat().st_size, was_there)


def written_shard(job: ShardJob, table: pa.Table, num_packs: int, num_bytes: int, was_there: bool) -> WrittenShard:
    """Describe a shard that is finished."""
    sizes = pc.struct_field(pc.list_flatten(table["parts"]), "size")
    if job.root is not None:
        sizes = pc.min_element_wise(sizes, 2 * END)
    num_bytes_read = sum(pc.sum(column, min_count=0).as_py() for column in (table["record_size"], sizes))
    return WrittenShard(job.path.name, num_packs, table.num_rows, num_bytes, num_bytes_read, job.split, was_there)


def _write_tar(job: ShardJob, table: pa.Table, index: Path) -> None:
    parts = parts_folder(job.path.parent)
    parts.mkdir(exist_ok=True)
    temporary = parts / f"{job.path.name}.{uuid.uuid4().hex}"
    with open(temporary, "wb", buffering=0) as file:
        starts = write_packs(TarWriter(file.fileno()), job, table)
    _put_in_place(temporary, job.path, job.identity is not None)
    temporary.write_bytes(starts)
    _put_in_place(temporary, index, job.identity is not None)


def _put_in_place(temporary: Path, path: Path, is_synced: bool) -> None:
    if is_synced:
        fd = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    os.replace(temporary, path)


def is_done(shard: Path, identity: str | None) -> bool:
    """Say whether a process of the same run has written and synced a shard: it is trusted, and not read."""
    try:
        return identity is not None and _done_file(shard).read_bytes() == _done(shard, identity)
    except FileNotFoundError:
        return False


def _done(shard: Path, identity: str) -> bytes:
    """Return the content of the file beside a finished shard: the run, the shard's size, and a checksum of its index,
    which names every pack."""
    index = crc32(shard.with_suffix(".tar.idx").read_bytes())
    return json.dumps({"identity": identity, "size": shard.stat().st_size, "index_crc32": index}).encode()


def _done_file(shard: Path) -> Path:
    return shard.with_suffix(f".tar{DONE}")


def parts_folder(staging: Path) -> Path:
    """Return where files of a staging folder are written: two machines may write the same file, and one may be late."""
    return staging.with_name(f"{staging.name}.parts")


def bytes_begun(staging: Path) -> int:
    """Count the bytes of unfinished shards in a staging folder."""
    num_bytes = 0
    with suppress(OSError), os.scandir(parts_folder(staging)) as entries:
        for entry in entries:
            with suppress(OSError):  # it was finished meanwhile
                num_bytes += entry.stat().st_size
    return num_bytes


def _is_finished(job: ShardJob, table: pa.Table, index: Path) -> bool:
    """Say whether an earlier run wrote this shard, and it still equals the shard that would be written now.

    Every byte is compared with its source. Shards are synced only at the end, so after a power cut a file may hold
    anything, and nothing else would notice a byte that changed between two runs.
    """
    if not (index.exists() and job.path.exists()):
        return False
    with open(job.path, "rb", buffering=0) as file:
        try:
            starts = write_packs(TarComparer(file.fileno()), job, table)
        except TarDiffers:
            return False
    size = tar_len(int(np.frombuffer(starts, "<u8")[-1]))
    return index.read_bytes() == starts and job.path.stat().st_size == size


def write_packs(tar: TarWriter, job: ShardJob, table: pa.Table) -> bytes:
    """Write the packs; return Energon's index: the place of each pack's first header, and the end of the last pack."""
    starts: list[int] = []
    with Sources(job.source) as sources, KeptTokens(job.tokens_folder) as kept:
        places = iter(job.kept.tolist())
        rows = zip(rows_of(table, PlanRow), job.checksums.tolist(), strict=True)
        put = _copied if job.root is None else _referred
        for members in sources.ahead(_by_packs(rows), are_copied=job.root is None):
            of_each = zip(members, islice(places, len(members)), strict=True)
            known = [None if row.cut else kept.find(place, checksum) for (row, checksum), place in of_each]
            samples = [sources.read(row, job.settings, its) for (row, _), its in zip(members, known, strict=True)]
            tokens = tokens_of(members, samples, known, sources, job.template_folder, job.engine)
            each = zip(members, samples, tokens, strict=True)
            whole = (_Member(row, checksum, sample, its) for (row, checksum), sample, its in each)
            packs = groupby(whole, key=lambda member: member.row.pack)
            for pack in [_content(key, list(rows), job) for key, rows in packs]:
                starts.append(tar.position)
                for member, ends in zip(pack.members, put(tar, pack, sources, job.root), strict=True):
                    row = member.row
                    sources.refuse_changed(row, member.sample, ends[: len(row.parts)], member.checksum)
        starts.append(tar.position)
        tar.end()
    return np.array(starts, dtype="<u8").tobytes()


def _by_packs(rows: Iterable[tuple[PlanRow, int]]) -> Iterator[Members]:
    """Yield the members of whole packs, some packs at once: a tokenizer is faster with many texts."""
    together: Members = []
    bytes_left = _BYTES_AT_ONCE
    for _, pack in groupby(rows, key=lambda row: row[0].pack):
        members = list(pack)
        num_bytes = sum(row.record_size + sum(part.size for part in row.parts) for row, _ in members)
        if together and (len(together) >= _AT_ONCE or num_bytes > bytes_left):
            yield together
            together, bytes_left = [], _BYTES_AT_ONCE
        together, bytes_left = together + members, bytes_left - num_bytes
    if together:
        yield together


# ------------------------------------------------------------------------------------------------------- a pack


class _Member(NamedTuple):
    """A member of a pack."""

    row: PlanRow
    checksum: int  # of its sample, as measured
    sample: ReadSample
    tokens: MemberTokens


class _Content(NamedTuple):
    """The content of a pack."""

    key: str
    flavor: PackedFlavor
    value: Fields  # its JSON
    tokens: bytes
    members: Sequence[_Member]
    parts: list[list[tuple[str, AnyPart]]]  # for each member, the name and place of each part


def _content(key: str, pack: Sequence[_Member], job: ShardJob) -> _Content:
    members, samples = [member.row for member in pack], [member.sample for member in pack]
    tokens = pack_tokens([member.tokens for member in pack]).to_bytes()
    conversations = [
        conversation(sample, job.flavor, member.num_shared_media)
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
    parts = map(parts_beside, samples, conversations)
    named = [list(zip(*both, strict=True)) for both in zip(job.flavor.parts(value), parts, strict=True)]
    return _Content(key, job.flavor, value, tokens, pack, named)


def _copied(tar: TarWriter, pack: _Content, sources: Sources, root: str | None) -> list[list[bytes]]:
    """Write a pack with its media; return the bytes at the ends of the media."""
    _add_texts(tar, pack, pack.value)
    return [
        [
            sources.ends(member.row, part)
            if number < member.row.num_shared_media
            else sources.copy(tar, f"{pack.key}.{name}", member.row, part)
            for number, (name, part) in enumerate(its)
        ]
        for member, its in zip(pack.members, pack.parts, strict=True)
    ]


def _referred(tar: TarWriter, pack: _Content, sources: Sources, root: str | None) -> list[list[bytes]]:
    """Write a pack that says where its media lie; return the bytes at the ends of the media."""
    references = [
        [(name, *sources.refer(name, member.row, part, root or "")) for name, part in its]
        for member, its in zip(pack.members, pack.parts, strict=True)
    ]
    first = {name: reference for its in reversed(references) for name, reference, _ in its}  # members may share media
    members = [[first[name] for name, _, _ in its] for its in references]
    _add_texts(tar, pack, with_references(pack.value, pack.flavor, members))
    return [[ends.first + ends.last for _, _, ends in its] for its in references]


def _add_texts(tar: TarWriter, pack: _Content, value: Fields) -> None:
    tar.add(f"{pack.key}.json", json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    tar.add(f"{pack.key}.{TOKENS_PART}", pack.tokens)


def conversation(sample: ReadSample, flavor: PackedFlavor, num_shared: int = 0) -> Conversation:
    """Return the conversation of a sample, or of a part of one, from which the JSON of its pack is made."""
    messages = sample.timed if flavor.times_in_text else sample.messages
    media = [(part.kind, part.extension) for part in sample.parts]
    has_positions = [] if flavor.times_in_text else [part is not None for part in sample.positions]
    return Conversation(messages, sample.tools, sample.fields, media, has_positions, sample.is_timed, num_shared)


def parts_beside(sample: ReadSample, content: Conversation) -> list[AnyPart]:
    """Return the parts of a pack for a sample, without JSON: media, then patch positions if the flavour has them."""
    return [*sample.parts, *(part for part in sample.positions if part is not None and content.has_positions)]
