"""Check that the ledger, report.json and the manifest account for what is there."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from energon_pack.dataset.files import LEDGER, nested_value
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.manifest import MANIFEST, REPORT
from energon_pack.errors import quote
from energon_pack.samples.bytes import as_file
from energon_pack.samples.skip import Reason
from energon_pack.verify.dataset_checks import packed_sample_hashes
from energon_pack.verify.findings import Hashes, name_hash, names_with
from energon_pack.verify.shard_checks import VerifiedShard

_REASONS = {reason.value for reason in Reason}
#: With these reasons a sample may be packed and in the ledger: the entry is a later sample with the same key.
_REASONS_OF_PACKED = {Reason.DUPLICATE_KEY.value, Reason.TRUNCATED_TAR.value}


class SkippedLedger:
    """The samples that skipped.jsonl lists, as hashes, and the defects of its lines.

    Samples with the reason `cut_off` are packed, too, and not counted here.
    """

    def __init__(self, folder: DatasetFolder):
        self._folder = folder
        self.reasons: Counter[str] = Counter()
        self.defects: list[str] = []
        samples, alone, cut_off = [], [], []
        try:
            for number, entry in self._entries():
                sample, reason = nested_value(entry, "sample_id"), nested_value(entry, "reason")
                if not (isinstance(sample, str) and isinstance(reason, str) and reason in _REASONS):
                    self.defects.append(f"line {number} is no entry: sample_id {quote(sample)}, reason {quote(reason)}")
                    continue
                if reason == Reason.CUT_OFF:
                    cut_off.append(name_hash(sample))
                    continue
                self.reasons[reason] += 1
                samples.append(name_hash(sample))
                if reason not in _REASONS_OF_PACKED:
                    alone.append(samples[-1])
        except OSError as error:
            self.defects.append(f"it can't be read: {error.strerror or error}")
        #: all samples that it names, and samples that can be in no pack
        self.sample_hashes, self.unpacked_hashes = np.array(samples, np.uint64), np.array(alone, np.uint64)
        self._cut_off = np.array(cut_off, np.uint64)

    def _entries(self) -> Iterator[tuple[int, Any]]:
        with self._folder.open(LEDGER) as ledger:
            for number, line in enumerate(as_file(ledger, 1 << 20), 1):
                try:
                    yield number, json.loads(line)
                except (ValueError, RecursionError):
                    yield number, None

    def sample_ids(self) -> Iterator[str]:
        yield from (str(nested_value(entry, "sample_id")) for _, entry in self._entries())

    def find_defects(self, packed: Hashes) -> Iterator[str]:
        """Yield the ledger's defects: broken lines, samples that are packed, too, and cut samples that are in no pack.

        `packed`: the hashes of all samples in packs.
        """
        yield from self.defects
        both = np.intersect1d(self.unpacked_hashes, packed)
        yield from (f"{name} is in a pack, too" for name in (names_with(both, self.sample_ids()) if len(both) else ()))
        lost = np.setdiff1d(self._cut_off, packed)
        yield from (f"{name} is in no pack" for name in (names_with(lost, self.sample_ids()) if len(lost) else ()))


def check_totals(
    report: Mapping[str, Any], manifest: Mapping[str, Any], shards: Sequence[VerifiedShard], ledger: SkippedLedger
) -> Iterator[str]:
    """Yield each count in report.json or the manifest that differs from what shards and ledger add up to."""
    packed = len(np.unique(packed_sample_hashes(shards)))
    num_cut = len({sample for shard in shards for sample in shard.cut_parts})
    num_packs = sum(len(shard.pack_hashes) for shard in shards)
    num_parts = sum(len(shard.sample_hashes) + sum(map(len, shard.cut_parts.values())) for shard in shards)
    num_tokens = sum(shard.num_tokens for shard in shards)
    skipped = ledger.reasons.total()
    counted: dict[str, Any] = {
        "samples_in": packed + skipped,
        "samples_packed": packed,
        "samples_skipped": skipped,
        "samples_cut": num_cut,
        "skipped_by_reason": dict(ledger.reasons),
        "parts": num_parts,
        "packs": num_packs,
        "tokens": num_tokens,
        "num_supervised": sum(shard.num_supervised for shard in shards),
        "fingerprint": manifest.get("fingerprint"),
    }
    if all(len(shard.splits) == 1 for shard in shards):  # else `metadata` reports it, or the shares are not known
        counted["by_split"] = _counts_by_split(shards)
    yield from (
        f"{REPORT} has {name}={quote(report.get(name))}, there is {quote(value)}"
        for name, value in (counted.items() if report else ())
        if report.get(name) != value
    )
    in_manifest: dict[str, Any] = {"num_packs": num_packs, "num_samples": num_parts, "num_tokens": num_tokens}
    packing = nested_value(manifest, "content", "packing")
    in_manifest |= {name: nested_value(packing, name) for name in ("max_token_len", "pad_to_multiple_of", "layout")}
    in_manifest["mask"] = nested_value(manifest, "content", "model", "mask")
    in_manifest["splits"] = counted.get("by_split", manifest.get("splits"))
    yield from (
        f"{MANIFEST} has {name}={quote(manifest.get(name))}, there is {quote(value)}"
        for name, value in in_manifest.items()
        if manifest.get(name) != value
    )
    media_types: Counter[str] = sum((shard.media_types for shard in shards), Counter())
    by_media = nested_value(report, "by_media")
    for name in sorted({*media_types, *by_media}) if isinstance(by_media, dict) else ():
        claimed = nested_value(by_media, name, "packs") or 0
        if claimed != media_types[name]:
            yield f"{REPORT} has {quote(claimed)} packs of {quote(name)}, there are {media_types[name]}"


def _counts_by_split(shards: Sequence[VerifiedShard]) -> dict[str, dict[str, int]]:
    """Count packs, samples and tokens of each split; all samples of a shard are in one split."""
    splits: dict[str, dict[str, int]] = {}
    for shard in shards:
        counts = splits.setdefault(next(iter(shard.splits)), {"packs": 0, "samples": 0, "tokens": 0})
        counts["packs"] += len(shard.pack_hashes)
        counts["samples"] += len(shard.sample_hashes) + sum(map(len, shard.cut_parts.values()))
        counts["tokens"] += shard.num_tokens
    return splits
