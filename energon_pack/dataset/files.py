"""Read a packed dataset's files: the rows of its plan, and the checksums of its media.

Files may be damaged. Each function checks what it reads, and says what is wrong.

The file of checksums, media.crc32, holds little-endian numbers:

    (packs + 1) × uint64    where the checksums of each pack begin in the file, and the end of the last pack's
    media × uint32          the CRC-32 of each file that was copied from the source, in the order of the shards

The checksums of one shard have the same form; `join_checksums_of_shards` joins those of all shards.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.manifest import MANIFEST, PACK_TOTALS_FILE, REPORT, hash_of
from energon_pack.errors import PackError
from energon_pack.lengths.schema import LENGTHS_SCHEMA
from energon_pack.run.files import META_FOLDER
from energon_pack.samples.bytes import Bytes, as_file
from energon_pack.samples.cut import (
    CUT_FORMS,
    EXPANDED_CUT_TYPE,
    PART_NAME,
    SIDES,
    TEXT_CUT_TYPE,
    Cut,
    member_id,
    split_numbered_member_id,
)
from energon_pack.samples.flavors.base import MESSAGES_FIELD
from energon_pack.samples.input_rules import INPUTS_FILE, TRIAL_FILE
from energon_pack.samples.media.kinds import KIND_BY_LETTER, KINDS
from energon_pack.sources.jsonl.line_index import ROW_PART
from energon_pack.sources.row_shard import RowShard
from energon_pack.sources.shard import TarShard
from energon_pack.sources.source_file import MeasuredRow, rows_of

MEASURED_COLUMNS = (
    "key", "media_type", "token_len", "num_supervised", "num_visual_tokens", "record_part", "record_offset",
    "record_size", "parts", "positions", "cut",
)  # fmt: skip
PLAN_SCHEMA = pa.schema(
    [("pack", pa.string()), ("shard", pa.string()), *(LENGTHS_SCHEMA.field(name) for name in MEASURED_COLUMNS)]
)
#: the schema with the column that names the tar of a pack
WRITTEN_SCHEMA = PLAN_SCHEMA.append(pa.field("output_shard", pa.string()))
#: columns that only a plan with `packing.share` has
_SHARED_COLUMNS = ("shared_len", "num_shared_images", "num_shared_videos", "num_shared_visual_tokens")
SHARED_SCHEMA = pa.schema([(name, pa.int32()) for name in _SHARED_COLUMNS])
#: the column that only a plan of samples with sounds has
SOUNDS_SCHEMA = pa.schema([LENGTHS_SCHEMA.field("num_audio_tokens")])
#: columns that a plan may have, or not
OPTIONAL_COLUMNS = (*SHARED_SCHEMA.names, *SOUNDS_SCHEMA.names)
#: other types that a column may have instead of its type in `PLAN_SCHEMA`
_ALTERNATIVE_TYPES = {"cut": (EXPANDED_CUT_TYPE, TEXT_CUT_TYPE)}

PLAN = "pack_plan.parquet"
LEDGER = "skipped.jsonl"
PAGE = "report.html"
#: files that every whole packed dataset has; besides, each shard has its index
REQUIRED_FILES = {
    *(PLAN, LEDGER, REPORT),
    *(f"{META_FOLDER}/{name}" for name in ("dataset.yaml", "split.yaml", ".info.json", ".info.yaml")),
    *(f"{META_FOLDER}/{name}" for name in (MANIFEST, INPUTS_FILE, TRIAL_FILE, PACK_TOTALS_FILE)),
}


@dataclass(slots=True)
class PlanRow(MeasuredRow):
    """One member of a pack, as a row of pack_plan.parquet describes it."""

    pack: str
    shard: str
    shared_len: int = 0  # how many of its first tokens it shares with the member before it
    num_shared_images: int = 0  # how many of its first images are in these tokens; the next likewise for videos
    num_shared_videos: int = 0
    num_shared_visual_tokens: int = 0
    num_audio_tokens: int = 0  # that hold features of sounds; 0, too, in a plan that does not tell them

    @property
    def num_shared_media(self) -> int:
        """Return how many of its first images and videos the member shares with the member before it."""
        return self.num_shared_images + self.num_shared_videos

    @property
    def sample_name(self) -> str:
        """Return the name of the member's source sample: `<shard>/<key>` in a tar, `<file>:<line>` in a JSONL file."""
        mark = RowShard.key_separator if self.record_part == ROW_PART else TarShard.key_separator
        return f"{self.shard}{mark}{self.key}"

    @property
    def sample_id(self) -> str:
        """Return `sample_name`, plus `#1of3` for the first of three parts, `+chosen` or `+rejected` for a side.

        If the name of a whole one ends like that of a part, it gets `#1of1`.
        """
        part = self.cut.part if self.cut else "1of1" if split_numbered_member_id(self.sample_name)[1] else None
        return member_id(self.sample_name, part)


