"""A file whose rows are samples: lines of JSON, or rows of a table."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from energon_pack.errors import one_line
from energon_pack.run.address import bucket_of
from energon_pack.samples.dialects.pictures import refuse_url
from energon_pack.samples.keys import similar_key_hint
from energon_pack.samples.raw_json import load_json
from energon_pack.samples.record import Record
from energon_pack.samples.sample import AnyPart, Part
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.user_map import map_record
from energon_pack.sources.jsonl import line_index
from energon_pack.sources.jsonl.dialects import RowSettings, parse_row
from energon_pack.sources.media_containers import joined_name, path_in_archive, split_file_and_key
from energon_pack.sources.media_map import mapped_buckets, mapped_name
from energon_pack.sources.rows import SampleRow
from energon_pack.sources.source_file import LookUp, SourceFile, relative_path
from energon_pack.sources.storage import folder_of, path_in


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
            return joined_name(self.path, key)
        name = mapped_name(name, self.row_settings.media_map)
        return path_in_archive(self.media_root, name) or path_in(self.media_root, name)

    def record(self, raw: bytes, part: str, has_media: bool, settings: ReadSettings) -> Record:
        try:
            value = self.value(raw)
        except Skip:
            raise
        except Exception as error:  # raised by a class of another package
            raise Skip(Reason.INVALID_JSON, f"{type(self).__name__} can't read it: {one_line(error)}") from None
        value = self._with_lists(map_record(value, settings), settings)
        record = parse_row(value, self.row_settings, settings)
        self._refuse_texts_of_bytes(record)
        return record

    def _refuse_texts_of_bytes(self, record: Record) -> None:
        """Raise Skip if the name of a medium in this file stands in a text: bytes or base64, where a text should be."""
        inside = re.compile(re.escape(joined_name(os.path.basename(self.path), "")) + r"\d+[/+]")
        for content in (message["content"] for message in record.messages):
            texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
            if wrong := next(filter(inside.search, texts), None):
                detail = f"a text is bytes, or a medium in base64: {wrong[:80]!r}: write it as text (pyarrow's cast)"
                raise Skip(Reason.BAD_MESSAGE, detail)

    def value(self, raw: bytes) -> Any:
        """Parse a row into a JSON value; if an error is raised, the sample is left out, as `invalid_json`."""
        return load_json(raw)

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
        rows, mapped = self.row_settings, mapped_name(name, self.row_settings.media_map)
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
