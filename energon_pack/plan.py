"""Which samples go into which pack, in which order, and which are left out.

    lengths ──plan_packs──► PackPlan (arrays) ──write_plan──► pack_plan.parquet (a row group an output shard), ledger

`plan_packs` is pure; its memory is a few numbers a sample.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from energon_pack.bins import Ints, best_fit_decreasing, lower_bound, random_keys
from energon_pack.errors import PackError
from energon_pack.lengths import MeasuredShard
from energon_pack.measuring import LENGTHS_SCHEMA
from energon_pack.sample import Reason

#: In the order of two bits: holds images, holds videos.
MEDIA_TYPES = ("text", "image", "video", "mix")

_BLOCK = 512  # tar
_PLAN_COLUMNS = (
    "shard", "key", "media_type", "token_len", "num_supervised", "num_visual_tokens",
    "record_part", "record_offset", "record_size", "parts",
)  # fmt: skip


@dataclass(frozen=True)
class PackingSettings:
    """`packing.*` and the seed: all that a plan depends on beside the lengths."""

    max_token_len: int
    pad_to_multiple_of: int = 1  # each member takes a multiple of this
    overlong: str = "drop"  # drop | error
    group_by: str = "media"  # media | none
    seed: int = 0


@dataclass(frozen=True)
class PackPlan:
    """Pack p holds the samples `samples[starts[p]:starts[p + 1]]`, in that order."""

    starts: Ints  # num_packs + 1
    samples: Ints  # indices of samples
    dropped: npt.NDArray[np.bool_]  # per sample: longer than a pack
    lower_bound: int  # packs, summed over the groups that may not mix

    @property
    def num_packs(self) -> int:
        return len(self.starts) - 1


def plan_packs(lens: Ints, media: Ints, settings: PackingSettings) -> PackPlan:
    """Pack samples into sequences of at most `max_token_len` tokens.

    Packs are in a seeded random order, stratified by media type and number of members: every stretch of it has about
    the mixture of the whole.

    Args:
        lens: int64[n] tokens of each sample; 0 for those that are out already.
        media: int64[n] index into `MEDIA_TYPES`.

    Returns:
        A plan in which every sample with 0 < length ≤ max_token_len is in exactly one pack.
    """
    multiple = settings.pad_to_multiple_of
    padded = -(-lens // multiple) * multiple
    dropped = padded > settings.max_token_len
    candidates = (lens > 0) & ~dropped
    groups = [media == code for code in range(len(MEDIA_TYPES))] if settings.group_by == "media" else [lens > 0]

    samples, sizes, places = [], [], []
    bound = 0
    for stream, group in enumerate(groups):
        members = np.flatnonzero(group & candidates)
        bins = best_fit_decreasing(padded[members], settings.max_token_len, settings.seed)
        if not bins.num_bins:
            continue
        bound += lower_bound(padded[members], settings.max_token_len)
        samples.append(members[bins.items])
        sizes.append(np.diff(bins.starts))
        places.append(_places(sizes[-1], settings.seed, stream))
    if not samples:
        return PackPlan(np.zeros(1, np.int64), np.zeros(0, np.int64), dropped, 0)

    size = np.concatenate(sizes)
    start = np.cumsum(size) - size
    order = np.argsort(np.concatenate(places), kind="stable")
    starts = np.concatenate(([0], np.cumsum(size[order])))
    flat = np.arange(starts[-1]) + np.repeat(start[order] - starts[:-1], size[order])
    return PackPlan(starts, np.concatenate(samples)[flat], dropped, bound)


def _places(sizes: Ints, seed: int, stream: int) -> npt.NDArray[np.float64]:
    """A place in [0, 1) for each pack of a group, one in each of n equal steps.

    Packs in order of their number of members are cut into √n blocks of √n alike; those of a block are spread evenly
    over the whole, in random order.
    """
    num = len(sizes)
    keys = random_keys(num, seed, 10 + 2 * stream)
    block_size = math.isqrt(num - 1) + 1
    block = np.empty(num, np.int64)
    block[np.lexsort((keys, sizes))] = np.arange(num) // block_size
    dealt = np.lexsort((random_keys(num, seed, 11 + 2 * stream), block))  # block by block, each shuffled
    within = np.empty(num, np.int64)
    within[dealt] = np.arange(num) % block_size
    jitter = (keys >> np.uint64(11)) * 2.0**-53
    place = (within + jitter) / np.minimum(block_size, num - block * block_size)
    step = np.empty(num, np.int64)
    step[np.argsort(place, kind="stable")] = np.arange(num)
    return (step + jitter) / num


# -------------------------------------------------------------------------------------- from lengths to the plan


class Lengths:
    """The lengths of all samples a run is about, as one table with the column `shard` in front.

    Held in memory: about 200 bytes a sample.

    Args:
        excluded: keys of samples left out, by shard.
        limit: only the first so many of the others.
    """

    def __init__(
        self,
        measured: Sequence[MeasuredShard],
        excluded: Mapping[str, Set[str]] | None = None,
        limit: int | None = None,
    ):
        tables = [_read(item, (excluded or {}).get(item.shard.name)) for item in measured]
        names = [item.shard.name for item in measured]
        table = pa.concat_tables([LENGTHS_SCHEMA.empty_table(), *tables]).combine_chunks()
        codes = np.repeat(np.arange(len(tables), dtype=np.int32), [t.num_rows for t in tables])
        shard = pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string()))
        self.table: pa.Table = table.add_column(0, "shard", shard).slice(0, limit)
        is_out = pc.is_valid(self.table["reason"]).to_numpy()
        #: tokens of each sample, 0 for those that were skipped
        self.lens: Ints = np.where(is_out, 0, self.table["token_len"].to_numpy()).astype(np.int64)
        media = pc.index_in(self.table["media_type"], pa.array(MEDIA_TYPES))
        #: index into MEDIA_TYPES, -1 where it can't be told
        self.media: Ints = pc.fill_null(media, -1).to_numpy().astype(np.int64)
        #: index into `shard_names` of each sample
        self.shard_codes = codes[:limit]
        self.shard_names = names

    @property
    def num_samples(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> Ints:
        values: Ints = self.table[name].to_numpy().astype(np.int64)
        return values

    def sample_id(self, index: int) -> str:
        return f"{self.table['shard'][index].as_py()}/{self.table['key'][index].as_py()}"


def _read(measured: MeasuredShard, excluded: Set[str] | None) -> pa.Table:
    table = pq.read_table(measured.path)
    if excluded:
        table = table.filter(pc.invert(pc.is_in(table["key"], pa.array(sorted(excluded), pa.large_string()))))
    return table


def check_overlong(lengths: Lengths, plan: PackPlan, settings: PackingSettings) -> None:
    """Raises PackError on the first overlong sample where `packing.overlong=error`."""
    overlong = np.flatnonzero(plan.dropped)
    if settings.overlong == "error" and len(overlong):
        first = int(overlong[0])
        raise PackError(
            f"{len(overlong)} samples are longer than packing.max_token_len={settings.max_token_len}, first"
            f" {lengths.sample_id(first)} with {lengths.lens[first]} tokens; packing.overlong=drop leaves them out"
        )


def ledger(lengths: Lengths, plan: PackPlan, settings: PackingSettings) -> Iterator[dict[str, Any]]:
    """One entry of `skipped.jsonl` for each sample in no pack, in the order of the source."""
    is_out = plan.dropped | pc.is_valid(lengths.table["reason"]).to_numpy()
    rows = lengths.table.select(["shard", "key", "reason", "detail", "media_type", "token_len"])
    for batch in rows.filter(pa.array(is_out)).to_batches():
        for row in batch.to_pylist():
            reason, detail = row["reason"], row["detail"]
            token_len = row["token_len"] or None
            if reason is None:
                reason = Reason.OVERLONG.value
                padded = -(-row["token_len"] // settings.pad_to_multiple_of) * settings.pad_to_multiple_of
                rounded = f" (padded to {padded})" if padded > row["token_len"] else ""
                detail = f"{row['token_len']} tokens{rounded}, packing.max_token_len={settings.max_token_len}"
            yield {
                "sample_id": f"{row['shard']}/{row['key']}",
                "reason": reason,
                "detail": detail,
                "media_type": row["media_type"],
                "token_len": token_len,
            }


def shard_bounds(pack_bytes: Ints, max_packs: int, max_bytes: float) -> Ints:
    """First pack of each output shard, and the end: as few shards as the limits allow, and about equal ones.

    Args:
        pack_bytes: int64[num_packs].

    Returns:
        int64[num_shards + 1]. A pack larger than `max_bytes` has a shard of its own.
    """
    upto = np.concatenate(([0], np.cumsum(pack_bytes)))
    bounds = [0]
    while bounds[-1] < len(pack_bytes):
        within = int(np.searchsorted(upto, upto[bounds[-1]] + max_bytes, side="right")) - 1
        bounds.append(min(max(within, bounds[-1] + 1), bounds[-1] + max_packs, len(pack_bytes)))
    even = np.arange(len(bounds)) * len(pack_bytes) // (len(bounds) - 1)
    return even if np.diff(upto[even]).max() <= max_bytes else np.array(bounds)


def pack_bytes(lengths: Lengths, plan: PackPlan) -> Ints:
    """About how many bytes each pack takes in a tar."""
    parts = lengths.table["parts"].combine_chunks()
    sizes = parts.values.field("size").to_numpy()
    upto = np.concatenate(([0], np.cumsum(_BLOCK - -sizes // _BLOCK * -_BLOCK)))
    ends = parts.offsets.to_numpy()
    per_sample = upto[ends[1:]] - upto[ends[:-1]] + lengths.table["record_size"].fill_null(0).to_numpy()
    return np.add.reduceat(per_sample[plan.samples], plan.starts[:-1]) + 2 * _BLOCK


def key_prefix(lengths: Lengths, plan: PackPlan, seed: int, fingerprint: str) -> str:
    """What the keys of this dataset's packs begin with: the same for the same plan, another for another."""
    digest = hashlib.sha256(json.dumps([fingerprint, seed, lengths.shard_names]).encode())
    for array in (lengths.lens, plan.starts, plan.samples):
        digest.update(array.astype("<i8").tobytes())
    return digest.hexdigest()[:8]


