"""Verify that a packed dataset is whole, and equals its source: `python -m energon_pack.verify DIR`

Workers read every shard in parallel: its headers, JSON, names and tokens are compared with the index, the plan, the
ledger, the report and `.nv-meta`, its media with their checksums. `--decode` also decodes pixels, `--source` compares
bytes and tokens with the source. No defect hides another: whatever can be checked is checked, even if the rest is
damaged. DIR may be an address.
"""

import argparse
import shlex
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from energon_pack.config import MediaIn
from energon_pack.config.schema import complete_split_shares
from energon_pack.dataset.files import (
    LEDGER,
    MEDIA_SUMS_FILE,
    PLAN,
    PlanFile,
    has_messages,
    nested_value,
    why_checksums_unusable,
)
from energon_pack.dataset.folder import DatasetFolder, open_dataset_folder
from energon_pack.dataset.manifest import MANIFEST, REPORT
from energon_pack.dataset.source_media import ReferencedMediaReader
from energon_pack.errors import PackError, amount
from energon_pack.plan.settings import SharedBeginnings
from energon_pack.report.pages.html import Rows, print_table
from energon_pack.run.command import make_tool_parser, positive_int
from energon_pack.run.console import say
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.run.files import META_FOLDER
from energon_pack.run.progress import Progress
from energon_pack.run.stores.requests import reraising_store_errors
from energon_pack.run.workshop import Workshop
from energon_pack.samples.flavors import packed_flavor_or_default
from energon_pack.samples.flavors.base import PackedFlavor
from energon_pack.sources.find import Source
from energon_pack.verify import dataset_checks as checks
from energon_pack.verify.findings import CHECKS, Findings
from energon_pack.verify.pack_checks import samples_in_pack
from energon_pack.verify.shard_checks import VerifiedShard, VerifyJob, read_packs, verify_shards
from energon_pack.verify.source_checks import (
    SourceSamples,
    find_source,
    read_draw_settings,
    read_source_samples,
    reading_settings_without_map,
    template_in_temp_folder,
    trusted_map_step,
    unaccounted_samples,
)
from energon_pack.verify.totals import SkippedLedger, check_totals


@dataclass(frozen=True)
class Options:
    """The options of a verification, named as on the command line; other checks always run."""

    decode: bool = False  # decode pixels, too
    source: list[str] | None = None  # compare with the source at these paths; []: at the paths it was packed from
    media_root: str | None = None  # the media of a JSONL source now; None: where they were when packed
    media_map: list[str] | None = None  # where media lie now, as `source.media_map`; None: as it was when packed
    map: str | None = None  # the step that may run on the records of the source, as `source.map` named it
    processor: str | None = None  # for `source`; None: the one it was packed with
    trust_remote_code: bool = False
    max_errors: int = 20  # defects of each check that are kept
    num_workers: int | None = None  # None: all cores


_DEFAULTS = Options()


@reraising_store_errors()
def verify(dataset: str | Path, options: Options = _DEFAULTS) -> Findings:
    """Check a packed dataset, given by its folder or address, and return its defects.

    Raises PackError if it is no packed dataset, or `options.source` is set and the source is missing.
    """
    folder = open_dataset_folder(dataset)
    for option, value in (("--media-root", options.media_root), ("--media-map", options.media_map)):
        if value is not None and options.source is None:
            raise PackError(f"{option} {value} is for --source, which compares with the source")
    findings = Findings(options.max_errors)
    if not folder.has(f"{META_FOLDER}/{MANIFEST}"):
        raise PackError(
            f"{folder} is no packed dataset: it has no {META_FOLDER}/{MANIFEST}. Packs of another tool are a source:"
            f" energon-pack try {shlex.quote(folder.path)} +model=NAME says what can be read"
        )
    _run_checks(folder, options, findings)
    return findings


def _run_checks(folder: DatasetFolder, options: Options, findings: Findings) -> None:
    stated = _read_claims(folder, findings)
    paths = options.source
    if not has_messages(stated.manifest):
        why = "the packs hold no conversations (output.messages=false)"
        findings.notes += [f"{why}: only their tokens are compared with the source"] * (paths is not None)
    source = None if paths is None else find_source(folder, stated.report, paths, options.media_root, options.media_map)
    how = options.processor, options.trust_remote_code
    template = nullcontext() if source is None else template_in_temp_folder(folder, stated.report, *how, findings)
    with template as template_folder:
        jobs = list(_jobs(stated, source, template_folder, options))
        num_jobs = max(len(jobs), len(source.shards) if source else 0)
        with LocalExecutor(1 if num_jobs < 2 else options.num_workers) as executor:  # a single job needs no process
            workshop = Workshop(executor, Progress())
            samples = (
                None if source is None else read_source_samples(source, read_draw_settings(stated.report), workshop)
            )
            shards, ledger = verify_shards(jobs, findings, workshop), SkippedLedger(folder)
            _check_dataset(stated, shards, ledger, findings)
            _note_unsummed(stated, shards, findings)
    if samples is not None:
        _check_source_samples(stated, samples, shards, ledger, findings)


