"""Items to pack: a few numbers for each sample, read from the cache.

They take about 44 bytes a sample, in scratch files. Everything else is read from the cache when it is needed, many rows
at a time.
"""

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.lengths.measure import MeasuredShard
from energon_pack.lengths.table_cache import Chunk, in_chunks
from energon_pack.plan import caps
from energon_pack.plan.cached_rows import CachedRows
from energon_pack.plan.entry_shares import EntryShare
from energon_pack.plan.splits import split_numbers
from energon_pack.run.scratch import Column, Scratch, blocks
from energon_pack.run.seeded import Ints
from energon_pack.samples.cut import CUT_TYPE, widened
from energon_pack.samples.flavors import DEFAULT
from energon_pack.samples.flavors.base import PackedFlavor
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.samples.skip import Reason
from energon_pack.sources.copies import copy_numbers
from energon_pack.templates.settings import Untrained

#: Columns that the report counts, over all measured samples.
NOTES = (
    "control_tokens",
    "placeholders_put_in",
    "placeholders_as_text",
    "assistant_first",
    "tools_left_out",
    "weights",
    "reasoning_left_out",
    "nulls_dropped",
)
#: notes whose column is a number of tokens: a sample is counted if it is above 0
_COUNTED = {"control_tokens": "num_control_tokens", "weights": "num_weighted"}
_NOTED = {note: _COUNTED.get(note, note) for note in NOTES}

_NUMBERS = ("num_supervised", "num_bytes", "checksum", "kept")
_COLUMNS = ("media_type", *caps.COLUMNS, *_NUMBERS, "reason", "does_not_fit", *_NOTED.values())

_REFUSED = pa.schema([("sample", pa.int64()), ("reason", pa.string()), ("detail", pa.large_string())])

#: columns with a list of names, which are counted
LISTED = ("unknown_keys", "image_modes")
_MOST_KEYS = 1000  # unknown keys that are counted: if names of people are keys, each sample has others

#: The numbers kept for each item; 4 bytes each unless noted.
_HELD = ("turn", "media", "shard", "dataset", "split", *caps.COLUMNS, *_NUMBERS)
_TYPES: dict[str, Any] = {
    "turn": np.int32, "media": np.int8, "split": np.int8, "num_bytes": np.int64, "checksum": np.uint32,
    "kept": np.uint64,
}  # fmt: skip
_IN_MEMORY = Scratch()

AnyInts = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Items:
    """The items to pack: samples, or parts of samples that were cut. Arrays have one entry per item."""

    counts: Mapping[str, AnyInts]  # `caps.COLUMNS`; an item with 0 tokens is not packed
    media: AnyInts  # index into MEDIA_TYPES, -1 if unknown
    shard: AnyInts  # number of its source shard
    dataset: AnyInts  # number of the folder its shard is in
    split: AnyInts  # index into SPLITS
    num_supervised: AnyInts  # trained tokens
    entry: AnyInts | None = None  # index of its entry in a mixture; None: there is none
    #: turn of each item: packs come turn by turn, for each phase of a mixture its epochs; None: there is one turn
    turn: AnyInts | None = None
    #: first tokens that it shares with the item before it in its pack: `counts` leave them out. None: nothing is shared
    shared: AnyInts | None = None
    #: number of its conversation; its items are packed, or left out, together. None: each item stands alone
    whole: AnyInts | None = None

    @property
    def lens(self) -> AnyInts:
        """Tokens of each item."""
        return self.counts["token_len"]

    @property
    def squares(self) -> AnyInts:
        """Pairs of tokens that each item adds to attention: L² for a whole sample of L tokens."""
        squares = self.counts.get("max_attention_cost")
        return self.lens.astype(np.int64) ** 2 if squares is None else squares

    def __len__(self) -> int:
        return len(self.lens)

    def take(self, numbers: Ints | slice) -> "Items":
        """Return the items with these numbers."""
        counts = {name: values[numbers] for name, values in self.counts.items()}
        others = (self.media, self.shard, self.dataset, self.split, self.num_supervised)
        optional = (self.entry, self.turn, self.shared, self.whole)
        media, shard, dataset, split, num_supervised = (values[numbers] for values in others)
        return Items(
            counts, media, shard, dataset, split, num_supervised,
            *(None if values is None else values[numbers] for values in optional),
        )  # fmt: skip