def write_plan(path: Path, lengths: Lengths, plan: PackPlan, bounds: Ints, prefix: str) -> list[list[str]]:
    """pack_plan.parquet: a row a member in the order of writing, a row group an output shard.

    Returns:
        The source shards that each output shard reads.
    """
    reads = []
    table = lengths.table.select(_PLAN_COLUMNS)
    with pq.ParquetWriter(path, _plan_schema(), compression="zstd") as writer:
        for first, end in pairwise(bounds):
            starts = plan.starts[first : end + 1]
            samples = plan.samples[starts[0] : starts[-1]]
            packs = np.repeat(np.arange(end - first), np.diff(starts))
            keys = pa.array([f"{prefix}_{pack:08d}" for pack in range(first, end)])
            rows = table.take(pa.array(samples)).add_column(0, "pack", keys.take(pa.array(packs)))
            writer.write_table(rows.cast(_plan_schema()), row_group_size=max(1, len(samples)))
            reads.append([lengths.shard_names[code] for code in np.unique(lengths.shard_codes[samples])])
    return reads


def _plan_schema() -> pa.Schema:
    fields = {field.name: field for field in LENGTHS_SCHEMA}
    fields["shard"] = pa.field("shard", pa.string())
    return pa.schema([pa.field("pack", pa.string()), *(fields[name] for name in _PLAN_COLUMNS)])