def nested_value(value: Any, *keys: str) -> Any:
    """Return the value below nested keys of a JSON object; None if a key is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def has_messages(manifest: Any) -> bool:
    """Say whether the JSON of a dataset's packs holds conversations: `output.messages=false` leaves them out."""
    return nested_value(manifest, "content", "output", MESSAGES_FIELD) is not False


# -------------------------------------------------------------------------------------------------------- the plan


@contextmanager
def _refuse_unreadable_plan() -> Iterator[None]:
    """Raise PackError for any error that reading a damaged file raises."""
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())[:200]
        raise PackError(f"{PLAN} can't be read: {why}") from None


@dataclass(frozen=True)
class PlanFile:
    """The pack_plan.parquet of a folder. Each method opens the file anew, so the object can be pickled for a worker."""

    folder: DatasetFolder

    def num_members(self) -> int:
        with self.open_parquet() as file:
            return int(file.metadata.num_rows)

    def check(self) -> None:
        """Raise PackError if the plan can't be read, or lacks a column."""
        with self.open_parquet() as file:
            _refuse_other_columns(file.schema_arrow)

    def columns(self, *column_names: str) -> Iterator[list[Any]]:
        """Yield the values of these columns as lists, one row group at a time."""
        for table in self.tables(*column_names):
            yield [table[name].to_pylist() for name in column_names]

    def tables(self, *column_names: str) -> Iterator[pa.Table]:
        """Yield a table with these columns for each row group."""
        with self.open_parquet() as file:
            for number in range(file.num_row_groups):
                yield file.read_row_group(number, list(column_names))

    def rows_of_packs(self, keys: set[str]) -> dict[str, list[PlanRow]]:
        """Return the rows of the packs with these keys, as `PlanRowLookup.rows_of_packs` does."""
        return PlanRowLookup(self).rows_of_packs(keys)

    @contextmanager
    def open_parquet(self, metadata: pq.FileMetaData | None = None) -> Iterator[pq.ParquetFile]:
        """Open the Parquet file; PackError: it is damaged. `metadata`: its footer, if it was read before."""
        with (
            _refuse_unreadable_plan(),
            self.folder.open(PLAN) as file,
            pq.ParquetFile(as_file(file), metadata=metadata) as parquet,
        ):
            yield parquet


class PlanRowLookup:
    """Looks up the rows of packs in a plan. A caller that asks in the plan's order reads no row group twice."""

    def __init__(self, plan: PlanFile):
        self._plan = plan
        self._metadata: pq.FileMetaData | None = None
        self._groups: list[int] = []
        self._table = PLAN_SCHEMA.empty_table()  # the rows of these row groups

    def rows_of_packs(self, keys: set[str]) -> dict[str, list[PlanRow]]:
        """Return pack key → the pack's rows; rows with values that packing never writes (damage) are left out."""
        if not keys:
            return {}
        with _refuse_unreadable_plan():
            if self._metadata is None:
                with self._plan.open_parquet() as file:
                    _refuse_other_columns(file.schema_arrow)
                    self._metadata = file.metadata
            groups = [
                n for n in range(self._metadata.num_row_groups) if _may_hold_packs(self._metadata.row_group(n), keys)
            ]
            if groups != self._groups:
                with self._plan.open_parquet(self._metadata) as file:
                    names = [
                        *PLAN_SCHEMA.names,
                        *(name for name in OPTIONAL_COLUMNS if name in file.schema_arrow.names),
                    ]
                    self._table, self._groups = file.read_row_groups(groups, names), groups
            table = self._table.filter(pc.is_in(self._table["pack"], pa.array(keys, pa.string())))
            rows = sorted(rows_of(table, PlanRow), key=attrgetter("pack"))  # stable: rows are sorted, unless damaged
        by_pack = groupby(rows, key=attrgetter("pack"))
        return {key: [member for member in group if _is_possible_row(member)] for key, group in by_pack}


def _refuse_other_columns(schema: pa.Schema) -> None:
    for column in PLAN_SCHEMA:
        types = (column.type, *_ALTERNATIVE_TYPES.get(column.name, ()))
        if column.name not in schema.names or schema.field(column.name).type not in types:
            raise PackError(f"{PLAN} has no column {column.name} of type {column.type}")


def _may_hold_packs(group: Any, keys: set[str]) -> bool:
    """Say whether a row group may have rows of the packs `keys`, by the statistics in its metadata."""
    statistics = group.column(PLAN_SCHEMA.get_field_index("pack")).statistics
    return statistics is None or (statistics.min <= max(keys) and statistics.max >= min(keys))


