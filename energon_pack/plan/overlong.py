"""Cut conversations longer than a pack between turns (`packing.overlong=split_turns`) or text (`truncate_text`).

Each part is a conversation of its own: the system turn, some turns in a row, and their media. It is measured as any
sample is, and its row in the plan says what it holds of the whole.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.errors import PackError, amount
from energon_pack.lengths.counts import counts_of
from energon_pack.lengths.measure import MeasuredShard
from energon_pack.lengths.media_hashes import MediaHashes
from energon_pack.lengths.method import Method
from energon_pack.lengths.table_cache import Piece, Record, TableCache, in_chunks, key_of
from energon_pack.lengths.worker import LengthsRow, hash_beginnings, hash_media, lengths_table
from energon_pack.plan import caps
from energon_pack.plan.items import Lengths
from energon_pack.plan.packs import LEFT_OUT, PackPlan
from energon_pack.plan.settings import Overlong, PackingConfig
from energon_pack.run.context import Run
from energon_pack.run.scratch import blocks
from energon_pack.run.seeded import Ints
from energon_pack.samples.cut import Cut, exchanges, messages_of, num_media_before
from energon_pack.samples.documents import DOCUMENT
from energon_pack.samples.sample import media_type
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.reader import Reader, SourceChanged
from energon_pack.sources.rows import rows_of
from energon_pack.sources.sample import read_again
from energon_pack.sources.shard import Shard
from energon_pack.sources.storage import counted
from energon_pack.sources.tar import num_tar_bytes
from energon_pack.templates.processor import load_saved
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template

CUTTING = (Overlong.split_turns, Overlong.truncate_text)
#: Raised when the same conversation is cut in another way.
_VERSION = 1
_SLICE = 200  # samples a job


@dataclass(frozen=True)
class CutJob:
    """Overlong samples: rows of their lengths, and the shard of each."""

    shards: list[Shard]
    rows: pa.Table
    method: Method
    packing: PackingConfig


def check_overlong(lengths: Lengths, plan: PackPlan, packing: PackingConfig) -> None:
    """Raises PackError on the first overlong sample where `packing.overlong=error`."""
    if packing.overlong is not Overlong.error:
        return
    overlong = plan.left_out == LEFT_OUT.index(Reason.OVERLONG)
    if num := np.count_nonzero(overlong):
        first = int(overlong.argmax())
        raise PackError(
            f"{amount(int(num), 'sample')} {'is' if num == 1 else 'are'} longer than"
            f" packing.max_token_len={packing.max_token_len}, first"
            f" {lengths.sample_id(first)} with {lengths.items.lens[first]} tokens;"
            " packing.overlong=drop leaves them out"
        )


def cut_overlong(lengths: Lengths, method: Method, packing: PackingConfig, run: Run) -> Lengths:
    """The lengths with parts in place of the samples that are too long, as far as these can be cut."""
    items, measured = lengths.items, lengths.shards
    overlong, of_shards = lengths.scratch.zeros(len(items), np.bool_), set[int]()
    for block in blocks(len(items)):
        overlong[block] = _is_overlong(items.lens[block], packing)
        if packing.overlong is Overlong.truncate_text:
            overlong[block] &= items.media[block] == 0
        of_shards.update(np.unique(items.shard[block][overlong[block]]).tolist())
    cache = TableCache(run.cache("cuts", key_of(how_cut(packing), _VERSION)))
    keys = {
        number: key_of([(Path(path).stem, *rows) for path, *rows in measured[number].pieces])
        for number in sorted(of_shards)
    }
    todo = [number for number, key in keys.items() if _known(cache, key) is None]
    num_left = Counter(chain.from_iterable(numbers.tolist() for numbers, _ in _overlong(measured, todo, packing)))
    num_parts = dict.fromkeys(num_left, 0)
    at_work: list[Ints] = []  # of the samples of a job, their shards

    def jobs() -> Iterator[CutJob]:
        for numbers, rows in _overlong(measured, todo, packing):
            for start in range(0, len(numbers), _SLICE):
                at_work.append(numbers[start : start + _SLICE])
                shards = [measured[number].shard for number in at_work[-1]]
                yield CutJob(shards, rows.slice(start, _SLICE), method, packing)

    with run.progress.stage("cut", num_left.total(), "samples") as advance:
        try:
            for (table, sizes), num_bytes in run.executor.map(partial(counted, cut), jobs()):
                records = []
                for number, size in zip(at_work[0].tolist(), sizes, strict=True):
                    records.append(Record(keys[number], num_parts[number], size))
                    num_parts[number] += size
                    num_left[number] -= 1
                    if not num_left[number]:  # what is not finished has no note
                        records.append(Record(keys[number], num_parts[number], 0, {"num_rows": str(num_parts[number])}))
                cache.add(table, records)
                run.progress.add(num_bytes=num_bytes)
                advance(len(at_work.pop(0)))
        finally:
            cache.flush()
    return _with_parts(lengths, {number: _known(cache, key) or [] for number, key in keys.items()}, overlong)


def how_cut(packing: PackingConfig) -> dict[str, Any]:
    """The settings that say which samples are cut, and where: other parts are kept under another key."""
    return {
        "overlong": packing.overlong,
        "pad_to_multiple_of": packing.pad_to_multiple_of,
        **{cap.name: getattr(packing, cap.name) for cap in caps.CAPS},
    }


def _is_overlong(token_len: npt.NDArray[Any], packing: PackingConfig) -> npt.NDArray[np.bool_]:
    is_overlong: npt.NDArray[np.bool_] = (
        caps.padded(token_len.astype(np.int64), packing.pad_to_multiple_of) > packing.max_token_len
    )
    return is_overlong


def _known(cache: TableCache, key: str) -> list[Piece] | None:
    """Where the parts of a shard's samples are, if they are known."""
    about = cache.note(key)
    if about is None:
        return None
    pieces, missing = cache.find(key, int(about["num_rows"]))
    return None if len(missing) else pieces


