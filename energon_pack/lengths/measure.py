"""Measures the exact token length of each sample and keeps it in the cache, by source shard.

    shard ──index──► index/ ──measure, in slices──► lengths/<model and settings>/

The key of a shard is a hash of everything its rows depend on: its identity and, for lengths, the rows that are drawn.
`packing.*` is not in it, so a sweep over packing settings measures once. Each slice is kept as soon as it is measured:
the next run continues there after an interruption, even in the middle of a file.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.errors import PackError
from energon_pack.lengths.index import IndexedShard, group_shards_into_jobs, index_cache
from energon_pack.lengths.kept_tokens import remove_oldest_token_files, remove_token_files
from energon_pack.lengths.method import Method
from energon_pack.lengths.same_media import StaleRows, rows_to_cache, stale_rows
from energon_pack.lengths.table_cache import Chunk, Piece, RowRun, TableCache, chunks_of_pieces, key_of
from energon_pack.lengths.worker import BEGINNINGS_VERSION, LENGTHS_VERSION, MeasureJob, measure
from energon_pack.run.packages import version_of
from energon_pack.run.seeded_random import Ints
from energon_pack.run.workshop import Workshop
from energon_pack.samples.flavors.fit import FIT_RULES
from energon_pack.samples.media.kinds import VIDEO_EXTENSIONS
from energon_pack.sources import reader
from energon_pack.sources.sample_ratio import drawn_keys
from energon_pack.sources.shard import Shard
from energon_pack.sources.storage import call_counting_read_bytes
from energon_pack.templates.families import ASKING_FAMILIES
from energon_pack.templates.processor import load_saved_template
from energon_pack.templates.tokens.engine import TokenEngineError

_JOB_SAMPLES = 2000  # samples per job: so few that one shard keeps all cores busy
_SMALL_COST = 10_000_000  # a cost (`_measuring_cost`) so small that one process finishes before others have started
#: jobs, and samples per job, of a very large source: one process deals jobs to a thousand machines
_MAX_JOBS, _MAX_JOB_SAMPLES = 20_000, 20_000
#: time per sample without its text, and per medium, as the number of bytes of text that take as long
_SAMPLE_COST, _IMAGE_COST, _VIDEO_COST = 1000, 2000, 80_000
_COST_COLUMNS = ("record_size", "parts")  # the columns that the decision needs
Lengths = TypeVar("Lengths")
#: of names of folders with lengths, in the cache: lengths of another version are not read
KEY_PREFIX = f"v{reader.INDEX_VERSION}.{LENGTHS_VERSION}-"
_IS_VIDEO = rf"(?i)\.({'|'.join(VIDEO_EXTENSIONS)})$"


@dataclass(frozen=True)
class MeasuredShard:
    """A shard whose drawn samples are all measured, and where the cache has their rows of `LENGTHS_SCHEMA`."""

    indexed: IndexedShard
    pieces: list[Piece]
    was_cached: bool  # the whole shard, or a part of it

    @property
    def shard(self) -> Shard:
        return self.indexed.shard


def measure_shards(indexed: list[IndexedShard], method: Method, workshop: Workshop) -> list[MeasuredShard]:
    """Measure every sample that is not in the cache yet, or whose media changed; return all shards with their lengths.

    Raises:
        PackError: `measure.engine` can't be used.
    """
    cache = lengths_cache(method, workshop)
    keys = [_lengths_key(item) for item in indexed]
    found = [cache.find(key, item.num_samples) for key, item in zip(keys, indexed, strict=True)]
    pieces = [pieces for pieces, _ in found]
    was_cached = [bool(there) or not item.num_samples for there, item in zip(pieces, indexed, strict=True)]
    for number in _measure(indexed, cache, keys, found, method, workshop):
        pieces[number], missing = cache.find(keys[number], indexed[number].num_samples)
        assert not len(missing)
    return list(map(MeasuredShard, indexed, pieces, was_cached))


def measure_rows(indexed: list[IndexedShard], rows: Sequence[Ints], method: Method, workshop: Workshop) -> int:
    """Measure only these rows of each shard, and keep their lengths in the cache; return how many rows are given."""
    cache = lengths_cache(method, workshop)
    keys = [_lengths_key(item) for item in indexed]
    found = [cache.find(key, item.num_samples) for key, item in zip(keys, indexed, strict=True)]
    _measure(indexed, cache, keys, found, method, workshop, rows)
    return sum(map(len, rows))


def _measure(
    indexed: list[IndexedShard],
    cache: TableCache,
    keys: Sequence[str],
    found: Sequence[tuple[list[Piece], Ints]],
    method: Method,
    workshop: Workshop,
    wanted: Sequence[Ints] | None = None,
) -> list[int]:
    """Measure missing and stale samples and keep them; return the numbers of the shards that have new rows."""
    pieces = [pieces for pieces, _ in found]
    todo = {number: missing for number, (_, missing) in enumerate(found) if len(missing)}
    stale: StaleRows = {}
    for number, of_pieces in stale_rows([item.shard for item in indexed], pieces, workshop.executor).items():
        missing = found[number][1]
        there = np.delete(np.arange(indexed[number].num_samples), missing).tolist()
        stale[number] = {there[row]: said for row, said in of_pieces.items()}
        todo[number] = np.union1d(missing, np.array([*stale[number]]))
    if wanted is not None:
        todo = {number: rows for number in todo if len(rows := np.intersect1d(todo[number], wanted[number]))}
    if todo and method.engine != "auto":
        try:
            load_saved_template(method.template_folder).engine(method.engine)
        except TokenEngineError as error:
            raise PackError(str(error)) from None

    slices: list[tuple[Ints, Ints]] = []  # running jobs: for each sample, its shard's number and its row there
    costs: list[int] = []  # the costs of these jobs

    num = sum(map(len, todo.values()))
    total_cost = _total_cost(indexed, todo)
    size = _MAX_JOB_SAMPLES if total_cost < _SMALL_COST else min(max(_JOB_SAMPLES, num // _MAX_JOBS), _MAX_JOB_SAMPLES)

    def jobs() -> Iterator[MeasureJob]:
        for numbers, rows, samples in _samples(indexed, todo):
            for start in range(0, len(rows), size):
                here = slice(start, start + size)
                slices.append((numbers[here], rows[here]))
                shards = [indexed[number].shard for number in numbers[here].tolist()]
                # Arrow sends a slice together with all the rows that it was cut from.
                part = samples.take(np.arange(start, start + len(shards))).combine_chunks()
                costs.append(_measuring_cost(part))
                yield MeasureJob(shards, part, method, cache.folder)

    num_wanted = sum(item.num_samples for item in indexed) if wanted is None else sum(map(len, wanted))
    workshop.progress.add(cached=num_wanted - num)
    with workshop.progress.stage("measure", num, "samples", total_cost) as advance:
        try:
            for table, num_bytes in workshop.executor.map(partial(call_counting_read_bytes, measure), jobs()):
                cache_measured_rows(cache, keys, table, *slices.pop(0), stale)
                workshop.progress.add(
                    table.num_rows, num_bytes, skipped=Counter(table["reason"].drop_null().to_pylist())
                )
                advance(table.num_rows, costs.pop(0))
        finally:
            cache.flush()
            if todo:
                remove_oldest_token_files(cache.folder.parent)  # once a run: it looks at every file of the cache
    return [*todo]


def _samples(indexed: Sequence[IndexedShard], todo: dict[int, Ints]) -> Iterator[tuple[Ints, Ints, pa.Table]]:
    """Yield the samples to measure, many at a time: their shards' numbers, their row numbers there, their index rows.

    A sample that is drawn a second time has `@2` at the end of its key.
    """
    for chunk, places, rows in _index_places(indexed, todo):
        table = chunk.read().take(pa.array(places))
        copies = [_earlier_draw_counts(indexed[number], mine) for number, mine in zip(chunk.numbers, rows, strict=True)]
        keys = drawn_keys(table["key"].to_pylist(), np.arange(table.num_rows), np.concatenate(copies))
        table = table.set_column(0, table.schema.field("key"), pa.array(keys, pa.string()))
        yield np.repeat(chunk.numbers, list(map(len, rows))), np.concatenate(rows), table


def _index_places(indexed: Sequence[IndexedShard], todo: dict[int, Ints]) -> Iterator[tuple[Chunk, Ints, list[Ints]]]:
    """Yield where the samples to measure are in the index: a chunk, its rows, each piece's row numbers in its shard."""
    of_index = {n: rows if (drawn := indexed[n].rows) is None else drawn[rows] for n, rows in todo.items()}
    for chunk in chunks_of_pieces([(number, indexed[number].pieces) for number in todo]):
        places, rows = [], []
        before = 0
        for number, start, piece in zip(chunk.numbers, chunk.starts, chunk.pieces, strict=True):
            wanted = of_index[number]
            here = slice(*np.searchsorted(wanted, [start, start + piece.num_rows]))
            places.append(wanted[here] - start + before)
            rows.append(todo[number][here])
            before += piece.num_rows
        yield chunk, np.concatenate(places), rows