def _is_possible_row(member: PlanRow) -> bool:
    """Say whether a row has all its values, and each is one that packing may write: a plan may be damaged."""
    strings = (member.shard, member.key, member.record_part)
    numbers = (
        member.token_len,
        member.num_supervised,
        member.num_visual_tokens,
        member.num_audio_tokens,
        member.record_offset,
        member.record_size,
    )
    return (
        all(isinstance(value, str) for value in strings)
        and all(isinstance(value, int) for value in numbers)
        and all(None not in part and part.kind in KINDS for part in member.parts)
        and all(None not in part for part in member.positions)
        and (member.cut is None or _is_possible_cut(member.cut))
    )


def _is_possible_cut(cut: Cut) -> bool:
    turns, kinds = (cut.first_turn, cut.end_turn, cut.trained_turn or 0, cut.first_image or 0), cut.kinds
    of_text = (cut.num_characters, cut.first_character, cut.first_token, cut.end_token)
    return (
        isinstance(cut.part, str)
        and (cut.part in SIDES or PART_NAME.fullmatch(cut.part) is not None)
        and all(isinstance(turn, int) and turn >= 0 for turn in turns)
        and (cut.form != "tokens" or all(isinstance(number, int) and number >= 0 for number in of_text))
        and isinstance(kinds, str)
        and set(kinds) <= KIND_BY_LETTER.keys()
        and (cut.form is None or cut.form in CUT_FORMS)
    )


# ---------------------------------------------------------------------------------------------- checksums of media


#: only a dataset whose packs hold media has it
MEDIA_SUMS_FILE = "media.crc32"
_PLACE_BYTES, _SUM_BYTES = 8, 4


def checksums_to_bytes(
    bounds: Sequence[int] | npt.NDArray[np.uint64], sums: Sequence[int] | npt.NDArray[np.uint32]
) -> bytes:
    """Return the bytes of checksums. `bounds`: for each pack how many are before its own; then how many there are."""
    places = np.array(bounds, "<u8") * _SUM_BYTES + _PLACE_BYTES * len(bounds)
    return places.tobytes() + np.array(sums, "<u4").tobytes()


def join_checksums_of_shards(shard_checksums: Sequence[bytes]) -> bytes | None:
    """Join the checksums of shards, in their order, to the bytes of a dataset's file; None: packs hold no media."""
    counts, sums = [np.zeros(1, np.uint64)], [np.zeros(0, "<u4")]
    for data in shard_checksums:
        end = int(np.frombuffer(data, "<u8", 1)[0])
        counts.append(np.diff(np.frombuffer(data[:end], "<u8")) // _SUM_BYTES)
        sums.append(np.frombuffer(data[end:], "<u4"))
    every = np.concatenate(sums)
    return checksums_to_bytes(np.cumsum(np.concatenate(counts)), every) if len(every) else None


class MediaChecksums(NamedTuple):
    """The checksums of a dataset, read pack by pack."""

    file: Bytes
    key_prefix: str  # of the keys of its packs

    def of_pack(self, key: str) -> list[int] | None:
        """Return the checksums of a pack's media, in its order; None: packing wrote no pack with this key."""
        number = key.removeprefix(f"{self.key_prefix}_")
        if not (number.isascii() and number.isdigit() and f"{self.key_prefix}_{int(number):08d}" == key):
            return None
        num_packs = int(np.frombuffer(self.file.read(0, _PLACE_BYTES), "<u8")[0]) // _PLACE_BYTES - 1
        if int(number) >= num_packs:
            return None
        start, end = np.frombuffer(self.file.read(_PLACE_BYTES * int(number), 2 * _PLACE_BYTES), "<u8").tolist()
        sums: list[int] = np.frombuffer(self.file.read(start, end - start), "<u4").tolist()
        return sums


@contextmanager
def open_checksums(folder: DatasetFolder, key_prefix: str) -> Iterator[MediaChecksums | None]:
    """Open the checksums of a dataset's media; None: it has none."""
    name = f"{META_FOLDER}/{MEDIA_SUMS_FILE}"
    if not folder.has(name):
        yield None
        return
    with folder.open(name) as file:
        yield MediaChecksums(file, key_prefix)


def why_checksums_unusable(folder: DatasetFolder, manifest: Mapping[str, Any]) -> str | None:
    """Say why media can't be compared with their checksums; None: they can."""
    name = f"{META_FOLDER}/{MEDIA_SUMS_FILE}"
    if not folder.has(name):
        return f"the dataset has no {name}, which this version writes"
    try:
        is_whole = hash_of(folder.read(name)) == nested_value(manifest, "hashes", MEDIA_SUMS_FILE)
    except OSError as error:
        return f"{name} can't be read: {error.strerror or error}"
    return None if is_whole else f"{name} is not as it was packed"