def _overlong(
    measured: Sequence[MeasuredShard], numbers: Sequence[int], packing: PackingConfig
) -> Iterator[tuple[Ints, pa.Table]]:
    """Find the samples that are too long: for each its shard's number, and its row in the table of lengths."""
    for chunk in in_chunks((number, measured[number].pieces) for number in numbers):
        table = chunk.read()
        is_overlong = _is_overlong(table["token_len"].to_numpy(), packing)
        yield chunk.numbers_of_rows[is_overlong], table.filter(pa.array(is_overlong))


def _with_parts(lengths: Lengths, parts: dict[int, list[Piece]], overlong: npt.NDArray[np.bool_]) -> Lengths:
    """Return the lengths with the parts of this run's samples; the cache holds the parts of whole shards."""
    chunks = list(in_chunks(parts.items()))
    ids = [_ids(chunk.numbers_of_rows, chunk.read(["key"])) for chunk in chunks]
    known = pa.chunked_array(ids, pa.large_string())
    is_cut = lengths.scratch.zeros(len(lengths.items), np.bool_)
    wanted: list[pa.Array] = []
    for start, numbers, table in lengths.tables(["key"]):
        here = slice(start, start + table.num_rows)
        if overlong[here].any():
            is_cut[here] = overlong[here] & pc.is_in(_ids(numbers, table), known).to_numpy(zero_copy_only=False)
            wanted.append(_ids(numbers, table).filter(pa.array(is_cut[here])))
    ours = pa.chunked_array(wanted, pa.large_string())
    samples = np.flatnonzero(is_cut)
    parts_of = []
    for chunk, mine in zip(chunks, ids, strict=True):
        found = pc.index_in(mine, ours)
        rows = np.flatnonzero(pc.is_valid(found).to_numpy(zero_copy_only=False))
        parts_of.append((chunk, rows, samples[found.take(pa.array(rows)).to_numpy()]))
    return lengths.with_parts(parts_of, is_cut)


def _ids(numbers: Ints, table: pa.Table) -> pa.Array:
    """Shard and key of each row as one."""
    shard = pa.array(numbers).cast(pa.large_string())
    return pc.binary_join_element_wise(shard, table["key"].combine_chunks(), pa.scalar("/", pa.large_string()))


def cut(job: CutJob) -> tuple[pa.Table, list[int]]:
    """The parts of overlong samples, as a table of `LENGTHS_SCHEMA`, and how many each has: 0 where it can't be cut."""
    template = load_saved(job.method.template_folder)
    parts: list[list[LengthsRow]] = []
    with Reader() as reader:
        for shard, row in zip(job.shards, rows_of(job.rows, LengthsRow), strict=True):
            parts.append([])
            if job.packing.overlong is Overlong.split_turns or not row.parts:
                try:
                    parts[-1] = _Conversation(reader, shard, row, template, job).parts()
                except Skip:  # it was read well when it was measured
                    raise SourceChanged(shard.path) from None
    rows = list(chain.from_iterable(parts))
    return lengths_table(rows, job.method.with_beginnings), list(map(len, parts))