@dataclass(frozen=True)
class DatasetClaims:
    """What a dataset says of itself: its manifest, report and plan; {} or None for a file that can't be read."""

    folder: DatasetFolder
    flavor: PackedFlavor
    manifest: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    plan: PlanFile | None = None


def _read_claims(folder: DatasetFolder, findings: Findings) -> DatasetClaims:
    manifest = _read_object(folder, f"{META_FOLDER}/{MANIFEST}", "metadata", findings)
    flavor = packed_flavor_or_default(manifest.get("flavor"))
    report = _read_object(folder, REPORT, "totals", findings)
    return DatasetClaims(folder, flavor, manifest, report, _open_plan(folder, findings))


def _read_object(folder: DatasetFolder, name: str, check: str, findings: Findings) -> dict[str, Any]:
    try:
        return folder.read_json_object(name)
    except FileNotFoundError:  # the check `files` reports it
        return {}
    except (OSError, ValueError) as error:
        findings.add(check, name.rpartition("/")[2], [f"it can't be read: {error}"])
        return {}


def _open_plan(folder: DatasetFolder, findings: Findings) -> PlanFile | None:
    plan = PlanFile(folder.with_only_files(PLAN))
    try:
        plan.check()
    except PackError as error:
        findings.add("plan", folder.name, [str(error)], 0)
        return None
    return plan


def _jobs(
    stated: DatasetClaims, source: Source | None, template_folder: str | None, options: Options
) -> Iterator[VerifyJob]:
    shares, seed = _split_shares_and_seed(stated.manifest)
    packing = nested_value(stated.manifest, "content", "packing")
    decoded = stated.report.get("files_decoded") or ()
    shards = source.shards if source is not None else ()
    by_name = {shard.name: replace(shard, decodes_videos=shard.name in decoded) for shard in shards}
    is_reference = nested_value(stated.manifest, "content", "output", "media") == MediaIn.reference
    root = source.root if source is not None and is_reference else None
    read, num_ids = reading_settings_without_map(stated.manifest), checks.vocabulary_size_of(stated.folder)
    if source is not None:
        read = replace(read, map=trusted_map_step(stated.manifest, options.map))
    sums = [] if why_checksums_unusable(stated.folder, stated.manifest) else [f"{META_FOLDER}/{MEDIA_SUMS_FILE}"]
    media = ReferencedMediaReader(stated.folder.path, root, whole=options.decode or source is not None)
    for name in stated.folder.shards:
        yield VerifyJob(
            name=name,
            folder=stated.folder.with_only_files(name, f"{name}.idx", *sums),
            flavor=stated.flavor,
            plan=stated.plan,
            packing=packing if isinstance(packing, dict) else {},
            fingerprint=stated.manifest.get("fingerprint"),
            decode=options.decode,
            source=None if source is None else by_name,
            reading=read,
            media=media,
            template_folder=template_folder,
            has_messages=has_messages(stated.manifest),
            num_ids=num_ids,
            key_prefix=str(stated.manifest.get("key_prefix")),
            split_shares=shares,
            seed=seed,
            max_defects=options.max_errors,
        )


def _split_shares_and_seed(manifest: dict[str, Any]) -> tuple[tuple[float, ...], int]:
    """Return the share of samples of each split, and the seed that draws the split of each sample by its id.

    No shares: the manifest is damaged, or `packing.share` puts samples with the same medium into one split.
    """
    if nested_value(manifest, "content", "packing", "share") not in (None, SharedBeginnings.none.value):
        return (), 0
    splits, seed = (
        nested_value(manifest, "content", "output", "splits"),
        nested_value(manifest, "content", "plan", "seed"),
    )
    try:
        return complete_split_shares(splits), int(seed)
    except (PackError, AttributeError, TypeError, ValueError):
        return (), 0


