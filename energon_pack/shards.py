"""The packed shards: bytes from the source tars, in the order of the plan.

One job writes one shard and its index from one row group of pack_plan.parquet. Media go from file to file inside
the kernel where it can; the JSON of a pack is made from the JSON of its members. Bytes depend on the plan and the
source alone: no time, owner or machine is in them.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from energon_pack.cut import Cut, split_id, stored
from energon_pack.files import write_whole
from energon_pack.manifest import FORMAT
from energon_pack.packs import CAPTIONING, MULTI_MIX_QA, Conversation, media_names, pack_value
from energon_pack.record import ReadSettings, Record
from energon_pack.sample import Part, Skip
from energon_pack.sources import wds
from energon_pack.sources.lines import LINE
from energon_pack.sources.reader import END, Reader, SourceChanged
from energon_pack.sources.shard import Shard
from energon_pack.sources.storage import File
from energon_pack.sources.tar import is_header_of, tar_len
from energon_pack.tar_writer import TarComparer, TarDiffers, TarWriter


@dataclass(frozen=True)
class ShardJob:
    """One output shard."""

    path: Path
    plan: Path
    row_group: int
    source: dict[str, Shard]  # those it reads, by name
    settings: ReadSettings
    fingerprint: str
    flavor: str
    split: str
    checksums: npt.NDArray[np.uint32]  # of each row of the row group: its sample as it was measured


@dataclass(frozen=True)
class WrittenShard:
    name: str
    num_packs: int
    num_samples: int
    num_bytes: int
    num_bytes_read: int
    split: str = "train"


def write_shard(job: ShardJob) -> WrittenShard:
    """Write one shard, then its `.tar.idx`: where that is, a killed run has finished the shard, and it stays.

    Raises:
        PackError: a source shard changed since it was measured.
    """
    table = pq.ParquetFile(job.plan).read_row_group(job.row_group)
    index = job.path.with_suffix(".tar.idx")
    if not _is_finished(job, table, index):
        _write_tar(job, table, index)
    num_bytes_read = sum(table["record_size"].to_pylist()) + sum(part[2] for row in wds.parts_of(table) for part in row)
    num_packs = index.stat().st_size // 8 - 1
    return WrittenShard(job.path.name, num_packs, table.num_rows, job.path.stat().st_size, num_bytes_read, job.split)


def _write_tar(job: ShardJob, table: pa.Table, index: Path) -> None:
    temporary = job.path.with_suffix(".tmp")
    with open(temporary, "wb", buffering=0) as file:
        starts = _write_packs(TarWriter(file.fileno()), job, table)
    os.replace(temporary, job.path)
    write_whole(index, starts, sync=False)


def _is_finished(job: ShardJob, table: pa.Table, index: Path) -> bool:
    """Whether a run before wrote this shard, and it is still what would be written now.

    Every byte is compared with its source: what is written is synced at the end alone, so after a power cut a file may
    hold anything, and nobody looks at a byte that changed between two runs.
    """
    if not (index.exists() and job.path.exists()):
        return False
    with open(job.path, "rb", buffering=0) as file:
        try:
            starts = _write_packs(TarComparer(file.fileno()), job, table)
        except TarDiffers:
            return False
    size = tar_len(int(np.frombuffer(starts, "<u8")[-1]))
    return index.read_bytes() == starts and job.path.stat().st_size == size


def _write_packs(tar: TarWriter, job: ShardJob, table: pa.Table) -> bytes:
    """Energon's index: where each pack's first header is, and where the last pack ends."""
    starts: list[int] = []
    with Sources(job.source) as sources:
        rows = zip(members_of(table), job.checksums.tolist(), strict=True)
        for key, members in groupby(rows, key=lambda row: row[0][0]):
            starts.append(tar.position)
            _write_pack(tar, key, [(member, checksum) for (_, member), checksum in members], sources, job)
        starts.append(tar.position)
        tar.end()
    return np.array(starts, dtype="<u8").tobytes()


# ------------------------------------------------------------------------------------------------------- a pack


class Member(NamedTuple):
    """One sample of a pack: a row of the plan."""

    shard: str
    key: str
    token_len: int
    num_supervised: int
    num_visual_tokens: int
    record_part: str
    record_offset: int
    record_size: int
    cut: Cut | None
    parts: list[tuple[str, int, int, str, str]]  # name, offset, size, kind, extension
    positions: list[tuple[str, int, int]]  # the .npy of the whole sample's images, where they are in its tar

    @property
    def sample(self) -> str:
        """`<shard>/<key>` in a tar, `<file>:<line>` in a JSONL file."""
        return f"{self.shard}{':' if self.record_part == LINE else '/'}{self.key}"

    @property
    def sample_id(self) -> str:
        """As `sample`, of a part with its number; a whole one that is called like a part is `#1of1` of its name."""
        part = self.cut.part if self.cut else "1of1" if split_id(self.sample)[1] else None
        return f"{self.sample}#{part}" if part else self.sample


def members_of(table: pa.Table) -> Iterator[tuple[str, Member]]:
    """Rows of pack_plan.parquet: the key of the pack, and its member."""
    columns = [table[name].to_pylist() for name in Member._fields[:-3]]
    columns.append([Cut(**cut) if cut else None for cut in table["cut"].to_pylist()])
    rows = zip(*columns, wds.parts_of(table), wds.parts_of(table, "positions"), strict=True)
    return zip(table["pack"].to_pylist(), map(Member._make, rows), strict=True)


def _write_pack(tar: TarWriter, key: str, rows: list[tuple[Member, int]], sources: "Sources", job: ShardJob) -> None:
    members = [member for member, _ in rows]
    raw = [sources.raw(member) for member in members]
    conversations = [
        conversation(member, sources, job.settings, job.flavor, data) for member, data in zip(members, raw, strict=True)
    ]
    meta = {
        "format": FORMAT,
        "pack_id": key,
        "sample_ids": [member.sample_id for member in members],
        "token_lens": [member.token_len for member in members],
        "num_supervised": [member.num_supervised for member in members],
        "total_token_len": sum(member.token_len for member in members),
        "fingerprint": job.fingerprint,
        "source_parts": [[part[0] for part in member.parts] for member in members],
    }
    value = pack_value(job.flavor, conversations, meta)
    tar.add(f"{key}.json", json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    all_names = media_names(job.flavor, value)
    for (member, checksum), data, own, names in zip(rows, raw, conversations, all_names, strict=True):
        found, num_media = crc32(data), len(member.parts)
        for number, (name, part) in enumerate(zip(names, sources.parts_of(member, own), strict=True)):
            lead = sources.lead(member)
            file = sources.file_of(member, part)
            header, ends = tar.copy(f"{key}.{name}", file, part.offset, part.size, lead, END)
            sources.check_header(header, member, part.name, part.size)
            found = crc32(ends, found) if number < num_media else found  # as `Reader.checksum`
        if found != checksum:
            raise sources.changed(member)


def conversation(
    member: Member,
    sources: "Sources",
    settings: ReadSettings,
    flavor: str = MULTI_MIX_QA,
    raw: bytes | None = None,
) -> Conversation:
    """What a pack holds of a member beside its media.

    Args:
        raw: its JSON, where it was read before.

    Raises:
        PackError: its shard is not what was measured.
    """
    media = [(kind, extension) for _, _, _, kind, extension in member.parts]
    try:
        record = sources.record_of(member, settings, sources.raw(member) if raw is None else raw)
        marks = sources.marks_of(member, record)
        in_text = marks if flavor != CAPTIONING else ()
        messages, fields = stored(record, [kind for kind, _ in media], member.cut, in_text)
        whole = Conversation(messages, record.tools, fields, media, is_timed=bool(marks))
        has_positions = [part is not None for part in sources.positions_of(member, whole)]
    except Skip as skip:  # it was read well when it was measured
        raise sources.changed(member) from skip
    return replace(whole, has_positions=has_positions if flavor == CAPTIONING else [])


class Sources:
    """The source shards of a job, open."""

    def __init__(self, shards: dict[str, Shard]):
        self._shards = shards
        self._reader = Reader()

    def lead(self, member: Member) -> int:
        """Bytes of the header that stands before each part of a member: a file of its own has none."""
        return self._shards[member.shard].lead

    def check_header(self, header: bytes, member: Member, part: str, size: int) -> None:
        """Compare what stands before the bytes of a part with the header it had when it was measured.

        Raises:
            PackError: the shard is not what was measured.
        """
        if self.lead(member) and not is_header_of(header, f"{member.key}.{part}", size):
            raise self.changed(member)

    def raw(self, member: Member) -> bytes:
        """The JSON or text of a member.

        Raises:
            PackError: the shard is not what was measured.
        """
        shard, lead = self._shards[member.shard], self.lead(member)
        raw = self._reader.shard_file(shard).read(member.record_offset - lead, lead + member.record_size)
        self.check_header(raw[:lead], member, member.record_part, member.record_size)
        return raw[lead:]

    def record_of(self, member: Member, settings: ReadSettings, raw: bytes) -> Record:
        """The record of a member from its JSON or text.

        Raises:
            Skip: it is not what was measured.
        """
        has_media = bool(member.parts or (member.cut and member.cut.kinds))
        return self._shards[member.shard].record(raw, member.record_part, has_media, settings)

    def file_of(self, member: Member, part: Part) -> File:
        """The file in which a part of a member lies at its offset.

        Raises:
            PackError: its shard, or the file that it is, is not what was measured.
        """
        return self._reader.part_file(self._shards[member.shard], part)

    def checked_file(self, member: Member, part: Part) -> File:
        """As `file_of`, after a look at the header that stands before the part."""
        file, lead = self.file_of(member, part), self.lead(member)
        self.check_header(file.read(part.offset - lead, lead), member, part.name, part.size)
        return file

    def marks_of(self, member: Member, record: Record) -> list[str]:
        """The times of the images of the whole sample that a member is, or is a part of."""
        shard = self._shards[member.shard]
        kinds = member.cut.all_kinds if member.cut else [part[3] for part in member.parts]
        arrays = [Part(*part) for part in member.positions]
        positions = self._reader.positions(shard, record, kinds.count("image"), member.key, arrays)
        return self._reader.marks(shard, record, positions, kinds.count("image"))

    def positions_of(self, member: Member, content: Conversation) -> list[Part | None]:
        """The patch positions of each image of a member."""
        record = Record([], fields=content.fields)
        num_images = sum(kind == "image" for kind, _ in content.media)
        arrays = [Part(*part) for part in member.positions]
        return self._reader.positions(self._shards[member.shard], record, num_images, member.key, arrays)

    def parts_of(self, member: Member, content: Conversation) -> list[Part]:
        """All that a pack holds of a member beside its JSON: media, then what patch positions its flavour takes."""
        positions = self.positions_of(member, content) if content.has_positions else []
        return [*(Part(*part[:3]) for part in member.parts), *(part for part in positions if part is not None)]

    def changed(self, member: Member) -> SourceChanged:
        return SourceChanged(self._shards[member.shard].path, member.sample_id)

    def __enter__(self) -> "Sources":
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.__exit__()
