"""Indexes where each sample of a shard lies, keeps the index in the cache, and draws samples from it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa

from energon_pack.errors import PackError
from energon_pack.lengths.table_cache import Piece, RowRun, TableCache, key_of, write_cache_file
from energon_pack.run.seeded_random import Ints
from energon_pack.run.stores.requests import reraising_store_errors
from energon_pack.run.workshop import Workshop
from energon_pack.sources import reader, wds
from energon_pack.sources.sample_ratio import count_earlier_occurrences
from energon_pack.sources.shard import Shard, TarShard
from energon_pack.sources.storage import call_counting_read_bytes
from energon_pack.sources.tar import NOT_A_TAR

_JOB_SHARDS, _JOB_BYTES = 256, 64 << 20  # shards in one job that reads headers
_INDEX_ROWS = 50_000  # rows of a file


@dataclass(frozen=True)
class IndexedShard:
    """A source shard, the place of its index in the cache (`wds.INDEX_SCHEMA`: a row a sample), and its drawn rows."""

    shard: Shard
    key: str  # its key in the cache
    pieces: list[Piece]
    num_rows: int
    #: the digests of the whole shard that `Shard.is_unchanged` compares
    index_metadata: dict[str, str]
    rows: Ints | None = None  # ascending; a sample drawn twice stands twice; None: all
    draw_settings: tuple[float | str, ...] = ()  # the settings that `rows` depend on

    @property
    def num_samples(self) -> int:
        return self.num_rows if self.rows is None else len(self.rows)

    @cached_property
    def earlier_draw_counts(self) -> Ints | None:
        """For each drawn row, how many earlier rows draw the same sample; None: all samples are drawn, each once."""
        return None if self.rows is None else count_earlier_occurrences(self.rows)

    @property
    def num_repeated(self) -> int:
        return 0 if self.earlier_draw_counts is None else int(np.count_nonzero(self.earlier_draw_counts))


def index_shards(shards: list[Shard], keep_damaged: bool, seed: int, workshop: Workshop) -> list[IndexedShard]:
    """Index every shard that the cache lacks, and draw its samples: a `ratio` of 0.5 draws half of them, 2 all twice.

    Raises:
        PackError: a tar is compressed; or, unless `keep_damaged`, a shard is damaged, or its keys have dots.
    """
    cache = index_cache(workshop)
    keys = [_key(shard) for shard in shards]
    known = [_find_indexed(cache, shard, key) for shard, key in zip(shards, keys, strict=True)]
    todo = [number for number, item in enumerate(known) if item is None]
    jobs = [
        (cache.folder, cache.number, [shards[number] for number in batch], [keys[number] for number in batch])
        for batch in group_shards_into_jobs(todo, shards)
    ]
    size = sum(shards[number].size for number in todo)
    with workshop.progress.stage("index", len(todo), "shards", size) as advance:
        results = workshop.executor.map(partial(call_counting_read_bytes, _index_job), jobs, are_short=True)
        for (num_shards, size, paths), num_bytes in results:
            for path in paths:
                cache.add_file(path)
            workshop.progress.add(num_bytes=num_bytes)
            advance(num_shards, size)
    for number in todo:
        known[number] = _find_indexed(cache, shards[number], keys[number])
    indexed = [item for item in known if item is not None]
    assert len(indexed) == len(shards)
    if not keep_damaged:
        refuse_damaged_sources((item.shard, item.index_metadata) for item in indexed)
    return [_with_drawn_rows(item, seed) for item in indexed]


def refuse_damaged_sources(indexed: Iterable[tuple[Shard, Mapping[str, str]]]) -> None:
    """Raise PackError if one of these shards (shard, metadata of its index) is damaged or has keys with dots."""
    damaged: list[tuple[Shard, int, str]] = []
    for shard, about in indexed:
        if dotted := wds.dotted_keys_error(shard.path, about):
            raise PackError(dotted)
        damaged += [(shard, offset, defect) for offset, defect in wds.parse_index_damage(about)]
    if damaged:
        raise _damage_error(*damaged[0], len(damaged) - 1)


def _damage_error(shard: Shard, offset: int, defect: str, num_others: int) -> PackError:
    """Return the error for a damaged shard: the defect at this byte, and the number of further defects."""
    more = f" (and {num_others:,} more like it)" if num_others else ""
    if defect.startswith(NOT_A_TAR):
        return PackError(f"{shard.path} is {defect}{more}; source.on_damaged=keep leaves it out")
    where = f"{'tar' if isinstance(shard, TarShard) else 'file'} {shard.path}: {defect} at byte {offset}{more}"
    return PackError(f"damaged {where}; source.on_damaged=keep packs what is whole")


def _with_drawn_rows(item: IndexedShard, seed: int) -> IndexedShard:
    rows = item.shard.drawn(item.num_rows, seed)
    if rows is None:
        return item
    taken = item.shard.own.taken
    by = (item.shard.ratio, seed, item.shard.name, *(() if taken is None else astuple(taken)))
    return replace(item, rows=rows, draw_settings=by)


def every_nth_sample(step: int, indexed: Sequence[IndexedShard]) -> list[IndexedShard]:
    """Return the shards with only every `step`-th sample drawn: samples 0, step, 2·step … counted across all shards."""
    ends = accumulate((item.num_samples for item in indexed), initial=0)
    firsts = [-start % step for start, _ in zip(ends, indexed, strict=False)]
    return [
        replace(
            item,
            rows=(np.arange(item.num_rows) if item.rows is None else item.rows)[first::step],
            draw_settings=(*item.draw_settings, first, step),
        )
        for item, first in zip(indexed, firsts, strict=True)
    ]


def first_samples(indexed: list[IndexedShard], limit: int | None) -> list[IndexedShard]:
    """Return the shards of the first `limit` samples, the last shard cut; None: all. Their cache keys stay the same."""
    if limit is None:
        return indexed
    first = list[IndexedShard]()
    for item in indexed:
        if limit <= 0:
            break
        rows = np.arange(item.num_rows) if item.rows is None else item.rows
        first.append(item if len(rows) <= limit else replace(item, rows=rows[:limit]))
        limit -= len(rows)
    return first


def _index_job(job: tuple[Path, int, list[Shard], list[str]]) -> tuple[int, int, list[Path]]:
    """Index shards into files of the cache, in a worker; return the number of shards, their bytes, and the paths."""
    folder, number, shards, keys = job
    tables: list[pa.Table] = []
    records: list[RowRun] = []
    paths: list[Path] = []
    num_rows = 0

    def write() -> None:
        nonlocal num_rows
        paths.append(write_cache_file(folder, number, pa.concat_tables(tables), records))
        tables.clear()
        records.clear()
        num_rows = 0

    for shard, key in zip(shards, keys, strict=True):
        with reraising_store_errors():
            table = shard.index()
        about = wds.index_metadata(table)
        about["num_rows"] = str(table.num_rows)
        for start in range(0, max(1, table.num_rows), _INDEX_ROWS):
            part = table.slice(start, _INDEX_ROWS)
            tables.append(part.replace_schema_metadata(None))
            records.append(RowRun(key, start, part.num_rows, about))
            num_rows += part.num_rows
            if num_rows >= _INDEX_ROWS:
                write()
    if tables:
        write()
    return len(shards), sum(shard.size for shard in shards), paths


def _find_indexed(cache: TableCache, shard: Shard, key: str) -> IndexedShard | None:
    about = cache.note(key)
    if about is None:
        return None
    num_rows = int(about["num_rows"])
    pieces, missing = cache.find(key, num_rows)
    return None if len(missing) else IndexedShard(shard, key, pieces, num_rows, about)


def group_shards_into_jobs(shard_indices: Sequence[int], shards: Sequence[Shard]) -> Iterator[list[int]]:
    """Group shards, by `shard_indices`, into jobs of at most 256 shards and 64 MiB, or of one large shard."""
    batch: list[int] = []
    num_bytes = 0
    for number in shard_indices:
        if batch and (len(batch) == _JOB_SHARDS or num_bytes + shards[number].size > _JOB_BYTES):
            yield batch
            batch, num_bytes = [], 0
        batch.append(number)
        num_bytes += shards[number].size
    if batch:
        yield batch


def index_cache(workshop: Workshop) -> TableCache:
    return TableCache(workshop.cache("index", f"v{reader.INDEX_VERSION}"))


def _key(shard: Shard) -> str:
    return key_of(*shard.identity)