def _total_cost(indexed: Sequence[IndexedShard], todo: dict[int, Ints]) -> int:
    return sum(
        _measuring_cost(chunk.read(_COST_COLUMNS).take(pa.array(places)))
        for chunk, places, _ in _index_places(indexed, todo)
    )


def _measuring_cost(samples: pa.Table) -> int:
    """Estimate how long measuring takes, in bytes of text; the media of a JSONL file are not known yet."""
    names = pc.struct_field(pc.list_flatten(samples["parts"]), "name")
    num_videos = pc.sum(pc.match_substring_regex(names, _IS_VIDEO)).as_py() or 0
    text = pc.sum(samples["record_size"]).as_py() or 0
    num_others = len(names) - num_videos
    return int(text + _SAMPLE_COST * samples.num_rows + _IMAGE_COST * num_others + _VIDEO_COST * num_videos)


def _earlier_draw_counts(item: IndexedShard, rows: Ints) -> Ints:
    return np.zeros(len(rows), np.int64) if item.earlier_draw_counts is None else item.earlier_draw_counts[rows]


def cache_measured_rows(
    cache: TableCache, keys: Sequence[str], table: pa.Table, shard_indices: Ints, row_numbers: Ints, stale: StaleRows
) -> None:
    """Add measured rows to the cache, except samples that are left out again for the same reason.

    Args:
        keys: the cache key of each shard.
        numbers, rows: for each row of `table`, the index of its shard in `keys`, and its row number in that shard.
        stale: the samples that were measured again, as `stale_rows` returns them.
    """
    is_new = rows_to_cache(table, shard_indices, row_numbers, stale)
    if is_new.any():
        cache.add(table.filter(pa.array(is_new)), _row_runs(keys, shard_indices[is_new], row_numbers[is_new]))


