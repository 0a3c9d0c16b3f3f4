"""The files of a source: for each kind of file, a class that finds, reads and names its samples.

Shard ──index──► a row a sample ──record──► Record ──media, part──► where its media lie
"""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.run.untrusted_input import parse_json
from energon_pack.samples.media_parts import find_listed_parts, find_media_parts
from energon_pack.samples.record import Record, parse_record
from energon_pack.samples.sample import AnyPart, Part
from energon_pack.samples.settings import ReadSettings
from energon_pack.sources import wds
from energon_pack.sources.jsonl import line_index
from energon_pack.sources.jsonl.dialects import with_coco_image_name
from energon_pack.sources.media_files import join_file_and_key
from energon_pack.sources.named_bytes import may_have_base64, replace_media_by_names
from energon_pack.sources.part_names import FieldMap
from energon_pack.sources.row_shard import RowShard
from energon_pack.sources.settings import Format
from energon_pack.sources.source_file import LookUp, SampleRow, SourceFile, relative_path
from energon_pack.sources.storage import File, folder_of
from energon_pack.sources.tar import BLOCK


@dataclass(frozen=True)
class TarShard(SourceFile):
    """A WebDataset tar: a sample is a JSON or text, and the media files with the same key."""

    key_separator = "/"
    format = Format.wds
    lead = BLOCK

    #: the field map of its folder, if Energon has prepared it; None: parts are read by their names
    field_map: FieldMap | None = field(default=None, kw_only=True)
    #: keys that its folder leaves out
    excluded_keys: frozenset[str] = field(default=frozenset(), kw_only=True)

    @property
    def identity(self) -> tuple[Any, ...]:
        field_map = None if self.field_map is None else asdict(self.field_map)
        return *super().identity[:-1], field_map, *([sorted(self.excluded_keys)] if self.excluded_keys else [])

    @property
    def called(self) -> str:
        names = [name for name, _ in self.field_map.fields] if self.field_map else []
        read = f", {' and '.join(names)} by Energon's field_map" if names else ""
        return f"WebDataset tars{read}"

    def index(self) -> pa.Table:
        """Index the tar: return a row of `wds.INDEX_SCHEMA` for each sample that is not excluded."""
        table = wds.index_tar(self.path, self.field_map.record_part if self.field_map else None)
        if not self.excluded_keys:
            return table
        return table.filter(pc.invert(pc.is_in(table["key"], pa.array(sorted(self.excluded_keys), pa.string()))))

    def digest(self) -> str:
        return wds.hash_tar_headers(self.path)

    def record(self, raw: bytes, part: str, has_media: bool, settings: ReadSettings) -> Record:
        """Parse a sample from the bytes of its JSON or text. `part`: `json`, `txt` …; `has_media`: it has media."""
        if self.field_map is not None:
            return parse_record(self.field_map.read_fields(raw, part), settings)
        return wds.parse_tar_record(raw, part, has_media, settings)

    def media(self, record: Record, key: str, parts: Sequence[Part], look_up: LookUp) -> list[Part]:
        """Return the media of a sample, in the order in which it lists them; raises Skip if one is missing.

        `parts`: the parts of the sample in the tar, without its JSON or text; `look_up`: finds a file outside the tar.
        """
        if self.field_map is not None:
            parts = [part for part in parts if part.name in self.field_map.media]
        return find_media_parts(record, key, parts)

    def part(self, name: str, key: str, parts: Sequence[Part], look_up: LookUp) -> Part:
        """Return the part of a sample that is called `name`; other arguments and errors as of `media`."""
        return find_listed_parts([name], key, parts)[0]

    @property
    def names_folder(self) -> str:
        """Return the folder that the tar's name is relative to; the tar's own folder if its path ends otherwise."""
        folder = self.path.removesuffix(f"/{self.name}")
        return folder_of(self.path) if folder == self.path else folder

    def place(self, part: AnyPart, root: str) -> tuple[str | int, ...]:
        """Return the place of a part, as references in packs store it: the tar's path below `root`, offset, size."""
        return relative_path(root, self.path), part.offset, part.size


@dataclass(frozen=True)
class JsonlShard(RowShard):
    """A file of JSON samples, one a line or in an array; their media are separate files."""

    format = Format.jsonl
    names = re.compile(r"(?i)\.jsonl(\.(gz|bz2|xz|zst|lz4))?$")
    #: for a class of another package: raise it when `value` reads the same bytes differently
    value_version: ClassVar[int] = 0

    @property
    def called(self) -> str:
        return "JSONL"

    @property
    def identity(self) -> tuple[Any, ...]:
        kind = type(self)
        version_of_kind = () if kind is JsonlShard else (kind.__module__, kind.__qualname__, kind.value_version)
        return *super().identity, *version_of_kind

    def index(self) -> pa.Table:
        return line_index.index_lines(self.path)

    def first_rows(self, number: int) -> list[SampleRow]:
        return [self._make_sample_row(*row) for row in enumerate(line_index.first_places(self.path, number))]

    def raw(self, file: File, offset: int, size: int) -> bytes:
        """Read the JSON of a sample; media in base64, and the ids of COCO images, are replaced by names of media."""
        raw = with_coco_image_name(file.read(offset, size), file, self.path)
        if not may_have_base64(raw):
            return raw
        try:
            value = parse_json(raw)
        except ValueError:  # `record` reports it
            return raw
        return json.dumps(
            replace_media_by_names(value, join_file_and_key(os.path.basename(self.path), f"{offset}+{size}"))
        ).encode()

    def digest(self) -> str:
        return line_index.file_digest(self.path)


#: One file of a source, of either kind.
Shard = TarShard | RowShard
