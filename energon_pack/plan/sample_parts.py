"""Put parts in place of samples that are too long (`overlong`) or expanded (`expand`).

    Lengths, which samples ──jobs──► rows of their parts, kept by shard ──► Lengths with these parts

Each part is a conversation of its own. It is measured like any sample, and its row in the plan says which piece of the
whole it is.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.lengths.measure import MeasuredShard
from energon_pack.lengths.method import Method
from energon_pack.lengths.same_media import MediaHasher
from energon_pack.lengths.table_cache import Chunk, Piece, RowRun, TableCache, chunks_of_pieces, key_of
from energon_pack.lengths.worker import LengthsRow, build_lengths_table, hash_beginnings, hash_media
from energon_pack.plan.items import REFUSED_SCHEMA, Lengths
from energon_pack.run.bounded_memory import split_into_blocks
from energon_pack.run.seeded_random import Ints
from energon_pack.run.workshop import Workshop
from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.cut import Cut
from energon_pack.samples.sample import media_type
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.reader import SourceChanged, SourceReader
from energon_pack.sources.sample import cut_sample, read_measured_sample
from energon_pack.sources.shard import Shard
from energon_pack.sources.source_file import rows_of
from energon_pack.sources.storage import call_counting_read_bytes
from energon_pack.sources.tar import num_tar_bytes
from energon_pack.templates.processor import load_saved_template
from energon_pack.templates.sample import Rendered, Sample
from energon_pack.templates.settings import TrainOn
from energon_pack.templates.template import Template

_SAMPLES_PER_JOB = 200  # samples a job


@dataclass(frozen=True)
class PartsJob:
    """A worker's job: samples to make parts of, each with its row in the table of lengths, and its shard."""

    shards: list[Shard]
    rows: pa.Table
    method: Method


class PartsRecipe(NamedTuple):
    """How a stage makes parts of samples: which samples, by which function, and under which cache key."""

    stage: str  # as progress shows it
    key: str  # cache key: a hash of everything that parts depend on, except the lengths
    make: Callable[["WholeSample"], list[LengthsRow]]  # makes the parts of a sample; none: it stays whole
    cut_type: pa.DataType
    select_rows: Callable[[pa.Table], npt.NDArray[np.bool_]]  # tells which rows of lengths may get parts
    columns: tuple[str, ...]  # the columns that `select_rows` reads


def make_parts(
    lengths: Lengths, may_have_parts: npt.NDArray[np.bool_], recipe: PartsRecipe, method: Method, workshop: Workshop
) -> Lengths:
    """Make parts of samples, in workers or from the cache, and return the lengths with them in place of their samples.

    `may_have_parts`: bool[num_samples]. A sample for which `recipe.make` returns no part stays whole.
    """
    items, measured = lengths.items, lengths.shards
    of_shards = set[int]()
    for block in split_into_blocks(lengths.num_samples):
        of_shards.update(np.unique(items.shard[block][may_have_parts[block]]).tolist())
    cache = TableCache(workshop.cache("cuts", recipe.key))
    keys = {
        number: key_of([(Path(path).stem, *rows) for path, *rows in measured[number].pieces])
        for number in sorted(of_shards)
    }
    todo = [number for number, key in keys.items() if _find_cached_parts(cache, key) is None]
    num_left = Counter(
        chain.from_iterable(numbers.tolist() for numbers, _ in _rows_to_cut(measured, todo, recipe, False))
    )
    num_parts = dict.fromkeys(num_left, 0)
    at_work: list[Ints] = []  # for each job, the shards of its samples
    make = partial(_parts_of_job, recipe.make, recipe.cut_type)

    def jobs() -> Iterator[PartsJob]:
        for numbers, rows in _rows_to_cut(measured, todo, recipe, True):
            for start in range(0, len(numbers), _SAMPLES_PER_JOB):
                at_work.append(numbers[start : start + _SAMPLES_PER_JOB])
                shards = [measured[number].shard for number in at_work[-1]]
                yield PartsJob(shards, rows.slice(start, _SAMPLES_PER_JOB), method)

    with workshop.progress.stage(recipe.stage, num_left.total(), "samples") as advance:
        try:
            for (table, sizes), num_bytes in workshop.executor.map(partial(call_counting_read_bytes, make), jobs()):
                records = []
                for number, size in zip(at_work[0].tolist(), sizes, strict=True):
                    records.append(RowRun(keys[number], num_parts[number], size))
                    num_parts[number] += size
                    num_left[number] -= 1
                    if not num_left[number]:  # only finished shards get a note
                        records.append(RowRun(keys[number], num_parts[number], 0, {"num_rows": str(num_parts[number])}))
                cache.add(table, records)
                workshop.progress.add(num_bytes=num_bytes)
                advance(len(at_work.pop(0)))
        finally:
            cache.flush()
    return _lengths_with_cached_parts(
        lengths, {number: _find_cached_parts(cache, key) or [] for number, key in keys.items()}, may_have_parts
    )