def _row_runs(keys: Sequence[str], numbers: Ints, rows: Ints) -> list[RowRun]:
    """Assign the rows of a slice to their shards: one record for each run of consecutive rows."""
    is_first = np.concatenate(([True], (np.diff(numbers) != 0) | (np.diff(rows) != 1)))
    starts = np.flatnonzero(is_first)
    sizes = np.diff([*starts, len(rows)])
    return [
        RowRun(keys[number], start, size)
        for number, start, size in zip(numbers[starts].tolist(), rows[starts].tolist(), sizes.tolist(), strict=True)
    ]


class LengthsWrong(PackError):
    """The full processor makes other tokens of a sample than were measured: all lengths by this method are in doubt."""


@contextmanager
def dropping_wrong_lengths(measured: Sequence[MeasuredShard], method: Method, workshop: Workshop) -> Iterator[None]:
    """In this context, SourceChanged removes the lengths of the changed shard from the cache, and LengthsWrong those of
    all shards, so that the next run measures again; after LengthsWrong it uses the tokenizer itself as engine.
    """
    try:
        yield
    except (reader.SourceChanged, LengthsWrong) as error:
        wrong = [item.indexed for item in measured]
        if isinstance(error, reader.SourceChanged):
            wrong = [item for item in wrong if item.shard.path == error.path]
            index_cache(workshop).forget(item.key for item in wrong)
        forget_lengths((method_key(method), [*map(_lengths_key, wrong)]), workshop, isinstance(error, LengthsWrong))
        raise