def _check_dataset(
    stated: DatasetClaims, shards: list[VerifiedShard], ledger: SkippedLedger, findings: Findings
) -> None:
    folder, manifest = stated.folder, stated.manifest
    prefix = nested_value(manifest, "content", "output", "shard_prefix")
    packed = checks.packed_sample_hashes(shards)
    name = folder.name
    wrong_names = checks.check_file_names(folder, prefix if isinstance(prefix, str) else "packed")
    findings.add("files", name, wrong_names, len(folder.names))
    findings.add(
        "keys",
        name,
        checks.check_pack_keys(folder, shards, stated.plan),
        sum(len(shard.pack_hashes) for shard in shards),
    )
    findings.add("samples", name, checks.check_each_sample_once(folder, shards), len(packed))
    findings.add("ledger", LEDGER, ledger.find_defects(packed), ledger.reasons.total())
    findings.add("metadata", META_FOLDER, checks.check_metadata(folder, stated.report, manifest, shards), len(shards))
    findings.add("totals", name, check_totals(stated.report, manifest, shards, ledger))


def _note_unsummed(stated: DatasetClaims, shards: list[VerifiedShard], findings: Findings) -> None:
    """Add a note if packs hold media without checksums."""
    if number := sum(shard.num_without_sum for shard in shards):
        why = (
            why_checksums_unusable(stated.folder, stated.manifest)
            or f"packs are not named as when {MEDIA_SUMS_FILE} was made"
        )
        findings.notes.append(
            f"{number:,} media are not compared with a checksum: {why}; --source compares them with their source"
        )


def _check_source_samples(
    stated: DatasetClaims,
    samples: SourceSamples,
    shards: list[VerifiedShard],
    ledger: SkippedLedger,
    findings: Findings,
) -> None:
    packs = (pack for shard in shards for _, pack, _ in read_packs(stated.folder, shard.name))
    names = chain((sample for pack in packs for sample, _ in samples_in_pack(pack, None)), ledger.sample_ids())
    defects = unaccounted_samples(samples, checks.packed_sample_hashes(shards), ledger.sample_hashes, names)
    findings.add("source samples", stated.folder.name, defects, sum(map(len, samples.shard_hashes)))


# ----------------------------------------------------------------------------------------------- what a user sees


def print_findings(findings: Findings, max_errors: int) -> None:
    """Print a table with a row for each check, then a line for each of the first `max_errors` defects."""
    rows: list[tuple[str, ...]] = []
    wrong = set()
    for check, meaning in CHECKS.items():
        number_looked_at, number = findings.num_checked[check], findings.num_defects[check]
        if check in findings.num_checked or number:
            wrong |= {len(rows)} if number else set()
            rows.append((check, meaning, f"{number_looked_at:,}", amount(number, "defect") if number else "ok"))
    print_table(Rows(("check", "what has to be true", "looked at", "result"), rows, 2, wrong))
    for note in findings.notes:
        say(note)
    shown = findings.first_defects(max_errors)
    for defect in shown:
        say(str(defect))
    if num_left := findings.num_defects.total() - len(shown):
        say(f"and {num_left:,} more" if shown else f"{num_left:,} defects")


def main() -> int:
    """Run the command; return its exit code."""
    arguments = vars(_arguments())
    findings = verify(arguments.pop("dataset"), options := Options(**arguments))
    print_findings(findings, options.max_errors)
    return 1 if findings.num_defects.total() else 0


def _arguments() -> argparse.Namespace:
    tool = make_tool_parser(
        "verify",
        "DIR",
        "Check a packed dataset.",
        examples=(
            "packed/demo-qwen2_5_vl-neat-8192",
            "packed/demo-qwen2_5_vl-neat-8192 --source --decode",
        ),
        exit_codes={0: "all is well", 1: "a defect, each with its line; or refused, in one line"},
    )
    tool.add_argument("dataset", metavar="DIR", help="a packed dataset: its folder, or its address on an object store")
    more = tool.add_argument_group("look at more")
    more.add_argument("--decode", action="store_true", help="decode every medium")
    more.add_argument("--source", nargs="*", metavar="PATH", help="compare with the source, at PATH if it has moved")
    more.add_argument("--media-root", metavar="FOLDER", help="where media of a JSONL source are now")
    more.add_argument("--media-map", nargs="+", metavar="OLD=NEW", help="where they are now, as in source.media_map")
    more.add_argument("--map", metavar="MODULE:FUNCTION", help="with --source: run the step that source.map named")
    processor = tool.add_argument_group("the processor of --source")
    processor.add_argument("--processor", metavar="FOLDER", help="another than when it was packed")
    processor.add_argument("--trust-remote-code", action="store_true", help="run the processor's own code")
    how = tool.add_argument_group("how")
    how.add_argument("--max-errors", type=positive_int, default=20, metavar="N", help="defects to show (default: 20)")
    how.add_argument("--num-workers", type=positive_int, metavar="N", help="processes (default: all cores)")
    return tool.parse_args()
