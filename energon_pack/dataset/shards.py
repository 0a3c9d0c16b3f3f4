"""The packed shards: bytes from the source tars, in the order of the plan.

One job writes one shard and its index from one row group of pack_plan.parquet. Media go from file to file inside
the kernel where it can; the JSON of a pack is made from the JSON of its members. Bytes depend on the plan and the
source alone: no time, owner or machine is in them.
"""

import json
import os
import uuid
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from energon_pack.dataset.plan_rows import PlanRow
from energon_pack.dataset.tar_writer import TarComparer, TarDiffers, TarWriter
from energon_pack.run.stores import is_address
from energon_pack.samples.flavors.base import Conversation, Fields, MemberInput, PackedFlavor
from energon_pack.samples.flavors.references import Reference, with_references
from energon_pack.samples.flavors.schema import FORMAT
from energon_pack.samples.media.lazy_image import LazyImage
from energon_pack.samples.sample import AnyPart
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.sources.reader import Reader, SourceChanged
from energon_pack.sources.referenced import END, Ends, ends_of, ends_within
from energon_pack.sources.rows import rows_of
from energon_pack.sources.sample import ReadSample, read_but_media
from energon_pack.sources.shard import Shard
from energon_pack.sources.storage import File, read_ahead
from energon_pack.sources.tar import is_header_of, tar_len


@dataclass(frozen=True)
class ShardJob:
    """One output shard."""

    path: Path
    plan: Path
    row_group: int
    source: dict[str, Shard]  # those it reads, by name
    settings: ReadSettings
    fingerprint: str
    flavor: PackedFlavor
    split: str
    checksums: npt.NDArray[np.uint32]  # of each row of the row group: its sample as it was measured
    root: str | None = None  # of the source: packs refer to media in it; None: media are copied
    stored: str | None = None  # address of the folder on an object store in which `put_shard` writes it


@dataclass(frozen=True)
class WrittenShard:
    name: str
    num_packs: int
    num_samples: int
    num_bytes: int
    num_bytes_read: int
    split: str = "train"
    was_there: bool = False  # a run before wrote it


