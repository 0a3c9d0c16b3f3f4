"""Check one shard, in a worker: its tar, its index, each of its packs, and their members."""

import warnings
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from energon_pack.dataset.files import MediaChecksums, PlanFile, PlanRow, PlanRowLookup, open_checksums
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.pack_json import ParsedPack, parse_pack, read_written_tokens, shard_with_referenced_media
from energon_pack.dataset.pack_parts import PackFiles, group_files_by_pack
from energon_pack.dataset.source_media import ReferencedMediaReader
from energon_pack.dataset.sources import SampleReader
from energon_pack.errors import PackError
from energon_pack.plan.splits import SPLITS, assign_samples_to_splits
from energon_pack.run.stores.requests import reraising_store_errors
from energon_pack.run.workshop import Workshop
from energon_pack.samples.bytes import Bytes
from energon_pack.samples.flavors import DEFAULT_FLAVOR
from energon_pack.samples.flavors.base import PackedFlavor
from energon_pack.samples.member import MemberTokens
from energon_pack.samples.pack_tokens import TOKENS_PART, TokensDamaged
from energon_pack.samples.settings import ReadSettings
from energon_pack.sources.other_formats import find_decompress_command
from energon_pack.sources.shard import Shard
from energon_pack.sources.storage import call_counting_read_bytes
from energon_pack.sources.tar import TarScan
from energon_pack.templates.processor import load_saved_template
from energon_pack.verify import pack_checks as checks
from energon_pack.verify.findings import Findings, name_hash
from energon_pack.verify.members import (
    check_media_checksums,
    check_medium_decodes,
    compare_members,
    list_media_parts,
    member_lies_within_shard,
)

#: How many packs, and bytes of packs, are checked together. The rows of the plan for all of them are held at once,
#: and their bytes are still in memory when they are read after their headers.
_MAX_GROUP_PACKS, _MAX_GROUP_BYTES = 256, 16 << 20


@dataclass(frozen=True)
class VerifyJob:
    """One packed shard to verify, and all that it is compared with."""

    name: str
    folder: DatasetFolder  # lists this shard and its index, and the checksums of media if they can be compared
    flavor: PackedFlavor
    plan: PlanFile | None  # None: it can't be read
    packing: Mapping[str, Any]
    fingerprint: Any
    decode: bool
    source: dict[str, Shard] | None  # source shards by name; None: not compared
    reading: ReadSettings
    media: ReferencedMediaReader
    max_defects: int
    split_shares: Sequence[float] = ()  # of the splits; empty: not known
    seed: int = 0
    template_folder: str | None = None  # the template that tokenizes the source; None: nothing does
    has_messages: bool = True  # what the dataset says: the JSON of its packs holds the conversations
    num_ids: int | None = None  # of the vocabulary; None: the dataset does not say
    key_prefix: str = ""  # of the keys of packs


@dataclass
class VerifiedShard:
    """The counts of a shard, the hashes of its packs and samples, and the defects that were found in it."""

    name: str
    findings: Findings
    pack_hashes: "array[int]" = field(default_factory=lambda: array("Q"))  # of the keys of packs
    num_members: int = 0
    pack_offsets: "array[int]" = field(default_factory=lambda: array("Q", [0]))  # start of each pack, and the last end
    sample_hashes: "array[int]" = field(default_factory=lambda: array("Q"))  # of whole samples: `<source shard>/<key>`
    cut_parts: dict[str, list[str]] = field(default_factory=dict)  # the other members: sample → its parts, as `2of3`
    num_tokens: int = 0
    num_supervised: int = 0
    media_types: Counter[str] = field(default_factory=Counter)
    num_without_sum: int = 0  # media that packs hold, and that have no checksum to compare them with
    splits: set[str] = field(default_factory=set)  # the splits of its samples, by their ids

    def add(self, pack: ParsedPack, members: list[PlanRow] | None, job: VerifyJob) -> None:
        """Add the counts and hashes of a pack. `members`: the pack's rows of the plan; None: there are none."""
        self.pack_hashes.append(name_hash(pack.files.key))
        samples = list(checks.samples_in_pack(pack, members))
        if job.split_shares:
            numbers = assign_samples_to_splits((sample for sample, _ in samples), job.split_shares, job.seed)
            self.splits |= {SPLITS[number] for number in numbers.tolist()}
        for sample, part in samples:
            if part is None:
                self.sample_hashes.append(name_hash(sample))
            else:
                self.cut_parts.setdefault(sample, []).append(part)
        self.num_members += len(pack.sample_ids)
        self.num_tokens += sum(pack.meta.get("token_lens", ())) - sum(pack.shared_lens)
        self.num_supervised += sum(pack.meta.get("num_supervised", ()))
        self.media_types[pack.media_type] += 1