class Lengths:
    """The samples of a run, in the order of the source, then the parts of samples that were cut.

    Args:
        flavor: the flavor of the packs.
        shares: the shares of the splits.
        seed: decides which sample is in which split.
        scratch: where the arrays are kept.
        split_by_medium: samples with the same first medium are in the same split.
        untrained: whether samples of which nothing is trained may be packed.
    """

    #: the columns that `reason` reads
    reads = ("reason", "does_not_fit", "num_supervised")

    def __init__(
        self,
        measured: Sequence[MeasuredShard],
        flavor: PackedFlavor = DEFAULT,
        shares: Sequence[float] = (1.0,),
        seed: int = 0,
        scratch: Scratch = _IN_MEMORY,
        split_by_medium: bool = False,
        untrained: Untrained = Untrained.drop,
    ):
        #: source shards by number
        self.shards = measured
        self.shard_names = [item.shard.name for item in measured]
        #: number of samples that can't be packed, by reason
        self.reasons: Counter[str] = Counter()
        #: number of samples with each of `NOTES`
        self.notes: Counter[str] = Counter()
        #: for each of `LISTED`: number of samples by name, and the id of one such sample
        self.listed: dict[str, Counter[str]] = {column: Counter() for column in LISTED}
        self.examples: dict[tuple[str, str], str] = {}
        #: trained tokens of all samples, cut or not, and how many of them have another weight than 1 in the loss
        self.num_supervised = self.num_weighted = 0
        folders = [name.rpartition("/")[0] for name in self.shard_names]
        number_of = {folder: number for number, folder in enumerate(sorted(set(folders)))}
        self._datasets = np.array([number_of[folder] for folder in folders], np.int32)
        self.flavor, self.seed, self._shares = flavor, seed, shares
        #: one for each entry of a mixture, in its order; empty: there is no mixture
        self.shares_of_entries: list[EntryShare] = []
        self._entry_of_shard: Ints | None = None
        self._num_turns = 1
        #: the type of the column `cut`
        self.cut_type = CUT_TYPE
        self._drops_untrained = untrained is Untrained.drop
        self._is_split, self._by_medium = max(shares) < 1, split_by_medium and max(shares) < 1
        self._rows: list[CachedRows] = []
        self._num_items = 0
        self.scratch = scratch
        self._columns = self._new_columns()
        for chunk in in_chunks(enumerate(item.pieces for item in measured)):
            self._add(chunk, None, self._read(chunk, self._is_split), is_sample=True)
        self.num_samples = self._num_items
        #: whether each sample is packed as its parts
        self.is_cut = scratch.zeros(self.num_samples, np.bool_)
        self._join()
        #: tokens of each sample, whether it was cut or not
        self.sample_lens = self.items.lens
        #: tokens of each sample that none of its parts has
        self.cut_off = scratch.zeros(self.num_samples, np.int32)
        #: the number of each part's sample
        self.whole_of_part: Ints = np.zeros(0, np.int64)
        #: what each item shares with the item before it in its pack (`trees.Trees.shared`); None: nothing is shared
        self.shared: Mapping[str, AnyInts] | None = None
        #: samples that are left out because their parts can't be packed: number, reason and detail
        self.refused = _REFUSED.empty_table()

    def with_parts(self, parts: Iterable[tuple[Chunk, Ints, Ints]]) -> "Lengths":
        """Return these lengths with parts in place of some samples that have none yet.

        If a part has a reason to be in no pack, its sample is left out for that reason. A row that is `cut_off` is no
        part: it has the number of tokens that no part has.

        Args:
            parts: chunks with parts, the rows to take from each, and the sample of each row.
        """
        cut = copy.copy(self)
        cut._rows, cut._columns = [*self._rows], self._new_columns()
        cut.is_cut, is_out = (self.scratch.zeros(self.num_samples, np.bool_) for _ in range(2))
        cut.cut_off = self.scratch.zeros(self.num_samples, np.int32)
        for block in blocks(self.num_samples):
            cut.is_cut[block], cut.cut_off[block] = self.is_cut[block], self.cut_off[block]
        added = []
        for chunk, rows, whole in parts:
            table = chunk.read([*self.reads, "detail", "token_len", "cut"]).take(pa.array(rows))
            cut.cut_type = max(cut.cut_type, table["cut"].type, key=len)
            is_off = pc.equal(table["reason"], Reason.CUT_OFF.value).fill_null(False).to_numpy()
            cut.cut_off[whole[is_off]] = table["token_len"].to_numpy()[is_off]
            table, rows, whole = table.filter(pa.array(~is_off)), rows[~is_off], whole[~is_off]
            found = self._refused(table, whole)
            is_out[found["sample"].to_numpy()] = True
            cut.refused = pa.concat_tables([cut.refused, found])
            cut.reasons = cut.reasons + Counter(found["reason"].to_pylist())
            is_in = ~is_out[whole]
            cut.is_cut[whole[is_in]] = True
            added.append((chunk, rows[is_in], whole[is_in]))
        for block in blocks(len(self.items)):
            here = max(0, min(block.stop, self.num_samples) - block.start)  # then come parts
            for name, values in self._arrays.items():
                some = values[block]
                if name == "token_len":
                    some = np.concatenate((np.where(cut.is_cut[block] | is_out[block], 0, some[:here]), some[here:]))
                cut._append(name, some)
        for chunk, rows, _ in added:
            cut._add(chunk, rows, cut._read(chunk, cut._is_split))
        cut.whole_of_part = np.concatenate([self.whole_of_part, *(whole for *_, whole in added)])
        cut._join()
        return cut

    def _refused(self, table: pa.Table, whole: Ints) -> pa.Table:
        """Return the samples that rows of their parts leave out: for each the first row with a reason."""
        reasons = self.reason(table).combine_chunks()
        rows = np.flatnonzero(pc.is_valid(reasons).to_numpy(zero_copy_only=False))
        samples, first = np.unique(whole[rows], return_index=True)
        taken = pa.array(rows[first])
        details = pc.coalesce(table["detail"], self._unfit(table)).take(taken).combine_chunks()
        return pa.table([pa.array(samples), reasons.take(taken), details], schema=_REFUSED)

    def drawn(
        self,
        counts: Ints,
        shares: Sequence[EntryShare] = (),
        entry_of_shard: Ints | None = None,
        phase_of_shard: Ints | None = None,
    ) -> "Lengths":
        """Return these lengths with each sample as often as `counts` says; a sample that never comes stays as not
        drawn.

        Args:
            counts: int[num_epochs, num_samples]; a sample that can't be packed comes once in total.
            shares: the shares of the entries of a mixture.
            entry_of_shard: the entry of each file, if there are several.
            phase_of_shard: the phase of each file, from 0.
        """
        drawn = copy.copy(self)
        drawn._rows, drawn._columns, drawn._num_items = [], self._new_columns(), 0
        phases = np.zeros(len(self.shards), np.int64) if phase_of_shard is None else phase_of_shard
        drawn._num_turns = len(counts) * (int(phases.max(initial=0)) + 1)
        drawn.shares_of_entries, drawn._entry_of_shard = [*shares], entry_of_shard
        first = np.zeros(self.num_samples + 1, np.int64)  # where the draws of each sample begin
        never = counts.sum(axis=0) == 0
        np.cumsum(counts.sum(axis=0) + never, out=first[1:])
        drawn.num_samples = int(first[-1])
        kinds = (np.bool_, np.int32, np.int32)
        drawn.is_cut, drawn.sample_lens, drawn.cut_off = (self.scratch.zeros(drawn.num_samples, kind) for kind in kinds)
        wholes = [np.zeros(0, np.int64)]
        for rows in self._rows:
            here = slice(rows.start, rows.start + rows.num)
            is_part = rows.start >= self.num_samples
            of = np.arange(here.start, here.stop)
            if is_part:
                of = self.whole_of_part[here.start - self.num_samples : here.stop - self.num_samples]
            times = counts[:, of].T.copy()  # [num, num_epochs]
            if not is_part:
                times[never[of], 0] = 1
            taken, epoch = (np.repeat(index.ravel(), times.ravel()) for index in np.indices(times.shape))
            copies = copy_numbers(taken)
            sample = first[of[taken]] + copies
            is_out = never[of[taken]]
            if is_part:
                wholes.append(sample)
            else:
                drawn.is_cut[sample] = self.is_cut[here][taken] & ~is_out
                drawn.cut_off[sample] = self.cut_off[here][taken]
                drawn.sample_lens[sample] = np.where(is_out, 0, self.sample_lens[here][taken])
            base = np.arange(rows.num) if rows.rows is None else rows.rows
            drawn._rows.append(
                CachedRows(rows.chunk, base[taken], drawn._num_items, len(taken), np.where(is_out, -1, copies))
            )
            drawn._num_items += len(taken)
            for name, values in self._arrays.items():
                some = values[here][taken]
                if name == "turn":
                    phase = phases[self._arrays["shard"][here][taken]]
                    some = np.where(self._arrays["split"][here][taken] == 0, phase * len(counts) + epoch, 0)
                drawn._append(name, np.where(is_out, 0, some) if name == "token_len" else some)
        drawn.whole_of_part = np.concatenate(wholes)
        refused = pa.array(first[self.refused["sample"].to_numpy()])
        drawn.refused = self.refused.set_column(0, _REFUSED.field("sample"), refused)
        drawn.reasons = self.reasons + Counter({Reason.NOT_DRAWN.value: int(np.count_nonzero(never))})
        drawn._join()
        return drawn

    def sharing(self, shared: Mapping[str, AnyInts], items: Items) -> "Lengths":
        """Return these lengths, with each item counting only what it adds to its pack.

        Args:
            shared: how many first tokens, images and videos each item shares with the item before it in its pack.
            items: the items with the counts that each adds.
        """
        own = copy.copy(self)
        own.items, own.shared = items, shared
        return own

    def lost_tokens(self, samples: slice, left_out: AnyInts) -> AnyInts:
        """Return how many tokens of each sample are in none of its packed parts.

        Args:
            left_out: `PackPlan.left_out` of these samples.
        """
        lost: AnyInts = np.where(self.is_cut[samples] & (left_out == 0), self.cut_off[samples], 0)
        return lost

    def tables(self, columns: Sequence[str], with_parts: bool = True) -> Iterator[tuple[int, Ints, pa.Table]]:
        """Yield all rows, many at a time: the number of the first row's item, the shard of each row, and the
        columns.
        """
        for rows in self._rows:
            if with_parts or rows.start < self.num_samples:
                numbers, table = rows.take(rows.chunk.read(columns), rows.chunk.numbers_of_rows)
                if "cut" in columns:
                    cuts = widened(table["cut"], self.cut_type)
                    table = table.set_column(table.schema.get_field_index("cut"), "cut", cuts)
                yield rows.start, numbers, table

    def places(self, items: Ints) -> Iterator[tuple[Ints, Chunk, Ints]]:
        """Yield where the rows of items are: the items in a chunk of the cache, the chunk, and their rows in it.

        Args:
            items: in any order.
        """
        for rows in self._rows:
            of_items = np.flatnonzero((items >= rows.start) & (items < rows.start + rows.num))
            if len(of_items):
                here = items[of_items] - rows.start
                yield of_items, rows.chunk, here if rows.rows is None else rows.rows[here]

    def sample_ids(self, numbers: Ints, table: pa.Table) -> list[str]:
        """Return the ids of rows, as in the ledger, from their shards and the column `key`."""
        keys = table["key"].to_pylist()
        return [self.shards[number].shard.sample_id(key) for number, key in zip(numbers.tolist(), keys, strict=True)]

    def reason(self, table: pa.Table) -> pa.ChunkedArray:
        """Return why each row, of which `reads` are read, can be in no pack of any plan; null: it may be packed."""
        is_unfit = pc.is_valid(self._unfit(table))
        is_untrained = pc.and_(pc.equal(table["num_supervised"], 0), self._drops_untrained)
        return pc.coalesce(
            table["reason"],
            pc.if_else(is_unfit, Reason.NOT_IN_FLAVOR.value, None),
            pc.if_else(is_untrained, Reason.NOTHING_TRAINED.value, None),
        )

    def _unfit(self, table: pa.Table) -> pa.ChunkedArray:
        """Return the part of each row that packs of this flavor have no place for; null: it fits."""
        answers = [pc.struct_field(table["does_not_fit"], rule) for rule in self.flavor.rules]
        return pc.coalesce(*answers, pa.scalar(None, pa.large_string()))

    def largest(self, samples: Ints) -> dict[str, Ints]:
        """Return the largest counts of `caps` that each sample, or one of its parts, has.

        Args:
            samples: ascending.
        """
        place = np.searchsorted(samples, self.whole_of_part)
        is_one = np.append(samples, -1)[place] == self.whole_of_part
        most = {name: values[samples].astype(np.int64) for name, values in self.items.counts.items()}
        for name, values in most.items():
            np.maximum.at(values, place[is_one], self.items.counts[name][self.num_samples :][is_one])
        return most

    def sample_id(self, index: int) -> str:
        """Return the id of an item, as in the ledger."""
        rows = next(rows for rows in reversed(self._rows) if rows.start <= index)
        numbers, table = rows.take(rows.chunk.read(["key"]), rows.chunk.numbers_of_rows)
        return self.sample_ids(numbers[[index - rows.start]], table.slice(index - rows.start, 1))[0]

    def _add(self, chunk: Chunk, rows: Ints | None, table: pa.Table, is_sample: bool = False) -> None:
        num = table.num_rows if rows is None else len(rows)
        if not num:
            return
        mine = CachedRows(chunk, rows, self._num_items, num)
        numbers, table = mine.take(table, chunk.numbers_of_rows)
        self._rows.append(mine)
        self._num_items += num
        media = pc.fill_null(pc.index_in(table["media_type"], pa.array(MEDIA_TYPES)), -1)
        reasons = self.reason(table)
        counts = {name: table[name].to_numpy() for name in caps.COLUMNS}
        counts["token_len"] = np.where(pc.is_null(reasons).to_numpy(), counts["token_len"], 0).astype(np.int32)
        for name, values in counts.items():
            self._append(name, values)
        self._append("media", media.to_numpy().astype(np.int8))
        self._append("shard", numbers.astype(np.int32))
        self._append("dataset", self._datasets[numbers])
        self._append("split", self._splits(numbers, table))
        self._append("turn", np.zeros(num, np.int32))
        for name in _NUMBERS:
            self._append(name, table[name].to_numpy())
        if is_sample:
            self.reasons.update(reasons.drop_null().to_pylist())
            for note, name in _NOTED.items():
                column = pc.greater(table[name], 0) if note in _COUNTED else table[name]
                self.notes[note] += pc.sum(pc.and_(column, pc.is_null(reasons))).as_py() or 0
            tokens = table.select(["num_supervised", "num_weighted"]).filter(pc.is_null(reasons))
            self.num_supervised += pc.sum(tokens["num_supervised"]).as_py() or 0
            self.num_weighted += pc.sum(tokens["num_weighted"]).as_py() or 0
            for column in LISTED:
                self._count_listed(column, mine, table.append_column("is_in", pc.is_null(reasons)))

    def _count_listed(self, column: str, rows: CachedRows, table: pa.Table) -> None:
        """Count the names in the lists of samples that may be packed."""
        places = np.flatnonzero(pc.and_(table["is_in"], pc.is_valid(table[column])).to_numpy())
        if not len(places):
            return
        counts = self.listed[column]
        lists = table[column].take(pa.array(places)).combine_chunks()
        names, of_list = lists.flatten(), lists.value_parent_indices()
        keys: tuple[Ints, pa.Table] | None = None
        for found in pc.value_counts(names).to_pylist():
            name = found["values"]
            if name not in counts and len(counts) >= _MOST_KEYS:
                continue
            counts[name] += found["counts"]
            if (column, name) not in self.examples:
                keys = keys or rows.take(rows.chunk.read(["key"]), rows.chunk.numbers_of_rows)
                place = int(places[of_list[pc.index(names, name).as_py()].as_py()])
                self.examples[column, name] = self.sample_ids(keys[0][[place]], keys[1].slice(place, 1))[0]

    def _read(self, chunk: Chunk, with_key: bool) -> pa.Table:
        more = ["key"] * with_key + ["first_medium"] * self._by_medium
        return chunk.read([*_COLUMNS, *LISTED, *more])

    def _splits(self, numbers: Ints, table: pa.Table) -> AnyInts:
        if not self._is_split:
            return np.full(table.num_rows, int(np.argmax(self._shares)), np.int8)
        names = self.sample_ids(numbers, table)
        if self._by_medium:
            media = table["first_medium"].to_pylist()
            names = [name if medium is None else f"{medium:016x}" for name, medium in zip(names, media, strict=True)]
        return split_numbers(names, self._shares, self.seed)

    def _append(self, name: str, values: AnyInts) -> None:
        self._columns[name].add(values)

    def _new_columns(self) -> dict[str, Column]:
        return {name: self.scratch.column(_TYPES.get(name, np.int32)) for name in _HELD}

    def _join(self) -> None:
        self._arrays = {name: column.array() for name, column in self._columns.items()}
        #: bytes of each item as members of a tar, and a checksum of its source
        self.num_bytes, self.checksums = self._arrays["num_bytes"], self._arrays["checksum"]
        #: where the tokens of each item are kept
        self.kept = self._arrays["kept"]
        others = {name: self._arrays[name] for name in ("media", "shard", "dataset", "split", "num_supervised")}
        if self.cut_type != CUT_TYPE:
            others["whole"] = np.concatenate((np.arange(self.num_samples), self.whole_of_part)).astype(np.int32)
        if self._num_turns > 1:
            others["turn"] = self._arrays["turn"]
        if self._entry_of_shard is not None:
            others["entry"] = self._entry_of_shard[self._arrays["shard"]].astype(np.int16)
        self.items = Items(counts={name: self._arrays[name] for name in caps.COLUMNS}, **others)