def _find_cached_parts(cache: TableCache, key: str) -> list[Piece] | None:
    """Return where the cache holds the parts of a shard's samples; None: it does not hold all of them."""
    about = cache.note(key)
    if about is None:
        return None
    pieces, missing = cache.find(key, int(about["num_rows"]))
    return None if len(missing) else pieces


def _rows_to_cut(
    measured: Sequence[MeasuredShard], numbers: Sequence[int], recipe: PartsRecipe, whole: bool
) -> Iterator[tuple[Ints, pa.Table]]:
    """Yield the samples of some shards that may get parts: the shard number of each, and a table of their rows.

    `whole`: read all columns of the rows, not only those that choose them.
    """
    for chunk in chunks_of_pieces([(number, measured[number].pieces) for number in numbers]):
        table = chunk.read(None if whole else recipe.columns)
        may_have_parts = recipe.select_rows(table)
        yield chunk.owners_of_rows[may_have_parts], table.filter(pa.array(may_have_parts))


def _lengths_with_cached_parts(
    lengths: Lengths, parts: dict[int, list[Piece]], may_have_parts: npt.NDArray[np.bool_]
) -> Lengths:
    """Find the rows of this run's samples among the cached parts of whole shards, and return the lengths with these."""
    chunks = list(chunks_of_pieces([*parts.items()]))
    ids = [_row_ids(chunk.owners_of_rows, chunk.read(["key"])) for chunk in chunks]
    known = pa.chunked_array(ids, pa.large_string())
    have_parts = lengths.scratch.zeros(lengths.num_samples, np.bool_)
    run_ids: list[pa.Array] = []
    for start, numbers, table in lengths.tables(["key"], with_parts=False):
        here = slice(start, start + table.num_rows)
        if may_have_parts[here].any():
            have_parts[here] = may_have_parts[here] & pc.is_in(_row_ids(numbers, table), known).to_numpy(
                zero_copy_only=False
            )
            run_ids.append(_row_ids(numbers, table).filter(pa.array(have_parts[here])))
    ours = pa.chunked_array(run_ids, pa.large_string())
    samples = np.flatnonzero(have_parts)
    chosen = []
    for chunk, chunk_ids in zip(chunks, ids, strict=True):
        places = pc.index_in(chunk_ids, ours)
        rows = np.flatnonzero(pc.is_valid(places).to_numpy(zero_copy_only=False))
        chosen.append((chunk, rows, samples[places.take(pa.array(rows)).to_numpy()]))
    return replace_samples_by_parts(lengths, chosen)


def replace_samples_by_parts(lengths: Lengths, parts: Iterable[tuple[Chunk, Ints, Ints]]) -> Lengths:
    """Put parts in place of samples that have no parts yet, and return the new lengths.

    If a part has a reason to be in no pack, its sample is left out for that reason. A row with the reason `cut_off` is
    no part: it counts the tokens of the sample that are in no part.

    Args:
        parts: a chunk of the cache, row numbers in it, and for each row the number of its sample.
    """
    cut = lengths.without_rows()
    cut.is_cut, is_out = (lengths.scratch.zeros(lengths.num_samples, np.bool_) for _ in range(2))
    cut.cut_off = lengths.scratch.zeros(lengths.num_samples, np.int32)
    cut.is_cut[:], cut.cut_off[:] = lengths.is_cut, lengths.cut_off
    added = []
    for chunk, rows, whole in parts:
        table = chunk.read([*lengths.reason_columns, "detail", "token_len", "cut"]).take(pa.array(rows))
        cut.cut_type = max(cut.cut_type, table["cut"].type, key=len)
        is_off = pc.equal(table["reason"], Reason.CUT_OFF.value).fill_null(False).to_numpy()
        cut.cut_off[whole[is_off]] = table["token_len"].to_numpy()[is_off]
        table, rows, whole = table.filter(pa.array(~is_off)), rows[~is_off], whole[~is_off]
        refused = _refused_samples(lengths, table, whole)
        is_out[refused["sample"].to_numpy()] = True
        cut.refused = pa.concat_tables([cut.refused, refused])
        cut.reasons = cut.reasons + Counter(refused["reason"].to_pylist())
        is_in = ~is_out[whole]
        cut.is_cut[whole[is_in]] = True
        added.append((chunk, rows[is_in], whole[is_in]))
    for old in lengths.rows:
        values = {name: column[old.item_slice] for name, column in lengths.columns.items()}
        if old.start < lengths.num_samples:
            is_gone = cut.is_cut[old.item_slice] | is_out[old.item_slice]
            values["token_len"] = np.where(is_gone, 0, values["token_len"])
        cut.add_computed_rows(old, values)
    for chunk, rows, _ in added:
        cut.add_cached_rows(chunk, rows)
    cut.whole_of_part = np.concatenate([lengths.whole_of_part, *(whole for *_, whole in added)])
    cut.build_items()
    return cut