def verify_shards(jobs: Sequence[VerifyJob], findings: Findings, workshop: Workshop) -> list[VerifiedShard]:
    """Verify shards in workers; add their defects to `findings`, and return a `VerifiedShard` for each."""
    shards = []
    states = [job.folder.state(job.name) for job in jobs]
    sizes = [0 if state is None else state.size for state in states]
    with workshop.progress.stage("verify", len(jobs), "shards", sum(sizes)) as advance:
        results = workshop.executor.map(partial(call_counting_read_bytes, verify_shard), jobs)
        for (shard, num_bytes), size in zip(results, sizes, strict=True):
            findings.merge(shard.findings)
            shards.append(shard)
            workshop.progress.add(shard.num_members, num_bytes)
            advance(1, size)
    return shards


@reraising_store_errors()
def verify_shard(job: VerifyJob) -> VerifiedShard:
    """Check the tar, the index, and each pack of one shard; runs in a worker."""
    warnings.filterwarnings("ignore", module="PIL")  # about odd EXIF and the like
    findings = Findings(job.max_defects)
    shard = VerifiedShard(job.name, findings)
    plan = None if job.plan is None else PlanRowLookup(job.plan)
    try:
        with (
            job.folder.open(job.name) as file,
            SampleReader(job.source or {}) as sources,
            open_checksums(job.folder, job.key_prefix) as sums,
        ):
            compressed, scan = find_decompress_command(file), TarScan(file)
            for group in _group_packs(group_files_by_pack(scan)):
                shard.pack_offsets[-1:] = array("Q", [*(files.start for files in group), group[-1].end])
                rows = None if plan is None else _plan_rows(plan, job, group, findings)
                plan = None if rows is None else plan
                packs = [_comparable_members(job, (rows or {}).get(files.key, [])) for files in group]
                for files, _ in zip(group, sources.read_ahead(packs, are_copied=True), strict=True):
                    _verify_pack(file, files, rows, sources, sums, job, shard)
            findings.add("tar", job.name, _check_tar(compressed, scan, len(shard.pack_hashes)))
            findings.add("index", job.name, _check_index(job, shard), len(shard.pack_hashes))
    except OSError as error:
        findings.add("tar", job.name, [f"it can't be read: {error.strerror or error}"])
    return shard


def _comparable_members(job: VerifyJob, members: list[PlanRow]) -> list[tuple[PlanRow, int]]:
    """Return the members that can be compared with the source, as `Sources.read_ahead` takes them (checksum 0)."""
    shards = job.source or {}
    return [(row, 0) for row in members if row.shard in shards and member_lies_within_shard(row, shards[row.shard])]


def _verify_pack(
    file: Bytes,
    files: PackFiles,
    rows: dict[str, list[PlanRow]] | None,
    sources: SampleReader,
    sums: MediaChecksums | None,
    job: VerifyJob,
    shard: VerifiedShard,
) -> None:
    findings, where = shard.findings, f"{job.name}: {files.key}"
    pack, defects = parse_pack(files, _read_json(file, files), job.flavor)
    findings.add("json", where, [*defects, *checks.check_has_messages(pack, job.has_messages)])
    parts = shard_with_referenced_media(file, pack, job.media)
    members = rows.get(files.key) if rows is not None else None
    shard.add(pack, members, job)
    _check_pack(job, pack, members, findings)
    tokens = _read_tokens(file, pack, findings, where, job.num_ids)
    _check_media_checksums(parts, pack, sums, shard)
    _check_media(parts, job, pack, findings)
    if rows is not None:
        findings.add(
            "plan",
            where,
            [*checks.compare_pack_with_plan(pack, members), *checks.check_preference_pairs(pack, members)],
        )
    if members and job.source is not None:
        template = None if job.template_folder is None else load_saved_template(job.template_folder)
        again = None if template is None or len(tokens) != len(members) else (tokens, template)
        for check, member, texts in compare_members(parts, pack, members, job.source, sources, job.reading, again):
            findings.add(check, f"{where}: {member}", texts)


def _read_tokens(
    file: Bytes, pack: ParsedPack, findings: Findings, where: str, num_ids: int | None
) -> list[MemberTokens]:
    """Read and check the tokens of each member of a pack; []: it has none, or they can't be read."""
    if TOKENS_PART not in pack.parts:
        return []  # the check `parts` reports it
    try:
        tokens = read_written_tokens(file, pack)
    except TokensDamaged as error:
        findings.add("tokens", where, [f"tokens: {error}"])
        return []
    findings.add("tokens", where, checks.check_tokens(pack, tokens, num_ids))
    return tokens


