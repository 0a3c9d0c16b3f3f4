"""A packed dataset as it lies on disk: its shards, the packs in each, the rows of its plan.

Read with care: it may be damaged, and whoever reads it here wants to know how.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from energon_pack.dataset.plan_rows import PLAN_SCHEMA, PlanRow
from energon_pack.errors import PackError
from energon_pack.samples.cut import PART_OF, Cut
from energon_pack.samples.sample import Part
from energon_pack.sources.rows import rows_of
from energon_pack.sources.storage import open_file
from energon_pack.sources.tar import BLOCK, TarScan

PLAN = "pack_plan.parquet"
LEDGER = "skipped.jsonl"
PAGE = "report.html"


class PackFiles(NamedTuple):
    """The files of one pack in its shard."""

    key: str
    start: int  # of its first header
    end: int  # of its last block
    parts: list[Part]  # in the tar's order


def packs_in(scan: TarScan) -> Iterator[PackFiles]:
    """The packs of a shard: members in a row with one key."""
    key, start, end = "", 0, 0
    parts: list[Part] = []
    for name, offset, size in scan:
        its_key, _, part = name.partition(".")
        if parts and its_key != key:
            yield PackFiles(key, start, end, parts)
            start, parts = end, []
        key = its_key
        parts.append(Part(part, offset, size))
        end = offset - -max(size, 0) // BLOCK * BLOCK
    if parts:
        yield PackFiles(key, start, end, parts)


def shard_paths(folder: Path) -> list[Path]:
    """Every tar of a dataset, in name order."""
    return sorted(path for path in folder.glob("*.tar") if not path.name.startswith("."))


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object.

    Raises:
        OSError: it can't be read.
        ValueError: it is no JSON, or no object.
    """
    with open_file(path) as file:
        data = file.read(0, file.size)
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"a {type(value).__name__}, not an object")
    return value


def at(value: Any, *keys: str) -> Any:
    """A value deep in JSON; None where it is not there."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


# -------------------------------------------------------------------------------------------------------- the plan


#: What reading a damaged file raises.
_UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError)


@dataclass(frozen=True)
class PlanFile:
    """pack_plan.parquet, opened anew for each question, so that it can be handed to a worker."""

    path: Path

    def num_members(self) -> int:
        with pq.ParquetFile(self.path) as file:
            return int(file.metadata.num_rows)

    def check(self) -> None:
        """Raises PackError where it can't be read, or lacks a column."""
        try:
            with open_file(self.path), pq.ParquetFile(self.path) as file:
                self._refuse_other(file.schema_arrow)
        except _UNREADABLE as error:
            raise self._unreadable(error) from None

    def columns(self, *names: str) -> Iterator[list[Any]]:
        """As `tables`, each column as a list."""
        for table in self.tables(*names):
            yield [table[name].to_pylist() for name in names]

    def tables(self, *names: str) -> Iterator[pa.Table]:
        """Columns of all rows, a row group at a time.

        Raises:
            PackError: it can't be read.
        """
        try:
            with pq.ParquetFile(self.path) as file:
                for number in range(file.num_row_groups):
                    yield file.read_row_group(number, list(names))
        except _UNREADABLE as error:
            raise self._unreadable(error) from None

    def members(self, keys: set[str]) -> dict[str, list[PlanRow]]:
        """The members of some packs, rows that make no sense left out; only row groups that may hold them are read.

        Raises:
            PackError: it can't be read, or lacks a column.
        """
        if not keys:
            return {}
        try:
            with pq.ParquetFile(self.path) as file:
                self._refuse_other(file.schema_arrow)
                groups = [n for n in range(file.num_row_groups) if _may_hold(file.metadata.row_group(n), keys)]
                table = file.read_row_groups(groups, PLAN_SCHEMA.names)
            table = table.filter(pc.is_in(table["pack"], pa.array(keys, pa.string())))
            rows = sorted(rows_of(table, PlanRow), key=attrgetter("pack"))  # stable: it is sorted, unless damaged
        except _UNREADABLE as error:
            raise self._unreadable(error) from None
        by_pack = groupby(rows, key=attrgetter("pack"))
        return {key: [member for member in group if _makes_sense(member)] for key, group in by_pack}

    def _refuse_other(self, schema: pa.Schema) -> None:
        for column in PLAN_SCHEMA:
            if column.name not in schema.names or schema.field(column.name).type != column.type:
                raise PackError(f"{self.path.name} has no column {column.name} of type {column.type}")

    def _unreadable(self, error: Exception) -> PackError:
        what = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())[:200]
        return PackError(f"{self.path.name} can't be read: {what}")


def _may_hold(group: Any, keys: set[str]) -> bool:
    """Whether a row group may have rows of some packs, by its statistics."""
    statistics = group.column(PLAN_SCHEMA.get_field_index("pack")).statistics
    return statistics is None or (statistics.min <= max(keys) and statistics.max >= min(keys))


def _makes_sense(member: PlanRow) -> bool:
    """Whether a row has the values it needs, and possible ones: a damaged plan may hold anything of the right types."""
    strings = (member.shard, member.key, member.record_part)
    numbers = (
        member.token_len,
        member.num_supervised,
        member.num_visual_tokens,
        member.record_offset,
        member.record_size,
    )
    return (
        all(isinstance(value, str) for value in strings)
        and all(isinstance(value, int) for value in numbers)
        and all(None not in part and part.kind in ("image", "video") for part in member.parts)
        and all(None not in part for part in member.positions)
        and (member.cut is None or _is_possible(member.cut))
    )


def _is_possible(cut: Cut) -> bool:
    turns, kinds = (cut.first_turn, cut.end_turn), cut.kinds
    return (
        isinstance(cut.part, str)
        and PART_OF.fullmatch(cut.part) is not None
        and all(isinstance(turn, int) and turn >= 0 for turn in turns)
        and isinstance(kinds, str)
        and set(kinds) <= {"i", "v"}
    )