def _refused_samples(lengths: Lengths, table: pa.Table, whole: Ints) -> pa.Table:
    """Return a table of the samples that must be left out because of a part: sample, reason and detail of that part."""
    reasons = lengths.reason(table).combine_chunks()
    rows = np.flatnonzero(pc.is_valid(reasons).to_numpy(zero_copy_only=False))
    samples, first = np.unique(whole[rows], return_index=True)
    taken = pa.array(rows[first])
    details = pc.coalesce(table["detail"], lengths.describe_misfits(table)).take(taken).combine_chunks()
    return pa.table([pa.array(samples), reasons.take(taken), details], schema=REFUSED_SCHEMA)


def _row_ids(numbers: Ints, table: pa.Table) -> pa.Array:
    """Return for each row a text that identifies its sample: shard number and key."""
    shard = pa.array(numbers).cast(pa.large_string())
    return pc.binary_join_element_wise(shard, table["key"].combine_chunks(), pa.scalar("/", pa.large_string()))


# ------------------------------------------------------------------------------------------------------- in a worker


def _parts_of_job(
    make: Callable[["WholeSample"], list[LengthsRow]], cut_type: pa.DataType, job: PartsJob
) -> tuple[pa.Table, list[int]]:
    """Return the parts of a job's samples, and how many parts each sample has."""
    template = load_saved_template(job.method.template_folder)
    parts: list[list[LengthsRow]] = []
    with SourceReader() as reader:
        hashes = MediaHasher(reader) if job.method.with_beginnings else None
        for shard, row in zip(job.shards, rows_of(job.rows, LengthsRow), strict=True):
            try:
                sample = read_measured_sample(reader, shard, row, job.method.read)
                parts.append(make(WholeSample(reader, shard, row, sample, template, job.method.engine, hashes)))
            except Skip:  # unlikely: it could be read when it was measured
                raise SourceChanged(shard.path) from None
    table = build_lengths_table([*chain.from_iterable(parts)], job.method, cut_type)
    return table, list(map(len, parts))


class WholeSample(NamedTuple):
    """A whole sample that parts are made of, with what a worker needs to render and measure them."""

    reader: SourceReader
    shard: Shard
    row: LengthsRow
    sample: ReadSample
    template: Template
    engine: str
    hashes: MediaHasher | None  # hashes of its media; None: samples share nothing

    def rendered(self, cut: Cut) -> tuple[ReadSample, Rendered]:
        """Return the part that a cut describes, and its rendered text; raise Skip if the chat template refuses it."""
        part = cut_sample(self.sample, cut)
        return part, self.template.render(Sample(part.timed_messages, part.media, part.tools, part.options))

    def row_of_part(
        self, cut: Cut, part: ReadSample, rendered: Rendered, token_len: int, num_supervised: int
    ) -> LengthsRow:
        """Return the row of lengths of a part; `part` and `rendered` are what `rendered(cut)` returned."""
        counts: dict[str, Any] = rendered.media_counts(part.kinds)
        row = replace(
            self.row,
            parts=part.parts,
            files=None,  # the files of the whole sample are compared
            media_type=media_type(part.kinds),
            token_len=token_len,
            num_supervised=num_supervised,
            **counts,
            num_bytes=num_tar_bytes([self.row.record_size, *(each.size for each in part.parts)]),
            checksum=self.reader.checksum(self.shard, part.raw, part.parts),
            cut=cut,
        )
        if self.hashes is not None:
            hash_media(row, self.hashes, self.shard, part)
            hash_beginnings(self.template, [(row, rendered)])
        return row

    @property
    def as_sample(self) -> Sample:
        """The sample as a template takes it."""
        return Sample(self.sample.timed_messages, self.sample.media, self.sample.tools, self.sample.options)

    @property
    def trains_only_last_answer(self) -> bool:
        """Whether only the last answer of the sample is trained."""
        train_on = self.sample.options.labels.get("train_on", self.template.spec.labels.train_on)
        return bool(train_on == TrainOn.last)

    def media_kind_letters(self) -> str:
        """Return the first letter of the kind of each medium, as `iiv` for two images and a video."""
        return "".join(kind[0] for kind in self.sample.kinds)

    def keep_trained_parts(self, parts: Sequence[LengthsRow]) -> list[LengthsRow]:
        """Drop the parts without a trained token, and number the others; a last row counts the tokens of those dropped.

        If no part is left, return one row with the reason why the sample is left out.
        """
        kept = [row for row in parts if row.num_supervised]
        if not kept:
            return [replace(parts[0], reason=Reason.NOTHING_TRAINED.value, detail="nothing is trained in its parts")]
        lost = sum(row.token_len for row in parts) - sum(row.token_len for row in kept)
        cuts = [row.cut and row.cut._replace(part=f"{i}of{len(kept)}") for i, row in enumerate(kept, 1)]
        numbered = [replace(row, cut=cut) for row, cut in zip(kept, cuts, strict=True)]
        return [*numbered, *([self.row_of_lost_tokens(lost)] if lost else [])]

    def row_of_lost_tokens(self, num_tokens: int) -> LengthsRow:
        """Return a row that is no part, and counts the tokens of the sample that are in no part."""
        return replace(self.row, token_len=num_tokens, reason=Reason.CUT_OFF.value)
