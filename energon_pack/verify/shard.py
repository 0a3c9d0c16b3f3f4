"""The checks of one shard, in a worker: its tar, its index, each of its packs, and what they hold."""

import io
import warnings
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from energon_pack.dataset.contents import Pack, parse, with_media
from energon_pack.dataset.files import PackFiles, PlanFile, packs_in
from energon_pack.dataset.plan_rows import PlanRow
from energon_pack.dataset.referenced import DatasetMedia
from energon_pack.dataset.sources import Sources
from energon_pack.errors import PackError, short
from energon_pack.plan.splits import SPLITS, split_numbers
from energon_pack.run.context import Run
from energon_pack.samples.bytes import Bytes
from energon_pack.samples.flavors import DEFAULT
from energon_pack.samples.flavors.base import PackedFlavor
from energon_pack.samples.media.image import open_image
from energon_pack.samples.media.probe import probe
from energon_pack.samples.sample import Part
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.samples.times import load_positions
from energon_pack.sources.compressed import compression
from energon_pack.sources.shard import Shard
from energon_pack.sources.storage import counted, open_file
from energon_pack.sources.tar import TarScan
from energon_pack.verify import packs as checks
from energon_pack.verify.findings import Findings, hashed
from energon_pack.verify.members import compared
from energon_pack.verify.videos import decoded_by_energon, decoded_by_us

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
    media: DatasetMedia
    max_defects: int
    shares: Sequence[float] = ()  # of the splits; none: not known
    seed: int = 0
    for_stack: bool = False  # ask for what the loader of the stack needs that packed it


@dataclass
class VerifiedShard:
    """What a shard holds, in numbers and hashes, and what is wrong with it."""

    name: str
    findings: Findings
    packs: "array[int]" = field(default_factory=lambda: array("Q"))  # hashes of their keys
    samples: "array[int]" = field(default_factory=lambda: array("Q"))  # of `<source shard>/<key>`, of whole samples
    parts: dict[str, list[str]] = field(default_factory=dict)  # the other members: by that name, `2of3`
    num_tokens: int = 0
    num_supervised: int = 0
    media_types: Counter[str] = field(default_factory=Counter)
    splits: set[str] = field(default_factory=set)  # in which its samples are, by their ids
    whose: Counter[str] = field(default_factory=Counter)  # packs of other tools
    num_members: int = 0

    def add(self, pack: Pack, members: list[PlanRow] | None, job: VerifyJob) -> None:
        """Count a pack in.

        Args:
            members: its rows of the plan.
        """
        self.packs.append(hashed(pack.files.key))
        samples = list(checks.samples_of(pack, members))
        if job.shares:
            numbers = split_numbers((sample for sample, _ in samples), job.shares, job.seed)
            self.splits |= {SPLITS[number] for number in numbers.tolist()}
        for sample, part in samples:
            if part is None:
                self.samples.append(hashed(sample))
            else:
                self.parts.setdefault(sample, []).append(part)
        self.num_members += len(pack.ids)
        self.num_tokens += sum(pack.meta.get("token_lens", ()))
        self.num_supervised += sum(pack.meta.get("num_supervised", ()))
        self.media_types[pack.media_type] += 1
        if pack.flavor.whose:
            self.whose[pack.flavor.whose] += 1


def verify_shards(jobs: Sequence[VerifyJob], findings: Findings, run: Run) -> list[VerifiedShard]:
    """Verify shards; what is wrong with them joins the findings."""
    shards = []
    sizes = [job.path.stat().st_size if job.path.is_file() else 0 for job in jobs]
    with run.progress.stage("verify", len(jobs), "shards", sum(sizes)) as advance:
        results = run.executor.map(partial(counted, verify_shard), jobs)
        for (shard, num_bytes), size in zip(results, sizes, strict=True):
            findings.merge(shard.findings)
            shards.append(shard)
            run.progress.add(shard.num_members, num_bytes)
            advance(1, size)
    return shards


def verify_shard(job: VerifyJob) -> VerifiedShard:
    """All that can be said of one shard; runs in a worker."""
    warnings.filterwarnings("ignore", module="PIL")  # of odd EXIF and the like
    findings = Findings(job.max_defects)
    shard = VerifiedShard(job.path.name, findings)
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
                    parts = with_media(file, pack, job.media)
                    members = rows.get(files.key) if rows is not None else None
                    shard.add(pack, members, job)
                    _check(job, pack, members, findings)
                    _check_media(parts, job, pack, findings)
                    if rows is not None:
                        findings.add("plan", f"{job.path.name}: {files.key}", checks.plan(pack, members))
                    if members and job.source is not None:
                        for check, member, defects in compared(parts, pack, members, job.source, sources, job.read):
                            findings.add(check, f"{job.path.name}: {files.key}: {member}", defects)
    except OSError as error:
        findings.add("tar", job.path.name, [f"it can't be read: {error.strerror or error}"])
    return shard


def packs_of(path: Path, flavor: PackedFlavor | None = DEFAULT) -> Iterator[tuple[Bytes, Pack, list[str]]]:
    """The packs of a shard: the file to read them from, each pack, and what its JSON lacks.

    Args:
        flavor: it may be another's where only `meta` is asked for; None: another tool wrote them.
    """
    media = DatasetMedia(path.parent)
    with open_file(path) as file:
        for files in packs_in(TarScan(file)):
            pack, defects = parse(files, _json(file, files), flavor)
            yield with_media(file, pack, media), pack, defects


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
        try:
            head = file.read(part.offset, min(16, part.size))
        except PackError as error:
            findings.add("references", where, [str(error)])
            continue
        if pack.references:
            findings.add("references", where, [])
        findings.add("kinds", where, checks.kind(pack, part.name, head))
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
