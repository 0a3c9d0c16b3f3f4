"""A file whose rows are samples: lines of JSON, or rows of a table, whose media are cells or files beside it."""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from energon_pack.errors import one_line
from energon_pack.run.address import bucket_of
from energon_pack.samples.dialects.media_in_text import INTERLEAVED_FIELDS, refuse_url
from energon_pack.samples.dialects.rewrite import FILE_NAME_KEY, with_cells_parsed_as_lists
from energon_pack.samples.keys import similar_key_hint
from energon_pack.samples.media.kinds import MEDIA_KEYS
from energon_pack.samples.raw_record import apply_map_function, parse_sample_json
from energon_pack.samples.record import Record
from energon_pack.samples.sample import AnyPart, Part
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.arrow_rows import ArrowTable
from energon_pack.sources.csv_rows import delimiter_name, first_csv_record_places, index_csv
from energon_pack.sources.jsonl import line_index
from energon_pack.sources.jsonl.dialects import RowSettings, parse_row
from energon_pack.sources.jsonl.line_index import file_digest, make_index_table
from energon_pack.sources.media_files import (
    join_file_and_key,
    mapped_buckets,
    path_in_archive,
    replace_mapped_prefix,
    split_file_and_key,
)
from energon_pack.sources.other_formats import TABLE_FILE
from energon_pack.sources.sample_ratio import remove_copy_mark
from energon_pack.sources.settings import Format
from energon_pack.sources.source_file import LookUp, SampleRow, SourceFile, relative_path
from energon_pack.sources.storage import File, folder_of, path_in
from energon_pack.sources.table_rows import column_names, columnar_table_of, is_text_table, row_json, table_extension


@dataclass(frozen=True)
class RowShard(SourceFile):
    """A file whose rows are samples; their media are separate files, or values of the rows."""

    key_separator = ":"
    #: matches such files in a folder
    names: ClassVar[re.Pattern[str]]
    #: whether the names of a folder's files tell splits
    has_splits: ClassVar[bool] = False

    row_settings: RowSettings

    @property
    def identity(self) -> tuple[Any, ...]:
        return *super().identity[:-1], self.row_settings.identity

    @property
    def media_root(self) -> str:
        return self.row_settings.media_root

    @property
    def ratio(self) -> float:
        return self.row_settings.ratio

    def first(self, number: int) -> Iterator[bytes]:
        """Yield the JSON of each of the first `number` samples that can be read, without indexing the whole file."""
        with self.open() as file:
            for row in self.first_rows(number):
                with suppress(Skip):
                    yield self.raw_of(file, row)

    def first_rows(self, number: int) -> list[SampleRow]:
        """Return the first `number` samples of the file; raises PackError if it can't be read."""
        raise NotImplementedError

    def _make_sample_row(self, key: int, place: tuple[int, int]) -> SampleRow:
        return SampleRow(str(key), line_index.ROW_PART, *place)

    def path_of(self, name: str) -> str:
        file, key = split_file_and_key(name)
        if key is not None and file == os.path.basename(self.path):
            return join_file_and_key(self.path, key)
        name = replace_mapped_prefix(name, self.row_settings.media_map)
        return path_in_archive(self.media_root, name) or path_in(self.media_root, name)

    def record(self, raw: bytes, part: str, has_media: bool, settings: ReadSettings) -> Record:
        try:
            value = self.value(raw)
        except Skip:
            raise
        except Exception as error:  # raised by a class of another package
            raise Skip(Reason.INVALID_JSON, f"{type(self).__name__} can't read it: {one_line(error)}") from None
        value = self._with_lists(apply_map_function(value, settings), settings)
        record = parse_row(value, self.row_settings, settings)
        self._refuse_texts_of_bytes(record)
        return record

    def _refuse_texts_of_bytes(self, record: Record) -> None:
        """Raise Skip if the name of a medium in this file stands in a text: bytes or base64, where a text should be."""
        inside = re.compile(re.escape(join_file_and_key(os.path.basename(self.path), "")) + r"\d+[/+]")
        for content in (message["content"] for message in record.messages):
            texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
            if wrong := next(filter(inside.search, texts), None):
                detail = f"a text is bytes, or a medium in base64: {wrong[:80]!r}: write it as text (pyarrow's cast)"
                raise Skip(Reason.BAD_MESSAGE, detail)

    def value(self, raw: bytes) -> Any:
        """Parse a row into a JSON value; if an error is raised, the sample is left out, as `invalid_json`."""
        return parse_sample_json(raw)

    def _with_lists(self, value: Any, settings: ReadSettings) -> Any:
        """Return a row, behind `source.map`, with the lists that its file can only hold as texts; raises Skip."""
        return value

    def media(self, record: Record, key: str, parts: Sequence[Part], look_up: LookUp) -> list[Part]:
        names = record.listed_media or []
        if not names and record.declared not in (None, "text"):
            meant = next(filter(None, map(similar_key_hint, record.unknown)), "")
            raise Skip(Reason.MISSING_MEDIA, f"declared as {record.declared}, but it names no media{meant}")
        return [look_up(self._allowed_name(name)) for name in names]

    def part(self, name: str, key: str, parts: Sequence[Part], look_up: LookUp) -> Part:
        return look_up(self._allowed_name(name))

    def _allowed_name(self, name: str) -> str:
        """Return the name of a medium; raises Skip for an address on a store that no setting names, and for a URL."""
        rows, mapped = self.row_settings, replace_mapped_prefix(name, self.row_settings.media_map)
        refuse_url(mapped, "it names")
        bucket = bucket_of(mapped)
        if not rows.remote_media and bucket not in ("", bucket_of(self.media_root), *mapped_buckets(rows.media_map)):
            detail = f"{name!r} is on another store than source.media_root; source.remote_media=true reads it there"
            raise Skip(Reason.MISSING_MEDIA, detail)
        return name

    @property
    def names_folder(self) -> str:
        """Return the folder that names of its media are relative to."""
        return folder_of(self.media_root) if path_in_archive(self.media_root, "") else self.media_root

    def place(self, part: AnyPart, root: str) -> tuple[str | int, ...]:
        path, key = split_file_and_key(relative_path(root, self.path_of(part.name)))
        return (path,) if key is None else (path, key)