def _group_packs(packs: Iterator[PackFiles]) -> Iterator[list[PackFiles]]:
    """Group the packs of a shard into lists of 256 packs or about 16 MiB, which are checked together."""
    group: list[PackFiles] = []
    for files in packs:
        group.append(files)
        if len(group) == _MAX_GROUP_PACKS or files.end - group[0].start > _MAX_GROUP_BYTES:
            yield group
            group = []
    if group:
        yield group


def read_packs(
    folder: DatasetFolder,
    name: str,
    flavor: PackedFlavor = DEFAULT_FLAVOR,
) -> Iterator[tuple[Bytes, ParsedPack, list[str]]]:
    """Yield for each pack of the shard `name` the file that holds its parts, the pack, and the defects of its JSON."""
    media = ReferencedMediaReader(folder.path)
    with folder.open(name) as file:
        for files in group_files_by_pack(TarScan(file)):
            pack, defects = parse_pack(files, _read_json(file, files), flavor)
            yield shard_with_referenced_media(file, pack, media), pack, defects


def _read_json(file: Bytes, files: PackFiles) -> bytes | None:
    part = next((part for part in files.parts if part.name == "json" and part.size >= 0), None)
    return None if part is None else file.read(part.offset, part.size)


def _check_tar(compressed: str | None, scan: TarScan, num_packs: int) -> Iterator[str]:
    if compressed:
        yield f"it is compressed: {compressed}"
        return
    yield from (f"{damage.detail} at byte {damage.offset}" for damage in scan.damage)
    if not num_packs and not scan.damage:
        yield "it holds no pack"


def _check_index(job: VerifyJob, shard: VerifiedShard) -> Iterator[str]:
    """Check the shard's .tar.idx: it must hold the offset of each pack, and the end of the last pack."""
    expected = shard.pack_offsets if shard.pack_hashes else []
    try:
        data = job.folder.read(f"{job.name}.idx")
    except OSError as error:
        yield f"its .tar.idx can't be read: {error.strerror or error}"
        return
    if len(data) % 8:
        yield f"its .tar.idx has {len(data)} bytes, not a multiple of 8"
    entries = np.frombuffer(data[: len(data) // 8 * 8], "<u8").tolist()
    if len(entries) != len(expected):
        yield f"its .tar.idx has {len(entries)} entries for {len(shard.pack_hashes)} packs"
    for number, (entry, start) in enumerate(zip(entries, expected, strict=False)):
        if entry != start:
            yield f"entry {number} of its .tar.idx is {entry}, it should be {start}"


def _plan_rows(
    plan: PlanRowLookup, job: VerifyJob, group: list[PackFiles], findings: Findings
) -> dict[str, list[PlanRow]] | None:
    """Return the plan's rows of a group of packs, by the pack's key; None: the plan can't be read."""
    try:
        return plan.rows_of_packs({files.key for files in group})
    except PackError as error:
        findings.add("plan", job.name, [str(error)], 0)
        return None


def _check_pack(job: VerifyJob, pack: ParsedPack, members: list[PlanRow] | None, findings: Findings) -> None:
    where = f"{job.name}: {pack.files.key}"
    findings.add("parts", where, checks.check_files_in_pack(pack), len(pack.files.parts))
    findings.add("placeholders", where, checks.check_placeholders(pack), len(pack.json_of_members or ()))
    findings.add("sums", where, checks.check_total_token_len(pack))
    findings.add("capacity", where, checks.check_packing_limits(pack, job.packing, members))
    findings.add("fingerprint", where, checks.check_fingerprint(pack, job.fingerprint))


def _check_media_checksums(file: Bytes, pack: ParsedPack, sums: MediaChecksums | None, shard: VerifiedShard) -> None:
    """Compare the media that a pack holds with their checksums; count those that have none."""
    number = len(list_media_parts(pack))
    expected = None if sums is None else sums.of_pack(pack.files.key)
    if expected is None:
        shard.num_without_sum += number
    else:
        where = f"{shard.name}: {pack.files.key}"
        shard.findings.add("media", where, check_media_checksums(file, pack, expected), number)


def _check_media(file: Bytes, job: VerifyJob, pack: ParsedPack, findings: Findings) -> None:
    for part in pack.files.parts:
        where = f"{job.name}: {pack.files.key}"
        if part.name in ("json", TOKENS_PART) or part.size < 0:
            continue
        try:
            head = file.read(part.offset, min(16, part.size))
        except PackError as error:
            findings.add("references", where, [str(error)])
            continue
        if pack.references:
            findings.add("references", where, [])
        findings.add("kinds", where, checks.check_media_format(pack, part.name, head))
        if job.decode:
            origin = pack.sample_id_of_medium(part.name)
            where += f": {origin}" * (origin is not None)
            findings.add("decode", where, check_medium_decodes(file, part))