def write_shard(job: ShardJob) -> WrittenShard:
    """Write one shard, then its `.tar.idx`: where that is, a killed run has finished the shard, and it stays.

    Raises:
        PackError: a source shard changed since it was measured.
    """
    table = pq.ParquetFile(job.plan).read_row_group(job.row_group)
    index = job.path.with_suffix(".tar.idx")
    was_there = _is_finished(job, table, index)
    if not was_there:
        _write_tar(job, table, index)
    return written_shard(job, table, index.stat().st_size // 8 - 1, job.path.stat().st_size, was_there)


def written_shard(job: ShardJob, table: pa.Table, num_packs: int, num_bytes: int, was_there: bool) -> WrittenShard:
    """What is told of a shard that is there now."""
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
    os.replace(temporary, job.path)
    temporary.write_bytes(starts)
    os.replace(temporary, index)


def parts_folder(staging: Path) -> Path:
    """Where files of a staging folder are written: two machines may write the same one, and one of them may be late."""
    return staging.with_name(f"{staging.name}.parts")


def _is_finished(job: ShardJob, table: pa.Table, index: Path) -> bool:
    """Whether a run before wrote this shard, and it is still what would be written now.

    Every byte is compared with its source: what is written is synced at the end alone, so after a power cut a file may
    hold anything, and nobody looks at a byte that changed between two runs.
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
    """Energon's index: where each pack's first header is, and where the last pack ends."""
    starts: list[int] = []
    with Sources(job.source) as sources:
        rows = zip(rows_of(table, PlanRow), job.checksums.tolist(), strict=True)
        for key, members in groupby(rows, key=lambda row: row[0].pack):
            starts.append(tar.position)
            _write_pack(tar, key, list(members), sources, job)
        starts.append(tar.position)
        tar.end()
    return np.array(starts, dtype="<u8").tobytes()


# ------------------------------------------------------------------------------------------------------- a pack


#: Name and place of the parts of each member.
_Named = list[list[tuple[str, AnyPart]]]


def _write_pack(tar: TarWriter, key: str, rows: list[tuple[PlanRow, int]], sources: "Sources", job: ShardJob) -> None:
    members = [member for member, _ in rows]
    sources.read_ahead(members, are_copied=job.root is None)
    samples = [sources.read(member, job.settings) for member in members]
    conversations = [conversation(sample, job.flavor) for sample in samples]
    meta = {
        "format": FORMAT,
        "pack_id": key,
        "sample_ids": [member.sample_id for member in members],
        "token_lens": [member.token_len for member in members],
        "num_supervised": [member.num_supervised for member in members],
        "total_token_len": sum(member.token_len for member in members),
        "fingerprint": job.fingerprint,
        "source_parts": [[part.name for part in member.parts] for member in members],
    }
    value = job.flavor.write(conversations, meta)
    parts = map(parts_beside, samples, conversations)
    named = [list(zip(*both, strict=True)) for both in zip(job.flavor.parts(value), parts, strict=True)]
    put = _copied if job.root is None else _referred
    for (member, checksum), sample, ends in zip(
        rows, samples, put(tar, key, value, members, named, sources, job), strict=True
    ):
        found = crc32(sample.raw)
        for end in ends[: len(member.parts)]:
            found = crc32(end, found)  # as `Reader.checksum`
        if found != checksum:
            raise sources.changed(member)


def _copied(
    tar: TarWriter, key: str, value: Fields, members: list[PlanRow], parts: _Named, sources: "Sources", job: ShardJob
) -> list[list[bytes]]:
    """Write a pack with its media; the ends of these."""
    _add_json(tar, key, value)
    return [
        [sources.copy(tar, f"{key}.{name}", member, part) for name, part in its]
        for member, its in zip(members, parts, strict=True)
    ]


def _referred(
    tar: TarWriter, key: str, value: Fields, members: list[PlanRow], parts: _Named, sources: "Sources", job: ShardJob
) -> list[list[bytes]]:
    """Write a pack that says where its media lie; the ends of these."""
    found = [
        [sources.refer(name, member, part, job.root or "") for name, part in its]
        for member, its in zip(members, parts, strict=True)
    ]
    _add_json(tar, key, with_references(value, job.flavor, [[reference for reference, _ in its] for its in found]))
    return [[ends.first + ends.last for _, ends in its] for its in found]


def _add_json(tar: TarWriter, key: str, value: Fields) -> None:
    tar.add(f"{key}.json", json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def conversation(sample: ReadSample, flavor: PackedFlavor) -> Conversation:
    """What the JSON of a pack is made of for a sample, or a part of one."""
    messages = sample.timed if flavor.times_in_text else sample.messages
    media = [(part.kind, part.extension) for part in sample.parts]
    has_positions = [] if flavor.times_in_text else [part is not None for part in sample.positions]
    return Conversation(messages, sample.tools, sample.fields, media, has_positions, sample.is_timed)


def parts_beside(sample: ReadSample, content: Conversation) -> list[AnyPart]:
    """What a pack holds of a sample beside its JSON: its media, then the patch positions that its flavour takes."""
    return [*sample.parts, *(part for part in sample.positions if part is not None and content.has_positions)]


class Sources:
    """The source shards of a job, open."""

    def __init__(self, shards: dict[str, Shard]):
        self._shards = shards
        self._reader = Reader()

    def read_ahead(self, rows: list[PlanRow], are_copied: bool) -> None:
        """Have what a pack is made of read at once where it lies on object stores; their errors are those of `read`.

        Args:
            are_copied: all of the media are read; else their ends.
        """
        wanted: dict[str, list[tuple[int, int]]] = {}
        for row in rows:
            if is_address(self._shards[row.shard].path) and (lead := self._lead(row)):
                parts = [(part.offset, part.size) for part in row.parts]
                if not are_copied:
                    parts = [end for offset, size in parts for end in ends_within(offset, size)]
                places = [(row.record_offset, row.record_size), *parts]
                wanted.setdefault(row.shard, []).extend((offset - lead, size + lead) for offset, size in places)
        read_ahead([(self._reader.shard_file(self._shards[name]), ranges) for name, ranges in wanted.items()])

    def read(self, row: PlanRow, settings: ReadSettings) -> ReadSample:
        """All of a sample but its media.

        Raises:
            PackError: the shard is not what was measured.
        """
        shard, lead = self._shards[row.shard], self._lead(row)
        raw = self._reader.shard_file(shard).read(row.record_offset - lead, lead + row.record_size)
        self._check_header(raw[:lead], row, row.record_part, row.record_size)
        try:
            return read_but_media(self._reader, shard, row, settings, raw[lead:])
        except Skip as skip:  # it was read well when it was measured
            raise self.changed(row) from skip

    def member(self, row: PlanRow, settings: ReadSettings, checksum: int) -> MemberInput:
        """A sample with its media, as training encodes it.

        Args:
            checksum: of the sample as it was measured.

        Raises:
            PackError: the shard, or a file that is one of its media, is not what was measured.
        """
        sample = self.read(row, settings)
        media = [self.checked_file(row, part).read(part.offset, part.size) for part in sample.parts]
        found = crc32(sample.raw)
        for data in media:
            found = crc32(data[-END:], crc32(data[:END], found))  # as `Reader.checksum`
        if found != checksum:
            raise self.changed(row)
        named = list(zip(sample.parts, media, strict=True))
        images = [LazyImage(data, f"{row.sample_id}: {part.name}") for part, data in named if part.kind == "image"]
        videos = [data for part, data in named if part.kind == "video"]
        frames = sample.fields.get("video_frames")
        return MemberInput(row.sample_id, sample.timed, images, videos, sample.tools, frames, row.token_len)

    def copy(self, tar: TarWriter, name: str, row: PlanRow, part: AnyPart) -> bytes:
        """Copy a part of a sample into a tar; the bytes at both its ends.

        Raises:
            PackError: the shard, or the file that the part is, is not what was measured.
        """
        header, ends = tar.copy(name, self._file(row, part), part.offset, part.size, self._lead(row), END)
        self._check_header(header, row, part.name, part.size)
        return ends

    def refer(self, name: str, row: PlanRow, part: AnyPart, root: str) -> tuple[Reference, Ends]:
        """Where a part of a sample lies, and the bytes at both its ends; raises as `copy`.

        Args:
            name: that a copy would have.
            root: of the source.
        """
        ends = ends_of(self._file(row, part), part.offset, part.size, self._lead(row))
        self._check_header(ends.header, row, part.name, part.size)
        place = self._shards[row.shard].place(part, root)
        return Reference(name, place, part.size, ends.checksum, row.sample_id), ends

    def checked_file(self, row: PlanRow, part: AnyPart) -> File:
        """The file in which a part of a sample lies at its offset.

        Raises:
            PackError: the shard, or the file that the part is, is not what was measured.
        """
        file, lead = self._file(row, part), self._lead(row)
        self._check_header(file.read(part.offset - lead, lead), row, part.name, part.size)
        return file

    def _file(self, row: PlanRow, part: AnyPart) -> File:
        return self._reader.part_file(self._shards[row.shard], part)

    def _lead(self, row: PlanRow) -> int:
        """Bytes of the header that stands before each part of a sample: a file of its own has none."""
        return self._shards[row.shard].lead

    def _check_header(self, header: bytes, row: PlanRow, part: str, size: int) -> None:
        """Compare what stands before the bytes of a part with the header it had when it was measured."""
        if self._lead(row) and not is_header_of(header, f"{row.key}.{part}", size):
            raise self.changed(row)

    def changed(self, row: PlanRow) -> SourceChanged:
        return SourceChanged(self._shards[row.shard].path, row.sample_id)

    def __enter__(self) -> "Sources":
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.__exit__()
