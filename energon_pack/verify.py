"""Is a packed dataset whole, and what its source makes it? `python -m energon_pack.verify DIR`

Every shard's headers, JSON and names are read, in parallel, and compared with the index, the plan, the ledger, the
report and `.nv-meta`. `--decode` looks at pixels, `--source` at the bytes of the source, `--lengths` tokenizes. A
defect never hides another: all that can be looked at is, whatever else is damaged.
"""

import argparse
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from rich.table import Table

from energon_pack.checks import dataset as checks
from energon_pack.checks.foreign import verify_foreign
from energon_pack.checks.lengths import measured_again, packed_with
from energon_pack.checks.packs import samples_of
from energon_pack.checks.shard import VerifiedShard, VerifyJob, packs_of, verify_shard
from energon_pack.checks.source import drawn_of, find_source, read_settings, unaccounted
from energon_pack.checks.videos import is_read_as_bytes
from energon_pack.errors import PackError
from energon_pack.executor import LocalExecutor
from energon_pack.findings import CHECKS, Findings
from energon_pack.manifest import MANIFEST, META_FOLDER
from energon_pack.packed.files import LEDGER, PLAN, REPORT, PlanFile, at, read_object, shard_paths
from energon_pack.packs import CAPTIONING, MULTI_MIX_QA
from energon_pack.progress import Progress
from energon_pack.report import console, say
from energon_pack.sources.find import Source
from energon_pack.splits import split_shares
from energon_pack.tool import count, parser, run


def verify(
    folder: Path,
    decode: bool = False,
    source: list[str] | None = None,
    lengths: int = 0,
    model: str | None = None,
    processor: str | None = None,
    trust_remote_code: bool = False,
    max_errors: int = 20,
    num_workers: int | None = None,
    media_root: str | None = None,
    packs_as: str | None = None,
    reader: str = "own",
) -> Findings:
    """Everything that is wrong with a packed dataset.

    Args:
        source: compare with the source at these paths; an empty list: where it was when it was packed.
        lengths: measure so many members again.
        model: probe this class of models, or the one of this folder.
        media_root: where the media of a JSONL source are now; None: as when it was packed.
        packs_as: of another tool's packs, for `lengths`: a model as in `+model=NAME`.
        reader: of another tool's packs: whose loader has to read them, that of its `own` stack or `energon_pack`'s.

    Raises:
        PackError: the folder is no packed dataset, or the source is not there.
    """
    if media_root is not None and source is None:
        raise PackError(f"--media-root {media_root} is for --source, which compares with the source")
    if not (folder / META_FOLDER / MANIFEST).is_file():
        if source is not None or model:
            raise PackError(
                f"{folder} has no {META_FOLDER}/{MANIFEST}: --source and --model are for what energon_pack packed"
            )
        if lengths and not (packs_as and processor):
            raise PackError(
                f"{folder} has no {META_FOLDER}/{MANIFEST}: --lengths needs --as MODEL and --processor FOLDER to know"
                " what its packs are for"
            )
        foreign = verify_foreign(folder, decode, max_errors, num_workers, reader == "own")
        if lengths:
            _add_lengths(
                foreign.findings, lengths, folder, None, foreign.shards, processor, trust_remote_code, packs_as
            )
        return foreign.findings
    if packs_as is not None:
        raise PackError(f"--as {packs_as}: {folder} says itself what it was packed for")
    findings = Findings(max_errors)
    manifest = _read(folder / META_FOLDER / MANIFEST, "metadata", findings)
    flavor = manifest["flavor"] if manifest.get("flavor") in (MULTI_MIX_QA, CAPTIONING) else MULTI_MIX_QA
    report = _read(folder / REPORT, "totals", findings)
    found = None if source is None else find_source(folder, report, source, media_root)
    plan = _plan(folder / PLAN, findings)
    paths = shard_paths(folder)
    shares, seed = _splits(manifest)
    packing = at(manifest, "content", "packing")
    jobs = (
        VerifyJob(
            path=path,
            flavor=flavor,
            plan=plan,
            packing=packing if isinstance(packing, dict) else {},
            fingerprint=manifest.get("fingerprint"),
            decode=decode,
            is_read_as_bytes=is_read_as_bytes(folder),
            source=None if found is None else {shard.name: shard for shard in found.shards},
            read=read_settings(manifest),
            shares=shares,
            seed=seed,
            max_defects=max_errors,
        )
        for path in paths
    )
    progress = Progress()
    num_jobs = max(len(paths), len(found.shards) if found else 0)
    with LocalExecutor(1 if num_jobs < 2 else num_workers) as executor:
        shards = []
        with progress.stage("verify", len(paths), "shards") as advance:
            for shard in executor.map(verify_shard, jobs):
                findings.merge(shard.findings)
                shards.append(shard)
                advance(1)
        ledger = checks.Ledger(folder)
        _check_dataset(folder, manifest, report, plan, shards, ledger, findings)
        if found is not None:
            _check_accounts(folder, found, report, shards, ledger, findings, executor, progress)
    if lengths:
        with_what = processor or packed_with(folder, report)
        _add_lengths(findings, lengths, folder, flavor, shards, with_what, trust_remote_code, None)
    if model:
        from energon_pack.checks.model import check_model  # torch and the model's own code

        processor = processor or packed_with(folder, report)
        with progress.stage("model", 1, "model") as advance:
            checked = check_model(folder, model, processor, trust_remote_code)
            advance(1)
        findings.add("model", model, checked.defects, checked.num_members)
        findings.notes.append(str(checked))
    return findings