class _Conversation:
    """One overlong sample, and what its parts measure."""

    def __init__(self, reader: Reader, shard: Shard, row: LengthsRow, template: Template, job: CutJob):
        self._row, self._template, self._job = row, template, job
        self._reader, self._shard = reader, shard
        self._sample = read_again(reader, shard, row, job.method.read)
        if job.method.with_beginnings:
            hash_media(row, MediaHashes(reader), shard, self._sample)
        self._messages = self._sample.timed
        self._num_before = num_media_before(self._messages, self._sample.kinds)

    def parts(self) -> list[LengthsRow]:
        """Rows of its parts; none where it can't be cut."""
        edges = exchanges(self._messages)
        if self._job.packing.overlong is Overlong.truncate_text:
            found = self._beginning(edges)
            return [] if found is None else [self._named(found, 1, 1)]
        found_all = []
        at = 0
        while at < len(edges) - 1:
            step = _most(lambda n, at=at: self._measured(edges[at], edges[at + n]), len(edges) - 1 - at)  # type: ignore[misc]
            if step is None:
                return []
            at += step[0]
            found_all.append(step[1])
        return [self._named(row, i + 1, len(found_all)) for i, row in enumerate(found_all)]

    def _beginning(self, edges: list[int]) -> LengthsRow | None:
        """The longest beginning that fits: whole exchanges, or the first answer up to a token."""
        whole = _most(lambda n: self._measured(edges[0], edges[n]), len(edges) - 2)
        if whole is not None:
            return whole[1]
        answer = next(i for i, message in enumerate(self._messages) if message["role"] in ("assistant", DOCUMENT))
        text = self._messages[answer]["content"]
        if not isinstance(text, str) or self._messages[answer].get("tool_calls"):
            return None
        ends = self._template.token_ends(text)
        found = _most(lambda n: self._measured(edges[0], answer + 1, ends[n - 1]), len(ends))
        return None if found is None else found[1]

    def _measured(self, first: int, end: int, num_characters: int | None = None) -> LengthsRow | None:
        """The row of a part; None where it does not fit."""
        here = slice(self._num_before[first], self._num_before[end])
        media, parts = self._sample.media[here], self._sample.parts[here]
        sample = Sample(
            messages_of(self._messages, first, end, num_characters), media, self._sample.tools, self._sample.options
        )
        try:
            rendered = self._template.render(sample)
        except Skip:  # a template may refuse some turns without those before
            return None
        [(token_len, num_supervised)] = self._template.count([rendered], self._job.method.engine)
        kinds = [part.kind for part in parts]
        counts: dict[str, Any] = {"token_len": token_len, **counts_of(rendered, kinds)}
        if caps.exceeded(counts, self._job.packing):
            return None
        hashes = self._row.media_hashes
        part = replace(
            self._row,
            media_hashes=None if hashes is None else hashes[here],
            first_medium=self._row.first_medium if parts else None,
            parts=parts,
            files=None,  # those of the whole sample are compared
            media_type=media_type(kinds),
            num_supervised=num_supervised,
            **counts,
            num_bytes=num_tar_bytes([self._row.record_size, *(part.size for part in parts)]),
            checksum=self._reader.checksum(self._shard, self._sample.raw, parts),
            cut=Cut("", first, end, num_characters, "".join(kind[0] for kind in self._sample.kinds)),
        )
        hash_beginnings(self._template, [(part, rendered)])
        return part

    def _named(self, row: LengthsRow, number: int, num_parts: int) -> LengthsRow:
        return replace(row, cut=row.cut and row.cut._replace(part=f"{number}of{num_parts}"))


def _most(measured: Callable[[int], LengthsRow | None], limit: int) -> tuple[int, LengthsRow] | None:
    """The largest number from 1 to `limit` for which there is a row, found by doubling and halving."""
    best: tuple[int, LengthsRow] | None = None
    step = 1
    too_many = limit + 1
    while (number := (best[0] if best else 0) + step) < too_many:
        row = measured(number)
        if row is None:
            too_many = number
            break
        best, step = (number, row), step * 2
    low = best[0] if best else 0
    too_many = min(too_many, limit + 1)
    while too_many - low > 1:
        middle = (low + too_many) // 2
        row = measured(middle)
        if row is None:
            too_many = middle
        else:
            low, best = middle, (middle, row)
    return best
