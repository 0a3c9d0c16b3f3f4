"""What there is to pack: a few numbers for each sample, read from the files of lengths.

About 40 bytes a sample are held; all else stays in the files and is read again, file by file, where it is needed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from energon_pack.bins import Ints
from energon_pack.lengths import MeasuredShard
from energon_pack.packs import CAPTIONING
from energon_pack.sample import Reason
from energon_pack.sources.find import Shard
from energon_pack.splits import split_numbers

#: In the order of two bits: holds images, holds videos.
MEDIA_TYPES = ("text", "image", "video", "mix")

#: What the report counts of samples that were measured.
NOTES = ("control_tokens", "placeholders_put_in", "placeholders_as_text", "tools_left_out")

_NUMBERS = ("num_images", "num_visual_tokens", "num_supervised", "num_bytes")
_COLUMNS = ("media_type", "token_len", *_NUMBERS, "reason", "not_captioning", "num_control_tokens", *NOTES[1:])

AnyInts = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Items:
    """What is packed, one entry an item: a sample, or a part of one that was cut."""

    lens: AnyInts  # tokens; 0: not to be packed
    media: AnyInts  # index into MEDIA_TYPES, -1 where it can't be told
    num_images: AnyInts
    num_visual_tokens: AnyInts
    shard: AnyInts  # number of its source shard
    dataset: AnyInts  # number of the folder its shard is in
    split: AnyInts  # index into SPLITS

    def __len__(self) -> int:
        return len(self.lens)


@dataclass(frozen=True)
class _File:
    """A file of lengths, and which of its rows count."""

    shard: Shard
    path: Path
    rows: Ints | None  # None: all
    start: int  # the first of them among the items
    num: int


class Lengths:
    """The samples of a run, in the order of the source, then the parts of those that were cut.

    Args:
        excluded: keys of samples left out, by shard.
        limit: only the first so many of the others.
        flavor: of the packs.
        shares: of the splits.
        seed: says which samples are in which.
    """

    def __init__(
        self,
        measured: Sequence[MeasuredShard],
        excluded: Mapping[str, Set[str]] | None = None,
        limit: int | None = None,
        flavor: str = "packed_multi_mix_qa",
        shares: Sequence[float] = (1.0,),
        seed: int = 0,
    ):
        #: source shards by number
        self.shard_names = [item.shard.name for item in measured]
        self._shards = [item.shard for item in measured]
        #: samples by the reason they are out for
        self.reasons: Counter[str] = Counter()
        #: samples with what `NOTES` names
        self.notes: Counter[str] = Counter()
        #: samples that are packed as their parts
        self.is_cut: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        folders = [name.rpartition("/")[0] for name in self.shard_names]
        self._datasets = [sorted(set(folders)).index(folder) for folder in folders]
        self._flavor, self._shares, self._seed = flavor, shares, seed
        self._is_split = max(shares) < 1
        self._files: list[_File] = []
        self._num_items = 0
        self._columns: dict[str, list[AnyInts]] = {}
        for number, item in enumerate(measured):
            self._add_samples(number, item.path, (excluded or {}).get(item.shard.name, frozenset()), limit)
        self._join()
        self.num_samples = len(self.items)
        #: tokens of each sample, cut or not
        self.sample_lens = self.items.lens
        self.is_cut = np.zeros(self.num_samples, np.bool_)

    def add_parts(self, cut: Mapping[int, tuple[Path, Ints]], is_cut: npt.NDArray[np.bool_]) -> None:
        """Parts in place of samples.

        Args:
            cut: by the shard's number a file of parts, and the rows of it that count.
            is_cut: bool[num_samples], the samples they are of.
        """
        for number, (path, rows) in cut.items():
            self._add(number, path, rows, self._read(path, self._is_split).take(pa.array(rows)))
        self._join()
        self.is_cut = is_cut
        self.items.lens[: self.num_samples][is_cut] = 0

    def tables(self, columns: Sequence[str], with_parts: bool = True) -> Iterator[tuple[int, Shard, pa.Table]]:
        """Every file's rows: the number of the first among the items, the shard, and the columns."""
        for file in self._files:
            if with_parts or file.start < self.num_samples:
                table = pq.read_table(file.path, columns=list(columns))
                table = table if file.rows is None else table.take(pa.array(file.rows))
                yield file.start, file.shard, table.slice(0, file.num)

    def reason(self, table: pa.Table) -> pa.ChunkedArray:
        """Why each row is in no pack, whatever the plan; null: it may be in one."""
        if self._flavor != CAPTIONING:
            return table["reason"]
        does_not_fit = pc.if_else(pc.is_valid(table["not_captioning"]), Reason.NOT_IN_FLAVOR.value, None)
        return pc.coalesce(table["reason"], does_not_fit)

    def sample_id(self, index: int) -> str:
        """The id of an item, as in the ledger."""
        file = next(f for f in reversed(self._files) if f.start <= index)
        key = next(table["key"] for start, _, table in self.tables(["key"]) if start == file.start)
        return file.shard.sample_id(key[index - file.start].as_py())

    def _add_samples(self, number: int, path: Path, excluded: Set[str], limit: int | None) -> None:
        table, rows = self._read(path, bool(excluded) or self._is_split), None
        if excluded:
            is_out = pc.is_in(table["key"], pa.array(sorted(excluded), pa.large_string()))
            rows = np.flatnonzero(~is_out.to_numpy())
            table = table.take(pa.array(rows))
        table = table.slice(0, None if limit is None else max(0, limit - self._num_items))
        self._add(number, path, rows, table)
        reasons = self.reason(table)
        self.reasons.update(reasons.drop_null().to_pylist())
        for note in NOTES:
            column = pc.greater(table["num_control_tokens"], 0) if note == "control_tokens" else table[note]
            self.notes[note] += pc.sum(pc.and_(column, pc.is_null(reasons))).as_py() or 0

    def _add(self, number: int, path: Path, rows: Ints | None, table: pa.Table) -> None:
        if not table.num_rows:
            return
        self._files.append(_File(self._shards[number], path, rows, self._num_items, table.num_rows))
        self._num_items += table.num_rows
        media = pc.fill_null(pc.index_in(table["media_type"], pa.array(MEDIA_TYPES)), -1)
        measured = pc.is_null(self.reason(table)).to_numpy()
        self._append("lens", np.where(measured, table["token_len"].to_numpy(), 0).astype(np.int32))
        self._append("media", media.to_numpy().astype(np.int8))
        self._append("shard", np.full(table.num_rows, number, np.int32))
        self._append("dataset", np.full(table.num_rows, self._datasets[number], np.int32))
        self._append("split", self._splits(number, table))
        for name in _NUMBERS:
            self._append(name, table[name].to_numpy())

    @staticmethod
    def _read(path: Path, with_key: bool) -> pa.Table:
        return pq.read_table(path, columns=[*_COLUMNS, *(["key"] if with_key else [])])

    def _splits(self, number: int, table: pa.Table) -> AnyInts:
        if not self._is_split:
            return np.full(table.num_rows, int(np.argmax(self._shares)), np.int8)
        prefix = self._shards[number].sample_id("")
        return split_numbers(table["key"].to_pylist(), self._shares, self._seed, prefix)

    def _append(self, name: str, values: AnyInts) -> None:
        self._columns.setdefault(name, []).append(values)

    def _join(self) -> None:
        types = {"media": np.int8, "split": np.int8, "num_bytes": np.int64}
        names = [*(field.name for field in fields(Items)), "num_supervised", "num_bytes"]
        joined = {
            name: np.concatenate([np.zeros(0, types.get(name, np.int32)), *self._columns.get(name, [])])
            for name in names
        }
        self._columns = {name: [values] for name, values in joined.items()}
        #: bytes of each item as members of a tar, and its supervised tokens
        self.num_bytes, self.num_supervised = joined.pop("num_bytes"), joined.pop("num_supervised")
        self.items = Items(**joined)