_HASHED_HEAD_BYTES, _HASHED_TAIL_BYTES = 64 << 10, 1 << 20
#: a part of the key of kept lengths: the name that this class has had since they are kept
_KIND = ("energon_pack.sources.parquet_shard", "TableShard", 0)
_CALLED = {".parquet": "Parquet", ".arrow": "Arrow", ".csv": "CSV", ".tsv": "TSV"}
_USUAL_DELIMITERS = {".csv": ",", ".tsv": "tab"}


@dataclass(frozen=True)
class TableShard(RowShard):
    """A Parquet, an Arrow file, a CSV or a TSV; the key of a sample is the number of its row, from 0.

    The `record_offset` of a row is its number, or in a CSV its place.
    """

    names = TABLE_FILE
    format = Format.table
    has_splits = True

    @property
    def is_read_by_place(self) -> bool:
        return is_text_table(self.path)

    @property
    def called(self) -> str:
        kind = table_extension(self.path)
        usual = _USUAL_DELIMITERS.get(kind)
        delimiter = delimiter_name(self.path) if usual else None
        return _CALLED[kind] if delimiter == usual else f"{_CALLED[kind]} ({delimiter})"

    @property
    def identity(self) -> tuple[Any, ...]:
        return *super().identity, *_KIND

    def index(self) -> pa.Table:
        if is_text_table(self.path):
            return index_csv(self.path)
        table = columnar_table_of(self.path)
        sizes = np.repeat(np.array(table.text_lens, np.int64), table.group_lens)
        damage = table.damage if isinstance(table, ArrowTable) else []
        sizes = np.append(sizes, [0] * len(damage)).astype(np.int64)
        numbers = np.arange(len(sizes))
        return make_index_table(numbers, numbers, sizes, self.digest(), [detail for _, detail in damage], damage)

    def first_rows(self, number: int) -> list[SampleRow]:
        if is_text_table(self.path):
            places = first_csv_record_places(self.path, number)
        else:
            places = [(row, 0) for row in range(min(number, columnar_table_of(self.path).group_starts[-1]))]
        return [self._make_sample_row(*place) for place in enumerate(places)]

    def raw_of(self, file: File, row: SampleRow, lead: int = 0) -> bytes:
        number = int(remove_copy_mark(row.key))
        return row_json(self.path, file, number, row.record_offset, row.record_size)

    @cached_property
    def _media_columns(self) -> dict[str, None]:
        names = {*MEDIA_KEYS, *INTERLEAVED_FIELDS.values()}
        return {name: None for name in column_names(self.path) if name in names or FILE_NAME_KEY.fullmatch(name)}

    def value(self, raw: bytes) -> Any:
        """Parse a row; a column of media that has nothing there is null, for a placeholder may have lost its medium."""
        return {**self._media_columns, **super().value(raw)}

    def _with_lists(self, value: Any, settings: ReadSettings) -> Any:
        return with_cells_parsed_as_lists(value, settings)

    def digest(self) -> str:
        """Hash all of a CSV; of others the size, first 64 KiB and last 1 MiB, where a Parquet names its columns."""
        if is_text_table(self.path):
            return file_digest(self.path)
        with self.open() as file:
            start = max(0, file.size - _HASHED_TAIL_BYTES)
            ends = file.read(0, _HASHED_HEAD_BYTES), file.read(start, file.size - start)
            return hashlib.sha256(b"".join(ends) + str(file.size).encode()).hexdigest()
