"""Exact token lengths of all samples, kept in the cache by source shard.

    shard ──index──► index/ ──measure, in slices──► lengths/<model and settings>/

The key of a shard is all its rows depend on: its identity, and for lengths what is drawn of it. `packing.*` is not in
it, so a sweep over packing settings measures once. A slice is kept when it is measured: a run that is interrupted is
gone on from there, in the middle of a file too.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa

from energon_pack.errors import PackError
from energon_pack.lengths.changed_media import stale_rows
from energon_pack.lengths.measure import LENGTHS_VERSION, MeasureJob, measure
from energon_pack.lengths.method import Method
from energon_pack.lengths.table_cache import Piece, Record, TableCache, in_chunks, key_of, write_tables
from energon_pack.run.context import Run
from energon_pack.run.seeded import Ints
from energon_pack.samples.flavors import PACKED
from energon_pack.sources import reader, wds
from energon_pack.sources.draws import copy_numbers, drawn_keys, drawn_rows
from energon_pack.sources.shard import Shard
from energon_pack.templates.processor import load_saved
from energon_pack.templates.tokens.counter import CountingError

_SLICE = 2000  # samples a job: small enough that one shard uses all cores
_JOB_SHARDS, _JOB_BYTES = 256, 64 << 20  # shards of a job that reads headers
_INDEX_ROWS = 50_000  # of a file


@dataclass(frozen=True)
class IndexedShard:
    """A shard, where its rows of `wds.INDEX_SCHEMA` are, and what of it is drawn."""

    shard: Shard
    key: str  # in the cache
    pieces: list[Piece]
    num_rows: int
    #: of the whole shard: what `Shard.is_unchanged` asks for
    about: dict[str, str]
    rows: Ints | None = None  # ascending, some several times; None: all
    copies: Ints | None = None  # of each of them how often it was drawn before, in this slice or in another
    how_drawn: tuple[float | str, ...] = ()  # what `rows` depend on

    @property
    def num_samples(self) -> int:
        return self.num_rows if self.rows is None else len(self.rows)

    @property
    def num_repeated(self) -> int:
        return 0 if self.copies is None else int(np.count_nonzero(self.copies))


@dataclass(frozen=True)
class MeasuredShard:
    """A shard, and where its rows of `LENGTHS_SCHEMA` are."""

    indexed: IndexedShard
    pieces: list[Piece]
    was_cached: bool  # some of it, or all

    @property
    def shard(self) -> Shard:
        return self.indexed.shard


def index_shards(shards: list[Shard], keep_damaged: bool, run: Run) -> list[IndexedShard]:
    """Index every shard that is not in the cache yet.

    Raises:
        PackError: a tar is compressed, or damaged and `keep_damaged` is off.
    """
    cache = _index_cache(run)
    keys = [_key(shard) for shard in shards]
    found = [_indexed(cache, shard, key) for shard, key in zip(shards, keys, strict=True)]
    todo = [number for number, item in enumerate(found) if item is None]
    jobs = (
        (cache.folder, cache.number, [shards[number] for number in some], [keys[number] for number in some])
        for some in _batches(todo, shards)
    )
    with run.progress.stage("index", len(todo), "shards") as advance:
        for num_shards, paths in run.executor.map(_index_some, jobs, are_short=True):
            for path in paths:
                cache.take_in(path)
            advance(num_shards)
    for number in todo:
        found[number] = _indexed(cache, shards[number], keys[number])
    indexed = [item for item in found if item is not None]
    assert len(indexed) == len(shards)
    damaged = [
        f"{item.shard.path}: {what} at byte {offset}" for item in indexed for offset, what in wds.damage_of(item.about)
    ]
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
        ratio = item.shard.ratio
        if ratio == num_slices == 1:
            drawn.append(item)
            continue
        rows = drawn_rows(item.num_rows, ratio, item.shard.name, seed)
        first = (number - start) % num_slices
        start += len(rows)
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


def measure_shards(indexed: list[IndexedShard], method: Method, run: Run) -> list[MeasuredShard]:
    """Measure every sample that is not in the cache yet, or whose media are no longer what was measured.

    Raises:
        PackError: `measure.engine` can't be used.
    """
    cache = _lengths_cache(method, run)
    keys = [_lengths_key(item) for item in indexed]
    found = [cache.find(key, item.num_samples) for key, item in zip(keys, indexed, strict=True)]
    pieces = [pieces for pieces, _ in found]
    was_cached = [bool(there) or not item.num_samples for there, item in zip(pieces, indexed, strict=True)]
    todo = {number: missing for number, (_, missing) in enumerate(found) if len(missing)}
    for number, stale in stale_rows([item.shard for item in indexed], pieces, run.executor).items():
        missing = found[number][1]
        there = np.delete(np.arange(indexed[number].num_samples), missing)
        todo[number] = np.union1d(missing, there[stale])
    if todo and method.engine != "auto":
        try:
            load_saved(method.template_folder).counter(method.engine)
        except CountingError as error:
            raise PackError(str(error)) from None

    slices: list[tuple[Ints, Ints]] = []  # at work: of each sample the number of its shard, and its own in that

    def jobs() -> Iterator[MeasureJob]:
        for numbers, rows, samples in _samples(indexed, todo):
            for start in range(0, len(rows), _SLICE):
                here = slice(start, start + _SLICE)
                slices.append((numbers[here], rows[here]))
                shards = [indexed[number].shard for number in numbers[here].tolist()]
                part = samples.slice(start, _SLICE).combine_chunks()
                yield MeasureJob(shards, part, method)

    with run.progress.stage("measure", sum(map(len, todo.values())), "samples") as advance:
        try:
            for table in run.executor.map(measure, jobs()):
                cache.add(table, _records(keys, *slices.pop(0)))
                advance(table.num_rows)
        finally:
            cache.flush()
    for number in todo:
        pieces[number], missing = cache.find(keys[number], indexed[number].num_samples)
        assert not len(missing)
    return list(map(MeasuredShard, indexed, pieces, was_cached))


def _samples(indexed: Sequence[IndexedShard], todo: dict[int, Ints]) -> Iterator[tuple[Ints, Ints, pa.Table]]:
    """The samples to measure, many at a time: of each the number of its shard, its own in that, and its index row.

    `@2` is added to the key of one that is drawn a second time.
    """
    of_index = {n: rows if (drawn := indexed[n].rows) is None else drawn[rows] for n, rows in todo.items()}
    for chunk in in_chunks((number, indexed[number].pieces) for number in todo):
        places, numbers, rows = [], [], []
        before = 0
        for number, start, piece in zip(chunk.numbers, chunk.starts, chunk.pieces, strict=True):
            wanted = of_index[number]
            here = slice(*np.searchsorted(wanted, [start, start + piece.num_rows]))
            places.append(wanted[here] - start + before)
            rows.append(todo[number][here])
            numbers.append(np.full(len(rows[-1]), number))
            before += piece.num_rows
        table = chunk.read().take(pa.array(np.concatenate(places)))
        copies = [_copies(indexed[number], mine) for number, mine in zip(chunk.numbers, rows, strict=True)]
        keys = drawn_keys(table["key"].to_pylist(), np.arange(table.num_rows), np.concatenate(copies))
        table = table.set_column(0, table.schema.field("key"), pa.array(keys, pa.string()))
        yield np.concatenate(numbers), np.concatenate(rows), table


def _copies(item: IndexedShard, rows: Ints) -> Ints:
    return np.zeros(len(rows), np.int64) if item.copies is None else item.copies[rows]


def _records(keys: Sequence[str], numbers: Ints, rows: Ints) -> list[Record]:
    """Whose the rows of a slice are, by shard and by runs of its rows."""
    is_first = np.concatenate(([True], (np.diff(numbers) != 0) | (np.diff(rows) != 1)))
    starts = np.flatnonzero(is_first)
    sizes = np.diff([*starts, len(rows)])
    return [
        Record(keys[number], start, size)
        for number, start, size in zip(numbers[starts].tolist(), rows[starts].tolist(), sizes.tolist(), strict=True)
    ]


class LengthsWrong(PackError):
    """The full processor makes another length of a sample: none can be trusted."""


@contextmanager
def forgetting_wrong(measured: Sequence[MeasuredShard], method: Method, run: Run) -> Iterator[None]:
    """Have the next run measure anew what turns out to be wrong: a shard that changed, or all of these."""
    try:
        yield
    except (reader.SourceChanged, LengthsWrong) as error:
        wrong = [item.indexed for item in measured]
        if isinstance(error, reader.SourceChanged):
            wrong = [item for item in wrong if item.shard.path == error.path]
            _index_cache(run).forget(item.key for item in wrong)
        _lengths_cache(method, run).forget(map(_lengths_key, wrong))
        raise


def check_unchanged(measured: Sequence[MeasuredShard], run: Run) -> None:
    """Compare the headers of shards that were not read in this run with those they were measured with.

    Raises:
        SourceChanged: a shard was written anew, with size and time as before.
    """
    cached = [item.indexed for item in measured if item.was_cached]
    batches = _batches(range(len(cached)), [item.shard for item in cached])
    jobs = ([(cached[number].shard, cached[number].about) for number in batch] for batch in batches)
    with run.progress.stage("compare", len(cached), "shards") as advance:
        for num_same, changed in run.executor.map(_first_changed, jobs, are_short=True):
            advance(num_same)
            if changed is not None:
                raise reader.SourceChanged(changed.path)


def _first_changed(job: list[tuple[Shard, dict[str, str]]]) -> tuple[int, Shard | None]:
    """How many are unchanged, and the one after them."""
    for number, (shard, about) in enumerate(job):
        if not shard.is_unchanged(about):
            return number, shard
    return len(job), None


def _index_some(job: tuple[Path, int, list[Shard], list[str]]) -> tuple[int, list[Path]]:
    """Index shards into files of the cache; runs in a worker."""
    folder, number, shards, keys = job
    tables: list[pa.Table] = []
    records: list[Record] = []
    paths: list[Path] = []
    num_rows = 0

    def write() -> None:
        nonlocal num_rows
        paths.append(write_tables(folder, number, pa.concat_tables(tables), records))
        tables.clear()
        records.clear()
        num_rows = 0

    for shard, key in zip(shards, keys, strict=True):
        table = shard.index()
        about = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
        about["num_rows"] = str(table.num_rows)
        for start in range(0, max(1, table.num_rows), _INDEX_ROWS):
            part = table.slice(start, _INDEX_ROWS)
            tables.append(part.replace_schema_metadata(None))
            records.append(Record(key, start, part.num_rows, about))
            num_rows += part.num_rows
            if num_rows >= _INDEX_ROWS:
                write()
    if tables:
        write()
    return len(shards), paths


def _indexed(cache: TableCache, shard: Shard, key: str) -> IndexedShard | None:
    about = cache.note(key)
    if about is None:
        return None
    num_rows = int(about["num_rows"])
    pieces, missing = cache.find(key, num_rows)
    return None if len(missing) else IndexedShard(shard, key, pieces, num_rows, about)


def _batches(numbers: Sequence[int], shards: Sequence[Shard]) -> Iterator[list[int]]:
    """Some shards a job: many small ones, or a large one."""
    batch: list[int] = []
    num_bytes = 0
    for number in numbers:
        if batch and (len(batch) == _JOB_SHARDS or num_bytes + shards[number].size > _JOB_BYTES):
            yield batch
            batch, num_bytes = [], 0
        batch.append(number)
        num_bytes += shards[number].size
    if batch:
        yield batch


def _index_cache(run: Run) -> TableCache:
    return TableCache(run.cache("index", f"v{reader.INDEX_VERSION}"))


def _lengths_cache(method: Method, run: Run) -> TableCache:
    template = method.identity
    versions = LENGTHS_VERSION, reader.INDEX_VERSION, [*PACKED]
    how = key_of(template.fingerprint, template.train_on, asdict(method.read), *versions)
    return TableCache(run.cache("lengths", how))


def _key(shard: Shard) -> str:
    return key_of(*shard.identity)


def _lengths_key(item: IndexedShard) -> str:
    return key_of(item.key, item.how_drawn) if item.how_drawn else item.key
