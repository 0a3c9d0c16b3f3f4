"""Exact token lengths of all samples: one Parquet file a source shard, kept in the cache.

    shard ──index──► index/<key>.parquet ──measure, in slices──► lengths/<key>.parquet

The key of a file is all its content depends on: the shard's identity, and for lengths the model's fingerprint and
how samples are read. `packing.*` is not in it, so a sweep over packing settings measures once.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from energon_pack.bins import Ints
from energon_pack.current import stale_rows
from energon_pack.draws import copy_numbers, drawn_keys, drawn_rows
from energon_pack.errors import PackError
from energon_pack.executor import LocalExecutor
from energon_pack.files import write_whole
from energon_pack.measuring import MeasureJob, measure
from energon_pack.progress import Progress
from energon_pack.record import ReadSettings
from energon_pack.sources import reader, wds
from energon_pack.sources.find import Shard
from energon_pack.templates import load_saved
from energon_pack.templates.counting import CountingError

#: Raised when measuring the same sample gives other columns or values.
LENGTHS_VERSION = 8

_SLICE = 2000  # samples a job: small enough that one shard uses all cores


@dataclass(frozen=True)
class IndexedShard:
    """A shard, its file of `wds.INDEX_SCHEMA`, and what of it is drawn."""

    shard: Shard
    path: Path
    num_rows: int
    rows: Ints | None = None  # ascending, some several times; None: all
    copies: Ints | None = None  # of each of them how often it was drawn before, in this slice or in another
    how_drawn: tuple[float | str, ...] = ()  # what `rows` depend on

    @property
    def num_samples(self) -> int:
        return self.num_rows if self.rows is None else len(self.rows)

    @property
    def num_repeated(self) -> int:
        return 0 if self.copies is None else int(np.count_nonzero(self.copies))

    def samples(self) -> pa.Table:
        """The rows that are drawn; `@2` is added to the key of one that is drawn a second time."""
        table = pq.read_table(self.path)
        if self.rows is None or self.copies is None:
            return table
        keys = pa.array(drawn_keys(table["key"].to_pylist(), self.rows, self.copies), pa.string())
        return table.take(pa.array(self.rows)).set_column(0, table.schema.field("key"), keys)


@dataclass(frozen=True)
class MeasuredShard:
    """A shard and its file of `LENGTHS_SCHEMA`."""

    shard: Shard
    path: Path
    was_cached: bool


def index_shards(
    shards: list[Shard], keep_damaged: bool, cache_dir: Path, executor: LocalExecutor, progress: Progress
) -> list[IndexedShard]:
    """Index every shard that is not in the cache yet.

    Raises:
        PackError: a tar is compressed, or damaged and `keep_damaged` is off.
    """
    paths = [cache_dir / "index" / f"{_key(shard, [reader.INDEX_VERSION])}.parquet" for shard in shards]
    todo = [(shard, path) for shard, path in zip(shards, paths, strict=True) if not path.exists()]
    with progress.stage("index", len(todo), "shards") as advance:
        for _ in executor.map(_index_one, todo):
            advance(1)
    indexed, damaged = [], []
    for shard, path in zip(shards, paths, strict=True):
        with pq.ParquetFile(path) as file:
            indexed.append(IndexedShard(shard, path, file.metadata.num_rows))
            damaged += [f"{shard.path}: {what} at byte {offset}" for offset, what in wds.damage_of(file.schema_arrow)]
    if damaged and not keep_damaged:
        others = f" (and {len(damaged) - 1} more like it)" if len(damaged) > 1 else ""
        raise PackError(f"damaged tar {damaged[0]}{others}; source.on_damaged=keep packs what is whole")
    return indexed


def draw_samples(indexed: list[IndexedShard], slice_of: tuple[int, int], seed: int) -> list[IndexedShard]:
    """Which samples are drawn, by the `sample_ratio` of each shard and by the slice of the whole that is asked for.

    Args:
        slice_of: number and how many: every n-th sample, from there on.
    """
    number, num_slices = slice_of
    drawn = []
    start = 0
    for item in indexed:
        ratio = item.shard.lines.ratio if item.shard.lines else 1.0
        rows = drawn_rows(item.num_rows, ratio, item.shard.name, seed)
        first = (number - start) % num_slices
        start += len(rows)
        if ratio == num_slices == 1:
            drawn.append(item)
            continue
        by = (seed, item.shard.name) if ratio != 1 else ()
        how = (ratio, *by, first, num_slices)
        mine, copies = rows[first::num_slices], copy_numbers(rows)[first::num_slices]
        drawn.append(replace(item, rows=mine, copies=copies, how_drawn=how))
    return drawn


def first_samples(indexed: list[IndexedShard], limit: int | None, num_excluded: int) -> list[IndexedShard]:
    """The shards that hold the first `limit` samples, of which `num_excluded` may not count."""
    if limit is None:
        return indexed
    before = accumulate((item.num_samples for item in indexed), initial=0)
    return [item for item, count in zip(indexed, before, strict=False) if count < limit + num_excluded]


def measure_shards(
    indexed: list[IndexedShard],
    template_folder: str,
    settings: ReadSettings,
    engine: str,
    cache_dir: Path,
    executor: LocalExecutor,
    progress: Progress,
) -> list[MeasuredShard]:
    """Measure every shard that is not in the cache yet.

    Raises:
        PackError: `measure.engine` can't be used.
    """
    template = load_saved(template_folder)
    how = [template.fingerprint, template.spec.train_on, asdict(settings), LENGTHS_VERSION, reader.INDEX_VERSION]
    paths = [cache_dir / "lengths" / f"{_key(item.shard, [*how, item.how_drawn])}.parquet" for item in indexed]
    todo = _todo(indexed, paths, executor)
    if todo:
        try:
            template.counter(engine)
        except CountingError as error:
            raise PackError(str(error)) from None

    def jobs() -> Iterator[MeasureJob]:
        for item, _, rows in todo:
            samples = item.samples().take(pa.array(rows))
            for start in range(0, max(1, len(rows)), _SLICE):
                part = samples.slice(start, _SLICE).combine_chunks()
                yield MeasureJob(item.shard, part, template_folder, settings, engine)

    results = executor.map(measure, jobs())
    with progress.stage("measure", sum(len(rows) for _, _, rows in todo), "samples") as advance:
        for item, path, rows in todo:
            tables: list[pa.Table] = []
            while not tables or sum(table.num_rows for table in tables) < len(rows):
                tables.append(next(results))
                advance(tables[-1].num_rows)
            if len(rows) < item.num_samples:
                tables.insert(0, pq.read_table(path))
            write_table(_in_place(pa.concat_tables(tables), rows), path)
    measured = {path for item, path, rows in todo if len(rows) == item.num_samples}
    return [MeasuredShard(item.shard, path, path not in measured) for item, path in zip(indexed, paths, strict=True)]


def _todo(
    indexed: list[IndexedShard], paths: list[Path], executor: LocalExecutor
) -> list[tuple[IndexedShard, Path, Ints]]:
    """Shards that are not in the cache, and of the others the rows whose media are no longer what was measured."""
    todo = []
    with_files = [(i.shard, p) for i, p in zip(indexed, paths, strict=True) if i.shard.lines and p.exists()]
    stale = dict(zip((path for _, path in with_files), executor.map(stale_rows, with_files), strict=True))
    for item, path in zip(indexed, paths, strict=True):
        rows = np.array(stale.get(path, []), np.int64) if path.exists() else np.arange(item.num_samples)
        if len(rows) or not path.exists():
            todo.append((item, path, rows))
    return todo


def _in_place(table: pa.Table, rows: Ints) -> pa.Table:
    """A table whose last rows take the place of some of those before; as it is where it has no others."""
    num_kept = table.num_rows - len(rows)
    if not num_kept:
        return table
    order = np.arange(num_kept)
    order[rows] = num_kept + np.arange(len(rows))
    return table.take(pa.array(order))


def check_unchanged(
    indexed: list[IndexedShard], measured: list[MeasuredShard], executor: LocalExecutor, progress: Progress
) -> None:
    """Compare the headers of shards that were not read in this run with those they were measured with.

    Raises:
        PackError: a shard was written anew, with size and time as before. Its files are dropped from the cache.
    """
    paths = {item.shard: item.path for item in indexed}
    cached = [item for item in measured if item.was_cached]
    with progress.stage("compare", len(cached), "shards") as advance:
        same = executor.map(_is_unchanged, ((item.shard, paths[item.shard]) for item in cached))
        for item, is_same in zip(cached, same, strict=True):
            advance(1)
            if not is_same:
                for path in (paths[item.shard], item.path):
                    path.unlink(missing_ok=True)
                raise PackError(f"{item.shard.path} changed since it was measured, keeping its time: run again")


def _is_unchanged(job: tuple[Shard, Path]) -> bool:
    shard, path = job
    return reader.is_unchanged(shard, pq.read_schema(path))


def _index_one(job: tuple[Shard, Path]) -> None:
    write_table(reader.index_shard(job[0]), job[1])


def _key(shard: Shard, how: list[object]) -> str:
    lines = None if shard.lines is None else asdict(shard.lines)
    identity = [os.path.realpath(shard.path), shard.size, shard.mtime_ns, lines, how]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]


def write_table(table: pa.Table, path: Path) -> None:
    """Write a Parquet file, whole, and its folder where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = pa.BufferOutputStream()
    pq.write_table(table, file)
    write_whole(path, file.getvalue())