def replace_engine_if_distrusted(method: Method, workshop: Workshop) -> Method:
    """Return the method; with the engine `tokenizers`, which is slower and exact, if its lengths were wrong before."""
    return (
        replace(method, engine="tokenizers") if _wrong_lengths_file(method_key(method), workshop).exists() else method
    )


def _wrong_lengths_file(folder: str, workshop: Workshop) -> Path:
    """Return the file in a folder of lengths whose existence says that some of them turned out wrong."""
    return workshop.cache("lengths", folder) / "were_wrong"


def cache_keys_of(measured: Sequence[MeasuredShard], method: Method) -> tuple[str, list[str]]:
    """Return the name of the cache folder for lengths by this method, and each shard's key, for `forget_lengths`."""
    return method_key(method), [_lengths_key(item.indexed) for item in measured]


def forget_lengths(cached: tuple[str, list[str]], workshop: Workshop, are_wrong: bool = True) -> None:
    """Remove the lengths that `cache_keys_of` named from the cache, and all kept tokens of their folder.

    Args:
        are_wrong: whether the lengths were wrong: then later runs use the engine `tokenizers`.
    """
    folder, keys = cached
    if are_wrong:
        _wrong_lengths_file(folder, workshop).touch()
    TableCache(workshop.cache("lengths", folder)).forget(keys)
    remove_token_files(workshop.cache("lengths", folder))


def refuse_changed_shards(measured: Sequence[MeasuredShard], workshop: Workshop) -> None:
    """Compare the headers of shards whose lengths came from the cache with the headers they were measured with.

    Raises:
        SourceChanged: the headers differ, though size and modification time of the shard are the same.
    """
    cached = [item.indexed for item in measured if item.was_cached]
    jobs = (
        [(cached[number].shard, cached[number].index_metadata) for number in batch]
        for batch in group_shards_into_jobs(range(len(cached)), [item.shard for item in cached])
    )
    size = sum(item.shard.size for item in cached)
    with workshop.progress.stage("compare", len(cached), "shards", size) as advance:
        for num_same, size, changed in workshop.executor.map(_first_changed, jobs, are_short=True):
            advance(num_same, size)
            if changed is not None:
                raise reader.SourceChanged(changed.path)


def _first_changed(job: list[tuple[Shard, dict[str, str]]]) -> tuple[int, int, Shard | None]:
    """Return the number of unchanged shards before the first changed one, their bytes, and that changed shard."""
    size = 0
    for number, (shard, about) in enumerate(job):
        if not shard.is_unchanged(about):
            return number, size, shard
        size += shard.size
    return len(job), size, None


def lengths_cache(method: Method, workshop: Workshop) -> TableCache:
    """Open the cache of the lengths by this method."""
    return TableCache(workshop.cache("lengths", method_key(method)))


def method_key(method: Method) -> str:
    """Return the name of the lengths by this method in the cache: their version, and a hash of all they depend on."""
    template = method.identity
    asked = [version_of(name) for name in ("transformers", "torchvision")] if template.family in ASKING_FAMILIES else []
    chosen = [*asked, *(template.kinds or [])]  # not among the settings in the fingerprint
    chosen += [f"beginnings {BEGINNINGS_VERSION}"] if method.with_beginnings else []
    hashed = key_of(template.fingerprint, template.labels, method.read.identity, [*FIT_RULES], *chosen)
    return f"{KEY_PREFIX}{hashed}"


def _lengths_key(item: IndexedShard) -> str:
    later = filter(None, (item.shard.own.identity, "videos are decoded" * item.shard.decodes_videos))
    depends_on = (item.draw_settings, *later)
    return key_of(item.key, *depends_on) if any(depends_on) else item.key
