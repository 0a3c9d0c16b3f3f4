"""Verify a dataset packed by LLaVA-OneVision-2 or LoongForge, as far as possible without plan, ledger and manifest."""

from collections import Counter
from collections.abc import Iterator

from energon_pack.dataset.files import PLAN
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.manifest import MANIFEST, REPORT
from energon_pack.dataset.referenced import DatasetMedia
from energon_pack.errors import PackError
from energon_pack.run.context import Run
from energon_pack.run.files import META_FOLDER
from energon_pack.run.plain_data import NotPlain, yaml_value
from energon_pack.samples.settings import ReadSettings
from energon_pack.verify import dataset as checks
from energon_pack.verify.findings import Findings
from energon_pack.verify.shard import VerifiedShard, VerifyJob, verify_shards
from energon_pack.verify.videos import is_read_as_bytes

_PREPARE = "`energon prepare --non-interactive --split-ratio 1,0,0 --skip-dataset-yaml` writes it anew"


def verify_foreign(
    folder: DatasetFolder, decode: bool, for_stack: bool, findings: Findings, run: Run
) -> list[VerifiedShard]:
    """Verify another tool's dataset; its defects go to the findings.

    Args:
        for_stack: whether the loader of the stack that packed it has to read it, too.

    Raises:
        PackError: it is no such dataset.
    """
    if not folder.shards or folder.has(PLAN) or folder.has(REPORT):  # a dataset with these files is ours
        raise PackError(f"{folder} is no packed dataset: it has no {META_FOLDER}/{MANIFEST}")
    as_bytes = is_read_as_bytes(folder) or not for_stack  # read as our loader does
    most, read, media = findings.max_defects, ReadSettings(), DatasetMedia(folder.path)
    jobs = [
        VerifyJob(name, of, None, None, {}, None, decode, as_bytes, None, read, media, most, for_stack=for_stack)
        for name, of in ((name, folder.only(name, f"{name}.idx")) for name in folder.shards)
    ]
    shards = verify_shards(jobs, findings, run)
    whose: Counter[str] = sum((shard.whose for shard in shards), Counter())
    if not whose:
        raise PackError(
            f"{folder} is no packed dataset: it has no {META_FOLDER}/{MANIFEST}, and no pack that LLaVA-OneVision-2 or"
            " LoongForge writes"
        )
    packs = ", ".join(f"{number:,} of {name}" for name, number in sorted(whose.items()))
    findings.notes.append(f"no {META_FOLDER}/{MANIFEST}: another tool packed it. Packs: {packs}")
    stacks = " and ".join(sorted({name.partition("'s ")[0] for name in whose}))
    findings.notes.append(
        f"checked for the loader of {stacks} (--reader energon_pack: for that of this package)"
        if for_stack
        else f"checked for energon_pack's loader, not for that of {stacks} (--reader own)"
    )
    if not any(shard.num_tokens for shard in shards):
        findings.notes.append("its packs state no lengths: --lengths tells whether members can be measured")
    findings.add("keys", folder.name, checks.keys(folder, shards, None), sum(len(shard.packs) for shard in shards))
    if any(len(shard.samples) for shard in shards):
        findings.add("samples", folder.name, checks.samples(folder, shards), len(checks.packed_samples(shards)))
    findings.add("metadata", META_FOLDER, [*_missing(folder), *checks.counts(folder, shards)], len(shards))
    if for_stack:
        findings.add("own loader", META_FOLDER, _missing_code(folder))
    return shards


def _missing(folder: DatasetFolder) -> Iterator[str]:
    """Yield the files that Energon needs to load it, and that are missing."""

    def has(*names: str) -> bool:
        return any(folder.has(f"{META_FOLDER}/{name}") for name in names)

    if not has(".info.json", ".info.yaml"):
        yield f".info.json is missing, without which Energon loads nothing: {_PREPARE}"
    if not has("split.yaml", "split.json"):
        yield f"split.yaml is missing, without which Energon loads nothing: {_PREPARE}"
    if not has("dataset.yaml"):
        yield "dataset.yaml is missing, which says how Energon reads it"


def _missing_code(folder: DatasetFolder) -> Iterator[str]:
    """Yield the missing Python files that its dataset.yaml names: `sample_loader.py:sample_loader`."""
    try:
        value = yaml_value(folder.read(f"{META_FOLDER}/dataset.yaml"))
    except (OSError, NotPlain):
        return  # `_missing` reports it, or Energon
    named = value.values() if isinstance(value, dict) else ()
    files = {text.partition(":")[0] for text in named if isinstance(text, str) and ".py:" in text}
    yield from (
        f"{name} is missing, which dataset.yaml names"
        for name in sorted(files)
        if not folder.has(f"{META_FOLDER}/{name}")
    )
