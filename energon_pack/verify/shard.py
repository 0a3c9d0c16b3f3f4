"""The checks of one shard, in a worker: its tar, its index, each of its packs, and their members in the source."""

import io
import json
import warnings
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from energon_pack.dataset.contents import Pack, parse
from energon_pack.dataset.files import PackFiles, PlanFile, packs_in
from energon_pack.dataset.plan_file import PlanRow
from energon_pack.dataset.shards import Sources, conversation, parts_beside
from energon_pack.errors import PackError, short
from energon_pack.plan.splits import SPLITS, split_numbers
from energon_pack.run.context import Run
from energon_pack.samples.bytes import Bytes
from energon_pack.samples.flavors import DEFAULT
from energon_pack.samples.flavors.base import PackedFlavor
from energon_pack.samples.media.image import open_image
from energon_pack.samples.media.probe import probe
from energon_pack.samples.sample import AnyPart, Part
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.samples.times import load_positions
from energon_pack.sources.compressed import compression
from energon_pack.sources.shard import Shard
from energon_pack.sources.storage import open_file
from energon_pack.sources.tar import BLOCK, TarScan
from energon_pack.verify import packs as checks
from energon_pack.verify.findings import Findings, Hashes, hashed
from energon_pack.verify.videos import decoded_by_energon, decoded_by_us

_CHUNK = 1 << 20
_PACKS = 256  # of which the rows of the plan are held at once


@dataclass(frozen=True)
class VerifyJob:
    """One shard, and what it is compared with."""

    path: Path
    flavor: PackedFlavor | None  # None: another tool wrote it
    plan: PlanFile | None  # None: it can't be read
    packing: Mapping[str, Any]
    fingerprint: Any
    decode: bool
    is_read_as_bytes: bool  # its dataset.yaml leaves nothing to Energon's own decoder
    source: dict[str, Shard] | None  # by name; None: not compared
    read: ReadSettings
    max_defects: int
    shares: Sequence[float] = ()  # of the splits; none: not known
    seed: int = 0
    for_stack: bool = False  # ask for what the loader of the stack needs that packed it


@dataclass
class VerifiedShard:
    """What a shard holds, in numbers and hashes, and what is wrong with it."""

    name: str
    findings: Findings
    packs: Hashes
    samples: Hashes  # `<source shard>/<key>` of members that are whole samples
    parts: dict[str, list[str]]  # the others: by that name, `2of3`
    num_tokens: int
    num_supervised: int
    media_types: Counter[str]
    splits: set[str]  # in which its samples are, by their ids
    whose: Counter[str]  # packs of other tools
    num_members: int


@dataclass
class _Seen:
    packs: "array[int]" = field(default_factory=lambda: array("Q"))
    samples: "array[int]" = field(default_factory=lambda: array("Q"))
    parts: dict[str, list[str]] = field(default_factory=dict)
    sums: Counter[str] = field(default_factory=Counter)
    media_types: Counter[str] = field(default_factory=Counter)
    splits: set[int] = field(default_factory=set)
    whose: Counter[str] = field(default_factory=Counter)

    def add(self, pack: Pack, members: list[PlanRow] | None, job: VerifyJob) -> None:
        self.packs.append(hashed(pack.files.key))
        samples = list(checks.samples_of(pack, members))
        if job.shares:
            self.splits |= set(split_numbers((sample for sample, _ in samples), job.shares, job.seed).tolist())
        for sample, part in samples:
            if part is None:
                self.samples.append(hashed(sample))
            else:
                self.parts.setdefault(sample, []).append(part)
        self.sums["members"] += len(pack.ids)
        for name in ("token_lens", "num_supervised"):
            self.sums[name] += sum(pack.meta.get(name, ()))
        self.media_types[pack.media_type] += 1
        self.whose[pack.flavor.whose] += 1


def verify_shards(jobs: Sequence[VerifyJob], findings: Findings, run: Run) -> list[VerifiedShard]:
    """Verify shards; what is wrong with them joins the findings."""
    shards = []
    with run.progress.stage("verify", len(jobs), "shards") as advance:
        for shard in run.executor.map(verify_shard, jobs):
            findings.merge(shard.findings)
            shards.append(shard)
            advance(1)
    return shards


def verify_shard(job: VerifyJob) -> VerifiedShard:
    """All that can be said of one shard; runs in a worker."""
    warnings.filterwarnings("ignore", module="PIL")  # of odd EXIF and the like
    findings, seen = Findings(job.max_defects), _Seen()
    try:
        with open_file(job.path) as file, Sources(job.source or {}) as sources:
            scan = TarScan(file)
            found = list(packs_in(scan))
            findings.add("tar", job.path.name, _damage(file, scan, found))
            findings.add("index", job.path.name, _index(job.path, found), len(found))
            for start in range(0, len(found), _PACKS):
                some = found[start : start + _PACKS]
                rows = _rows(job, some, findings)
                for files in some:
                    pack = _read(file, job, files, findings)
                    members = rows.get(files.key) if rows is not None else None
                    seen.add(pack, members, job)
                    _check(job, pack, members, findings)
                    _check_media(file, job, pack, findings)
                    if rows is not None:
                        findings.add("plan", f"{job.path.name}: {files.key}", checks.plan(pack, members))
                    if members and job.source is not None:
                        _check_source(file, job, pack, members, sources, findings)
    except OSError as error:
        findings.add("tar", job.path.name, [f"it can't be read: {error.strerror or error}"])
    return VerifiedShard(
        name=job.path.name,
        findings=findings,
        packs=np.array(seen.packs, np.uint64),
        samples=np.array(seen.samples, np.uint64),
        parts=seen.parts,
        num_tokens=seen.sums["token_lens"],
        num_supervised=seen.sums["num_supervised"],
        media_types=seen.media_types,
        splits={SPLITS[number] for number in seen.splits},
        whose=seen.whose - Counter({"": seen.whose[""]}),
        num_members=seen.sums["members"],
    )