def _add_lengths(findings: Findings, number: int, folder: Path, flavor: str | None, shards: Any, *how: Any) -> None:
    with Progress().stage("lengths", number, "members") as advance:
        for member, defects in measured_again(folder, flavor, shards, number, *how):
            findings.add("lengths", member, defects)
            advance(1)


def _read(path: Path, check: str, findings: Findings) -> dict[str, Any]:
    try:
        return read_object(path)
    except FileNotFoundError:  # `files` says so
        return {}
    except (OSError, ValueError) as error:
        findings.add(check, path.name, [f"it can't be read: {error}"])
        return {}


def _splits(manifest: dict[str, Any]) -> tuple[tuple[float, ...], int]:
    """Shares of the splits, and the seed by which samples are in them; none where the manifest is damaged."""
    splits, seed = at(manifest, "content", "output", "splits"), at(manifest, "content", "plan", "seed")
    try:
        return split_shares(splits), int(seed)
    except (PackError, AttributeError, TypeError, ValueError):
        return (), 0


def _plan(path: Path, findings: Findings) -> PlanFile | None:
    plan = PlanFile(path)
    try:
        plan.check()
    except PackError as error:
        findings.add("plan", path.parent.name, [str(error)], 0)
        return None
    return plan


def _check_dataset(
    folder: Path,
    manifest: dict[str, Any],
    report: dict[str, Any],
    plan: PlanFile | None,
    shards: list[VerifiedShard],
    ledger: checks.Ledger,
    findings: Findings,
) -> None:
    prefix = at(manifest, "content", "output", "shard_prefix")
    packed = checks.packed_samples(shards)
    num_files = sum(not path.is_dir() for path in folder.rglob("*"))
    name = folder.name
    findings.add("files", name, checks.files(folder, prefix if isinstance(prefix, str) else "packed"), num_files)
    findings.add("keys", name, checks.keys(folder, shards, plan), sum(len(shard.packs) for shard in shards))
    findings.add("samples", name, checks.samples(folder, shards), len(packed))
    findings.add("ledger", LEDGER, ledger.check(packed), ledger.reasons.total())
    findings.add("metadata", META_FOLDER, checks.metadata(folder, manifest, shards), len(shards))
    findings.add("totals", name, checks.totals(report, manifest, shards, ledger))


