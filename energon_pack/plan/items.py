"""Items to pack: a few numbers for each sample, read from the cache.

They take about 48 bytes a sample, in scratch files. Everything else is read from the cache when it is needed, many rows
at a time.
"""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.lengths.measure import MeasuredShard
from energon_pack.lengths.table_cache import Chunk, chunks_of_pieces
from energon_pack.plan import note_counts
from energon_pack.plan.note_counts import SampleNoteCounts
from energon_pack.plan.settings import CAPPED_COLUMNS
from energon_pack.plan.splits import assign_samples_to_splits
from energon_pack.run.bounded_memory import Scratch
from energon_pack.run.seeded_random import Ints
from energon_pack.samples.cut import CUT_TYPE, convert_cut_column
from energon_pack.samples.flavors import DEFAULT_FLAVOR
from energon_pack.samples.flavors.base import PackedFlavor
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.samples.skip import Reason
from energon_pack.sources.sample_ratio import drawn_keys
from energon_pack.templates.settings import UntrainedSamplePolicy

_NUMBER_COLUMNS = ("num_supervised", "clip_frames", "num_bytes", "checksum", "kept")
_COLUMNS_READ = {"media_type", *CAPPED_COLUMNS, *_NUMBER_COLUMNS, "reason", "does_not_fit", *note_counts.COLUMNS}
#: samples that are left out because their parts can't be packed
REFUSED_SCHEMA = pa.schema([("sample", pa.int64()), ("reason", pa.string()), ("detail", pa.large_string())])
#: The numbers kept for each item; 4 bytes each unless noted.
_ITEM_COLUMNS = ("turn", "media", "shard", "dataset", "split", *CAPPED_COLUMNS, *_NUMBER_COLUMNS)
_COLUMN_TYPES: dict[str, Any] = {
    "turn": np.int32, "media": np.int8, "split": np.int8, "num_bytes": np.int64, "checksum": np.uint32,
    "kept": np.uint64,
}  # fmt: skip
_IN_MEMORY = Scratch()

AnyInts = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Items:
    """What a plan packs: samples, or the parts of samples that were cut. Every array has one entry for each item."""

    counts: Mapping[str, AnyInts]  # `CAPPED_COLUMNS`; an item with 0 tokens is not packed
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
    conversation: AnyInts | None = None
    #: frames of its clips: only samples with equally many share a pack. None: all clips can
    clip_frames: AnyInts | None = None

    @property
    def lens(self) -> AnyInts:
        """Number of tokens of each item."""
        return self.counts["token_len"]

    @property
    def attention_pairs(self) -> AnyInts:
        """Pairs of tokens that each item adds to attention: L² for a whole sample of L tokens."""
        squares = self.counts.get("max_attention_cost")
        return self.lens.astype(np.int64) ** 2 if squares is None else squares

    def __len__(self) -> int:
        return len(self.lens)

    def take(self, numbers: Ints | slice) -> "Items":
        """Return the items with these indices, in this order."""
        counts = {name: values[numbers] for name, values in self.counts.items()}
        columns = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        chosen: dict[str, Any] = {
            name: values if values is None else values[numbers] for name, values in columns.items()
        }
        return Items(counts, **chosen)


@dataclass(frozen=True)
class CachedRows:
    """Rows of a cached table of lengths, and the numbers of the items that they describe."""

    chunk: Chunk
    rows: Ints | None  # None: all
    start: int  # number of the first row among the items
    num: int
    copies: Ints | None = None  # for each row: how often it came before; -1: it is not drawn. None: all come once

    @property
    def item_slice(self) -> slice:
        """The numbers of the items that the rows describe."""
        return slice(self.start, self.start + self.num)

    def read(self, columns: Sequence[str] | None) -> tuple[Ints, pa.Table]:
        """Read columns (None: all) of these rows; return each row's shard number, and the table.

        A column `key` has a suffix for copies; a column `reason` has NOT_DRAWN for rows that the mixture does not draw.
        """
        table, numbers = self.chunk.read(columns), self.chunk.owners_of_rows
        if self.rows is not None:
            table, numbers = table.take(pa.array(self.rows)), numbers[self.rows]
        if self.copies is None:
            return numbers, table
        names = table.column_names
        if "key" in names:
            keys = drawn_keys(table["key"].to_pylist(), np.arange(self.num), self.copies.clip(0))
            table = table.set_column(names.index("key"), "key", pa.array(keys, pa.string()))
        if "reason" in names:
            reasons = pc.if_else(pa.array(self.copies < 0), Reason.NOT_DRAWN.value, table["reason"])
            table = table.set_column(names.index("reason"), "reason", reasons.cast(pa.string()))
        return numbers, table