def packs_of(path: Path, flavor: PackedFlavor | None = DEFAULT) -> Iterator[tuple[Bytes, Pack, list[str]]]:
    """The packs of a shard: the file to read them from, each pack, and what its JSON lacks.

    Args:
        flavor: it may be another's where only `meta` is asked for; None: another tool wrote them.
    """
    with open_file(path) as file:
        for files in packs_in(TarScan(file)):
            yield file, *parse(files, _json(file, files), flavor)


def _json(file: Bytes, files: PackFiles) -> bytes | None:
    part = next((part for part in files.parts if part.name == "json" and part.size >= 0), None)
    return None if part is None else file.read(part.offset, part.size)


def _damage(file: Bytes, scan: TarScan, found: list[PackFiles]) -> Iterator[str]:
    if command := compression(file):
        yield f"it is compressed: {command}"
        return
    yield from (f"{damage.what} at byte {damage.offset}" for damage in scan.damage)
    if not found and not scan.damage:
        yield "it holds no pack"


def _index(path: Path, found: list[PackFiles]) -> Iterator[str]:
    """Where each pack's first header is, and where the last pack ends, as Energon wants it."""
    wanted = [pack.start for pack in found] + [pack.end for pack in found[-1:]]
    try:
        with open_file(path.with_suffix(".tar.idx")) as file:
            data = file.read(0, file.size)
    except OSError as error:
        yield f"its .tar.idx can't be read: {error.strerror or error}"
        return
    if len(data) % 8:
        yield f"its .tar.idx has {len(data)} bytes, not a multiple of 8"
    entries = np.frombuffer(data[: len(data) // 8 * 8], "<u8").tolist()
    if len(entries) != len(wanted):
        yield f"its .tar.idx has {len(entries)} entries for {len(found)} packs"
    for number, (entry, start) in enumerate(zip(entries, wanted, strict=False)):
        if entry != start:
            yield f"entry {number} of its .tar.idx is {entry}, it should be {start}"


def _rows(job: VerifyJob, some: list[PackFiles], findings: Findings) -> dict[str, list[PlanRow]] | None:
    """The rows of the plan of some packs; None where it can't be read."""
    if job.plan is None:
        return None
    try:
        return job.plan.members({files.key for files in some})
    except PackError as error:
        findings.add("plan", job.path.name, [str(error)], 0)
        return None


def _read(file: Bytes, job: VerifyJob, files: PackFiles, findings: Findings) -> Pack:
    pack, defects = parse(files, _json(file, files), job.flavor)
    findings.add("json", f"{job.path.name}: {files.key}", defects)
    return pack


def _check(job: VerifyJob, pack: Pack, members: list[PlanRow] | None, findings: Findings) -> None:
    where = f"{job.path.name}: {pack.files.key}"
    findings.add("parts", where, checks.parts(pack), len(pack.files.parts))
    findings.add("placeholders", where, checks.placeholders(pack), len(pack.members or ()))
    if pack.flavor.meta:
        findings.add("sums", where, checks.sums(pack))
    if job.for_stack:
        findings.add("own loader", where, checks.own_loader(pack))
    if job.flavor is None:
        return
    findings.add("capacity", where, checks.capacity(pack, job.packing, members))
    findings.add("fingerprint", where, checks.fingerprint(pack, job.fingerprint))


def _check_media(file: Bytes, job: VerifyJob, pack: Pack, findings: Findings) -> None:
    for part in pack.files.parts:
        if part.name == "json" or part.size < 0:
            continue
        where = f"{job.path.name}: {pack.files.key}"
        findings.add("kinds", where, checks.kind(pack, part.name, file.read(part.offset, min(16, part.size))))
        if job.decode:
            origin = pack.origin(part.name)
            where += f": {origin}" * (origin is not None)
            beside: list[str] = []
            findings.add("decode", where, _decoded(file, part, beside if job.is_read_as_bytes else None))
            findings.note(f"not by its dataset.yaml, but by crude.yaml: {where}: {what}" for what in beside)


def _decoded(file: Bytes, part: Part, beside: list[str] | None) -> Iterator[str]:
    """What of a medium does not decode.

    Args:
        beside: where to put what Energon's own decoder can't do, if that is no defect.
    """
    try:
        if part.name.endswith(".npy"):
            load_positions(file.read(part.offset, part.size), part.name)
            return
        data = file.read(part.offset, part.size)
        medium = probe(io.BytesIO(data))
        if medium.kind == "image":
            open_image(data)
            return
        times, ours = decoded_by_us(medium, data)
        yield from (f"{part.name}: {what}" for what in ours)
        theirs = [] if ours else [f"{part.name}: {what}" for what in decoded_by_energon(times, data)]
        if beside is None:
            yield from theirs
        else:
            beside += theirs
    except Skip as skip:
        yield f"{part.name}: {skip.detail}"
    except Exception as error:  # damaged pixels make Pillow's plugins raise anything
        yield f"{part.name} does not decode: {short(str(error) or type(error).__name__)}"


# ----------------------------------------------------------------------------------------------------- the source


def _check_source(
    file: Bytes, job: VerifyJob, pack: Pack, members: list[PlanRow], sources: Sources, findings: Findings
) -> None:
    """Each member is what its row of the plan makes of the source."""
    flavor = pack.flavor
    for index, member in enumerate(members):
        where = f"{job.path.name}: {pack.files.key}: {member.sample_id}"
        shard = (job.source or {}).get(member.shard)
        if shard is None or not _is_within(member, shard):
            what = "the source has no shard" if shard is None else "it would lie beyond the end of the shard"
            findings.add("source text", where, [f"{what} {short(member.shard)}"])
            continue
        try:
            sample = sources.read(member, job.read)
            content = conversation(sample, flavor)
            parts = parts_beside(sample, content)
        except (PackError, Skip, OSError, IndexError) as error:  # IndexError: it is cut at a turn that it does not have
            findings.add("source text", where, [str(error)])
            parts = [*member.parts]
        else:
            found = next(iter((pack.members or [])[index : index + 1]), None)
            findings.add("source text", where, _text_differs(found, flavor.member_value(index, content)))
        for name, part in zip(next(iter((pack.named or [])[index : index + 1]), []), parts, strict=False):
            findings.add("source media", where, _media_differ(file, pack, name, member, part, sources))


def _is_within(member: PlanRow, shard: Shard) -> bool:
    """Whether a source shard is long enough: a damaged plan may ask for any number of bytes."""
    record = member.record_offset, member.record_size
    if shard.media_root is not None:  # media are files of their own
        return record[0] >= 0 and record[1] >= 0 and sum(record) <= shard.size
    parts: list[AnyPart] = [*member.parts, *member.positions]
    places = [record, *((part.offset, part.size) for part in parts)]
    return all(offset >= BLOCK and size >= 0 and offset + size <= shard.size for offset, size in places)


def _text_differs(found: Any, wanted: dict[str, Any]) -> Iterator[str]:
    if not isinstance(found, dict):
        yield "it is not in the pack's JSON"
        return
    for name in {**wanted, **found}:
        if name not in found or name not in wanted:
            yield f"{name} is {'only in the pack' if name in found else 'missing'}"
        elif not _same(found[name], wanted[name]):
            ours, theirs = found[name], wanted[name]
            if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
                index = next(i for i, pair in enumerate(zip(ours, theirs, strict=True)) if not _same(*pair))
                name, ours, theirs = f"{name}[{index}]", ours[index], theirs[index]
            excerpt, wanted_excerpt = _excerpts(ours, theirs)
            yield f"{name} is {excerpt}, in the source {wanted_excerpt}"


def _same(found: Any, wanted: Any) -> bool:
    """Equal as JSON: 1 is not true, and not 1.0."""
    return json.dumps(found, sort_keys=True) == json.dumps(wanted, sort_keys=True)


def _excerpts(found: Any, wanted: Any) -> tuple[str, str]:
    """Both, of messages their texts, from a little before where they differ."""
    if isinstance(found, dict) and isinstance(wanted, dict) and found.get("content") != wanted.get("content"):
        found, wanted = found.get("content"), wanted.get("content")
    if isinstance(found, str) and isinstance(wanted, str):
        pairs = enumerate(zip(found, wanted, strict=False))
        same = next((i for i, (ours, theirs) in pairs if ours != theirs), min(len(found), len(wanted)))
        start = max(0, same - 20)
        found, wanted = found[start:], wanted[start:]
    return short(found), short(wanted)


def _media_differ(
    file: Bytes, pack: Pack, name: str, member: PlanRow, source: AnyPart, sources: Sources
) -> Iterator[str]:
    part = pack.parts.get(name)
    if part is None or part.size < 0:
        return  # `parts` says so
    try:
        source_file = sources.checked_file(member, source)
        if part.size != source.size:
            yield f"{name} has {part.size} bytes, {source.name} in the source {source.size}"
            return
        for start in range(0, source.size, _CHUNK):
            number = min(_CHUNK, source.size - start)
            ours, theirs = file.read(part.offset + start, number), source_file.read(source.offset + start, number)
            if ours != theirs:
                differs = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), 0)
                yield f"{name} differs from {source.name} in the source at byte {start + differs}"
                return
    except (PackError, OSError) as error:
        yield str(error)