def _check_accounts(
    folder: Path,
    source: Source,
    report: dict[str, Any],
    shards: list[VerifiedShard],
    ledger: checks.Ledger,
    findings: Findings,
    executor: LocalExecutor,
    progress: Progress,
) -> None:
    packed = checks.packed_samples(shards)
    names = chain(_samples(folder, shards), ledger.names())
    for number, defects in unaccounted(source, drawn_of(report), packed, ledger.samples, names, executor, progress):
        findings.add("source samples", folder.name, defects, number)


def _samples(folder: Path, shards: Iterable[VerifiedShard]) -> Iterator[str]:
    packs = (pack for shard in shards for _, pack, _ in packs_of(folder / shard.name))
    return (sample for pack in packs for sample, _ in samples_of(pack, None))


# ----------------------------------------------------------------------------------------------- what a user sees


def print_findings(findings: Findings, max_errors: int) -> None:
    """A row a check, then a line a defect."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("check", "what has to be true"):
        table.add_column(name)
    for name in ("looked at", "result"):
        table.add_column(name, justify="right")
    for check, what in CHECKS.items():
        number_looked_at, number = findings.num_looked_at[check], findings.num_defects[check]
        if check in findings.num_looked_at or number:
            result = f"{number:,} defect{'s' * (number > 1)}" if number else "ok"
            table.add_row(check, what, f"{number_looked_at:,}", result, style="bold" if number else None)
    console().print(table)
    for note in findings.notes:
        say(note)
    shown = findings.first(max_errors)
    for defect in shown:
        say(str(defect))
    if more := findings.num_defects.total() - len(shown):
        say(f"and {more:,} more" if shown else f"{more:,} defects")


def main() -> int:
    """Entry point; the exit code."""
    arguments = _arguments()
    findings = verify(
        folder=Path(arguments.dataset),
        decode=arguments.decode,
        source=arguments.source,
        lengths=arguments.lengths,
        model=arguments.model,
        processor=arguments.processor,
        trust_remote_code=arguments.trust_remote_code,
        max_errors=arguments.max_errors,
        num_workers=arguments.num_workers,
        media_root=arguments.media_root,
        packs_as=arguments.packs_as,
        reader=arguments.reader,
    )
    print_findings(findings, arguments.max_errors)
    return 1 if findings.num_defects.total() else 0


def _arguments() -> argparse.Namespace:
    made = parser("verify", "DIR", "Check a packed dataset; exit code 0 when all is well, 1 when anything is not.")
    made.add_argument("dataset", metavar="DIR", help="folder of a packed dataset")
    made.add_argument("--decode", action="store_true", help="decode every image and video, these by Energon, too")
    made.add_argument("--source", nargs="*", metavar="PATH", help="compare with the source, at PATH if it has moved")
    made.add_argument("--media-root", metavar="FOLDER", help="where media of a JSONL source are now")
    made.add_argument("--lengths", type=count, default=0, metavar="N", help="measure N random members again")
    made.add_argument(
        "--model",
        metavar="MODEL",
        help="does it keep members apart? a class of transformers, module:Class, or a folder with a config.json",
    )
    made.add_argument("--as", dest="packs_as", metavar="MODEL", help="of another tool's packs: +model=MODEL of packing")
    made.add_argument(
        "--reader",
        choices=("own", "energon_pack"),
        default="own",
        help="of another tool's packs: whose loader has to read them (that of its own stack)",
    )
    made.add_argument("--processor", metavar="FOLDER", help="for --lengths, --model (default: as when it was packed)")
    made.add_argument("--trust-remote-code", action="store_true", help="run the processor's own code")
    made.add_argument("--max-errors", type=count, default=20, metavar="N", help="defects to show (default 20)")
    made.add_argument("--num-workers", type=count, metavar="N", help="processes (default: all cores)")
    return made.parse_args()


if __name__ == "__main__":
    run("verify", main)