class Lengths:
    """All measured samples of a run, in the order of the source, then the parts of samples that were cut.

    Holds their `items` as arrays, and reads other columns from the cache on disk when they are needed.

    Args:
        measured: the source shards, with their cached tables of lengths.
        flavor: the form of packs; samples that do not fit into it are left out.
        shares: the share of each split, by `SPLITS`.
        scratch: where large arrays lie: memory, or files.
        split_by_medium: samples with the same first medium get the same split.
        untrained: whether samples without a trained token are left out.
    """

    #: the columns that `reason` reads
    reason_columns = ("reason", "does_not_fit", "num_supervised")

    def __init__(
        self,
        measured: Sequence[MeasuredShard],
        flavor: PackedFlavor = DEFAULT_FLAVOR,
        shares: Sequence[float] = (1.0,),
        seed: int = 0,
        scratch: Scratch = _IN_MEMORY,
        split_by_medium: bool = False,
        untrained: UntrainedSamplePolicy = UntrainedSamplePolicy.drop,
    ):
        #: source shards by number
        self.shards = measured
        self.shard_names = [item.shard.name for item in measured]
        #: number of samples that can't be packed, by reason
        self.reasons: Counter[str] = Counter()
        #: counts over the samples that may be packed
        self.noted = SampleNoteCounts()
        folders = [name.rpartition("/")[0] for name in self.shard_names]
        self._datasets = np.unique(np.array(folders, object), return_inverse=True)[1].astype(np.int32)
        self.flavor, self.seed, self.scratch, self._shares = flavor, seed, scratch, shares
        self._drops_untrained = untrained is UntrainedSamplePolicy.drop
        self._is_split, self._by_medium = max(shares) < 1, split_by_medium and max(shares) < 1
        #: the entry of each file in a mixture, if there are several
        self.entry_of_shard: Ints | None = None
        self.num_turns = 1
        #: whether its samples are preference pairs, each packed as two parts: `plan.expand`
        self.has_pairs = False
        #: the type of the column `cut`
        self.cut_type = CUT_TYPE
        self._begin()
        for chunk in chunks_of_pieces([*enumerate([item.pieces for item in measured])]):
            self.add_cached_rows(chunk, None, is_sample=True)
        self.num_samples = self.num_items
        #: whether each sample is packed as its parts
        self.is_cut = scratch.zeros(self.num_samples, np.bool_)
        self.build_items()
        #: tokens of each sample, whether it was cut or not
        self.sample_lens = self.items.lens
        #: tokens of each sample that none of its parts has
        self.cut_off = scratch.zeros(self.num_samples, np.int32)
        #: the number of each part's sample
        self.whole_of_part: Ints = np.zeros(0, np.int64)
        #: what each item shares with the item before it in its pack (`trees.PrefixTrees.shared`); None: nothing
        self.shared: Mapping[str, AnyInts] | None = None
        #: samples that are left out because their parts can't be packed: number, reason and detail
        self.refused = REFUSED_SCHEMA.empty_table()

    def num_tokens_cut_off(self, samples: slice, left_out: AnyInts) -> AnyInts:
        """Return how many tokens of each sample are in none of its parts, if it is cut and packed; else 0.

        `left_out`: as in `PackPlan`, of these samples.
        """
        lost: AnyInts = np.where(self.is_cut[samples] & (left_out == 0), self.cut_off[samples], 0)
        return lost

    def tables(self, columns: Sequence[str], with_parts: bool = True) -> Iterator[tuple[int, Ints, pa.Table]]:
        """Read columns of all rows, many rows at a time.

        Yields the item number of the first row, the shard number of each row, and the table. Without parts, only rows
        of samples are read.
        """
        for rows in self.rows:
            if with_parts or rows.start < self.num_samples:
                numbers, table = rows.read(columns)
                if "cut" in columns:
                    cuts = convert_cut_column(table["cut"], self.cut_type)
                    table = table.set_column(table.schema.get_field_index("cut"), "cut", cuts)
                yield rows.start, numbers, table

    def find_cached_rows(self, items: Ints) -> Iterator[tuple[Ints, Chunk, Ints]]:
        """Yield for each chunk of the cache: indices in `items` of its items, the chunk, their rows in it."""
        for rows in self.rows:
            of_items = np.flatnonzero((items >= rows.start) & (items < rows.start + rows.num))
            if len(of_items):
                here = items[of_items] - rows.start
                yield of_items, rows.chunk, here if rows.rows is None else rows.rows[here]

    def sample_ids(self, numbers: Ints, table: pa.Table) -> list[str]:
        """Return the sample ids of rows, from their shard numbers and the column `key` of their table."""
        keys = table["key"].to_pylist()
        return [self.shards[number].shard.sample_id(key) for number, key in zip(numbers.tolist(), keys, strict=True)]

    def sample_id(self, item_number: int) -> str:
        """Return the sample id of an item."""
        rows = next(rows for rows in reversed(self.rows) if rows.start <= item_number)
        numbers, table = rows.read(["key"])
        return self.sample_ids(numbers[[item_number - rows.start]], table.slice(item_number - rows.start, 1))[0]

    def reason(self, table: pa.Table) -> pa.ChunkedArray:
        """Return for each row the reason why no plan may pack it; null: it may be packed.

        `table`: at least the columns `reason_columns`.
        """
        is_unfit = pc.is_valid(self.describe_misfits(table))
        is_untrained = pc.and_(pc.equal(table["num_supervised"], 0), self._drops_untrained)
        return pc.coalesce(
            table["reason"],
            pc.if_else(is_unfit, Reason.NOT_IN_FLAVOR.value, None),
            pc.if_else(is_untrained, Reason.NOTHING_TRAINED.value, None),
        )

    def describe_misfits(self, table: pa.Table) -> pa.ChunkedArray:
        """Return for each row what packs of this flavor can't hold of its sample; null: it fits."""
        answers = [pc.struct_field(table["does_not_fit"], rule) for rule in self.flavor.rules]
        return pc.coalesce(*answers, pa.scalar(None, pa.large_string()))

    def find_largest_part_counts(self, samples: Ints) -> dict[str, Ints]:
        """Return for each of `CAPPED_COLUMNS` the largest count of a sample or one of its parts; of a pair the sum.

        `samples`: item numbers, ascending.
        """
        place = np.searchsorted(samples, self.whole_of_part)
        is_one = np.append(samples, -1)[place] == self.whole_of_part
        counts = {name: self.items.counts[name] for name in CAPPED_COLUMNS}
        if self.has_pairs:
            counts["max_attention_cost"] = self.items.attention_pairs
        join, most = np.add if self.has_pairs else np.maximum, dict[str, Ints]()
        for name, values in counts.items():
            most[name] = values[samples].astype(np.int64) * (not self.has_pairs)
            join.at(most[name], place[is_one], values[self.num_samples :][is_one])
        return most

    def without_rows(self) -> "Lengths":
        """Return a copy without rows. Fill it by `add_computed_rows` and `add_cached_rows`, then call `build_items`."""
        lengths = copy.copy(self)
        lengths._begin()
        return lengths

    def _begin(self) -> None:
        self.rows: list[CachedRows] = []
        self.num_items = 0
        self._growing = {name: self.scratch.column(_COLUMN_TYPES.get(name, np.int32)) for name in _ITEM_COLUMNS}

    def add_computed_rows(self, rows: CachedRows, values: Mapping[str, AnyInts]) -> None:
        """Add rows whose item columns are computed already: `values` has an array for each of them."""
        self.rows.append(rows)
        self.num_items += rows.num
        for name, column in self._growing.items():
            column.add(values[name])

    def add_cached_rows(self, chunk: Chunk, rows: Ints | None, is_sample: bool = False) -> None:
        """Add rows of a cached table (None: all), and compute their item columns; count samples in `noted`, too."""
        new = CachedRows(chunk, rows, self.num_items, chunk.num_rows if rows is None else len(rows))
        if not new.num:
            return
        numbers, table = new.read([*_COLUMNS_READ, *["key"] * self._is_split, *["first_medium"] * self._by_medium])
        reasons = self.reason(table)
        is_in = pc.is_null(reasons).to_numpy()
        media = pc.fill_null(pc.index_in(table["media_type"], pa.array(MEDIA_TYPES)), -1)
        values = {name: table[name].to_numpy() for name in (*CAPPED_COLUMNS, *_NUMBER_COLUMNS)}
        values |= {"token_len": np.where(is_in, values["token_len"], 0), "media": media.to_numpy(), "shard": numbers}
        values |= {"dataset": self._datasets[numbers], "split": self._splits(numbers, table)}
        self.add_computed_rows(new, {**values, "turn": np.zeros(new.num, np.int32)})
        if is_sample:
            self.reasons.update(reasons.drop_null().to_pylist())
            places = new.start + np.flatnonzero(is_in)
            self.noted.add(table.filter(pa.array(is_in)), lambda row: self.sample_id(int(places[row])))

    def _splits(self, numbers: Ints, table: pa.Table) -> AnyInts:
        if not self._is_split:
            return np.full(table.num_rows, int(np.argmax(self._shares)), np.int8)
        names = self.sample_ids(numbers, table)
        if self._by_medium:
            media = table["first_medium"].to_pylist()
            names = [name if medium is None else f"{medium:016x}" for name, medium in zip(names, media, strict=True)]
        return assign_samples_to_splits(names, self._shares, self.seed)

    def build_items(self) -> None:
        """Build `items` from all rows that were added."""
        self.columns = {name: column.array() for name, column in self._growing.items()}
        #: bytes of each item as members of a tar, and a checksum of its source
        self.num_bytes, self.checksums = self.columns["num_bytes"], self.columns["checksum"]
        #: where the tokens of each item are kept
        self.kept_token_places = self.columns["kept"]
        columns = {name: self.columns[name] for name in ("media", "shard", "dataset", "split", "num_supervised")}
        if self.cut_type != CUT_TYPE:
            columns["conversation"] = np.concatenate((np.arange(self.num_samples), self.whole_of_part)).astype(np.int32)
        if self.num_turns > 1:
            columns["turn"] = self.columns["turn"]
        if self.columns["clip_frames"].any():
            columns["clip_frames"] = self.columns["clip_frames"]
        if self.entry_of_shard is not None:
            columns["entry"] = self.entry_of_shard[self.columns["shard"]].astype(np.int16)
        self.items = Items(counts={name: self.columns[name] for name in CAPPED_COLUMNS}, **columns)
