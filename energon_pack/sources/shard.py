"""The files of a source: for each kind of file, a class that finds, reads and names its samples.

Shard ──index──► a row a sample ──record──► Record ──media, part──► where its media lie
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from energon_pack.errors import one_line
from energon_pack.run.address import bucket_of
from energon_pack.run.plain_data import json_value
from energon_pack.run.seeded_random import Ints
from energon_pack.samples.keys import similar_key_hint
from energon_pack.samples.media_parts import listed_parts, media_parts
from energon_pack.samples.raw_json import load_json
from energon_pack.samples.record import Record, parse_record, with_use_audio_setting
from energon_pack.samples.sample import AnyPart, Part
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.user_map import map_record
from energon_pack.sources import wds
from energon_pack.sources.entry_settings import NO_SETTINGS, EntrySettings
from energon_pack.sources.field_map import FieldMap
from energon_pack.sources.jsonl import line_index
from energon_pack.sources.jsonl.coco import with_image_name
from energon_pack.sources.jsonl.dialects import RowSettings, parse_row
from energon_pack.sources.media_containers import archive_path, joined_name, split_name
from energon_pack.sources.media_map import mapped_buckets, mapped_name
from energon_pack.sources.named_bytes import may_have_base64, name_media
from energon_pack.sources.rows import SampleRow
from energon_pack.sources.sample_ratio import drawn_rows, source_key
from energon_pack.sources.settings import Format
from energon_pack.sources.storage import File, FileState, folder_of, open_file, path_in, real_path, state_of
from energon_pack.sources.tar import BLOCK

#: Returns a file beside the shard as a part, by its name in a sample; raises Skip if it can't be read.
LookUp = Callable[[str], Part]


@dataclass(frozen=True)
class _SourceFile:
    """One file of a source: indexes its samples, and reads them; its size and version tell whether it has changed."""

    #: the character between its name and the key of a sample in a sample id
    key_separator: ClassVar[str]
    #: bytes of the header before each part of a sample
    lead: ClassVar[int] = 0
    #: the `source.format` that finds such files
    format: ClassVar[Format]
    #: whether a sample is a range of bytes
    is_read_by_place: ClassVar[bool] = True

    name: str  # as `shard_names` returns it, with forward slashes
    path: str
    size: int
    version: str
    #: settings of its entry in a mixture
    own: EntrySettings = field(default=NO_SETTINGS, kw_only=True, hash=False)
    #: whether the frames of its videos are counted by decoding all
    decodes_videos: bool = field(default=False, kw_only=True, hash=False)

    @cached_property
    def real_path(self) -> str:
        """Return its path with links resolved."""
        return real_path(self.path)

    @property
    def identity(self) -> tuple[Any, ...]:
        """Return the values that the file's index depends on; if one changes, the file is indexed anew."""
        return self.real_path, self.size, self.version, None

    @property
    def called(self) -> str:
        """Return the name of the file's format, as users read it: `JSONL`, `WebDataset tars`."""
        raise NotImplementedError

    @property
    def media_root(self) -> str | None:
        """Return the folder that names of its media are relative to; None: media lie in the file itself."""
        return None

    @cached_property
    def is_stored(self) -> bool:
        """Say whether it is on an object store."""
        return bool(bucket_of(self.path))

    def digest(self) -> str:
        """Return a hash of the bytes that the file's index depends on; the index stores it in its metadata."""
        raise NotImplementedError

    def is_unchanged(self, about: Mapping[str, str]) -> bool:
        """Tell whether the file is as it was when it was indexed. `about`: the metadata of the index."""
        if self.is_stored:  # the version of an object covers every byte
            return state_of(self.path) == (self.size, self.version)
        return about["digest"] == self.digest()

    def open(self) -> File:
        """Open the file; raises OSError if it can't be opened."""
        return open_file(self.path, FileState(self.size, self.version))

    def raw(self, file: File, offset: int, size: int) -> bytes:
        """Read a sample's JSON or text. `offset`, `size`: the place that its row of the index names."""
        return file.read(offset, size)

    def raw_of(self, file: File, row: SampleRow, lead: int = 0) -> bytes:
        """Return the JSON or text of an indexed sample, after `lead` bytes of the tar header before it."""
        return self.raw(file, row.record_offset - lead, lead + row.record_size)

    def read_record(self, raw: bytes, part: str, has_media: bool, settings: ReadSettings) -> Record:
        """Parse a sample as `record` does, with the settings of its mixture entry, which override `settings`."""
        record = self.own.add_options(self.record(raw, part, has_media, self.own.reading or settings))
        return with_use_audio_setting(record, settings)

    def record(self, raw: bytes, part: str, has_media: bool, settings: ReadSettings) -> Record:
        """Parse a sample from the bytes of its JSON or text; Skip: they are not valid. `part`: the file's part name."""
        raise NotImplementedError

    def is_inside(self, name: str) -> bool:
        """Tell whether the medium of this name lies in this file."""
        return split_name(self.path_of(name))[0] == self.path

    def path_of(self, name: str) -> str:
        """Return the path to open for a medium, by its name in a sample; `FILE::KEY` for one inside another file."""
        return self.path

    @property
    def ratio(self) -> float:
        """Return how often each sample comes in an epoch; at 1.3, a random 30% of the samples come twice."""
        return 1.0

    def drawn(self, num_rows: int, seed: int) -> Ints | None:
        """Draw rows of the index; return their numbers, ascending, with repeats; None: each row once."""
        return drawn_rows(num_rows, self.own.taken or self.ratio, self.name, seed)

    def key_in_tar(self, key: str) -> str:
        """Return the key of a sample's parts in the tar: without the `@2` that marks a repeated draw."""
        return source_key(key)

    def sample_id(self, key: str) -> str:
        """Return the name of a sample in packs and ledger: `<shard>/<key>`, `<file>:<line>`."""
        return f"{self.name}{self.key_separator}{key}"


@dataclass(frozen=True)
class TarShard(_SourceFile):
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
        return wds.digest_of_headers(self.path)

    def record(self, raw: bytes, part: str, has_media: bool, settings: ReadSettings) -> Record:
        """Parse a sample from the bytes of its JSON or text. `part`: `json`, `txt` …; `has_media`: it has media."""
        if self.field_map is not None:
            return parse_record(self.field_map.value(raw, part), settings)
        return wds.record_of(raw, part, has_media, settings)

    def media(self, record: Record, key: str, parts: Sequence[Part], look_up: LookUp) -> list[Part]:
        """Return the media of a sample, in the order in which it lists them; raises Skip if one is missing.

        `parts`: the parts of the sample in the tar, without its JSON or text; `look_up`: finds a file outside the tar.
        """
        if self.field_map is not None:
            parts = [part for part in parts if part.name in self.field_map.media]
        return media_parts(record, key, parts)

    def part(self, name: str, key: str, parts: Sequence[Part], look_up: LookUp) -> Part:
        """Return the part of a sample that is called `name`; other arguments and errors as of `media`."""
        return listed_parts([name], key, parts)[0]

    @property
    def base(self) -> str:
        """Return the folder that the tar's name is relative to; the tar's own folder if its path ends otherwise."""
        folder = self.path.removesuffix(f"/{self.name}")
        return folder_of(self.path) if folder == self.path else folder

    def place(self, part: AnyPart, root: str) -> tuple[str | int, ...]:
        """Return the place of a part, as references in packs store it: the tar's path below `root`, offset, size."""
        return _relative_path(root, self.path), part.offset, part.size


@dataclass(frozen=True)
class JsonlShard(_SourceFile):
    """A file of JSON samples, one a line or in an array; their media are separate files."""

    key_separator = ":"
    format = Format.jsonl
    #: matches such files in a folder
    names: ClassVar[re.Pattern[str]] = re.compile(r"(?i)\.jsonl(\.(gz|bz2|xz|zst|lz4))?$")
    #: whether the names of a folder's files tell splits
    has_splits: ClassVar[bool] = False
    #: for a class of another package: raise it when `value` reads the same bytes differently
    value_version: ClassVar[int] = 0

    row_settings: RowSettings

    @property
    def called(self) -> str:
        return "JSONL"

    @property
    def identity(self) -> tuple[Any, ...]:
        kind = type(self)
        version_of_kind = () if kind is JsonlShard else (kind.__module__, kind.__qualname__, kind.value_version)
        return *super().identity[:-1], self.row_settings.identity, *version_of_kind

    @property
    def media_root(self) -> str:
        return self.row_settings.media_root

    @property
    def ratio(self) -> float:
        return self.row_settings.ratio

    def index(self) -> pa.Table:
        return line_index.index_lines(self.path)

    def first(self, number: int) -> Iterator[bytes]:
        """Yield the JSON of each of the first `number` samples that can be read, without indexing the whole file."""
        with self.open() as file:
            for place in self._first_places(number):
                with suppress(Skip):
                    yield self.raw(file, *place)

    def _first_places(self, number: int) -> list[tuple[int, int]]:
        return line_index.first_places(self.path, number)

    def raw(self, file: File, offset: int, size: int) -> bytes:
        """Read the JSON of a sample; media in base64, and the ids of COCO images, are replaced by names of media."""
        raw = with_image_name(file.read(offset, size), file, self.path)
        if not may_have_base64(raw):
            return raw
        try:
            value = json_value(raw)
        except ValueError:  # `record` reports it
            return raw
        return json.dumps(name_media(value, joined_name(os.path.basename(self.path), f"{offset}+{size}"))).encode()

    def path_of(self, name: str) -> str:
        file, key = split_name(name)
        if key is not None and file == os.path.basename(self.path):
            return joined_name(self.path, key)
        name = mapped_name(name, self.row_settings.media_map)
        return archive_path(self.media_root, name) or path_in(self.media_root, name)

    def digest(self) -> str:
        return line_index.file_digest(self.path)

    def record(self, raw: bytes, part: str, has_media: bool, settings: ReadSettings) -> Record:
        try:
            value = self.value(raw)
        except Skip:
            raise
        except Exception as error:  # raised by a class of another package
            raise Skip(Reason.INVALID_JSON, f"{type(self).__name__} can't read it: {one_line(error)}") from None
        return parse_row(map_record(value, settings), self.row_settings, settings)

    def value(self, raw: bytes) -> Any:
        """Parse a line into a JSON value; if an error is raised, the sample is left out, as `invalid_json`."""
        return load_json(raw)

    def media(self, record: Record, key: str, parts: Sequence[Part], look_up: LookUp) -> list[Part]:
        names = record.listed_media or []
        if not names and record.declared not in (None, "text"):
            meant = next(filter(None, map(similar_key_hint, record.unknown)), "")
            raise Skip(Reason.MISSING_MEDIA, f"declared as {record.declared}, but it names no media{meant}")
        return [look_up(self._allowed_name(name)) for name in names]

    def part(self, name: str, key: str, parts: Sequence[Part], look_up: LookUp) -> Part:
        return look_up(self._allowed_name(name))

    def _allowed_name(self, name: str) -> str:
        """Return the name of a medium; raises Skip for an address on a store that no setting names."""
        rows, bucket = self.row_settings, bucket_of(mapped_name(name, self.row_settings.media_map))
        if not rows.remote_media and bucket not in ("", bucket_of(self.media_root), *mapped_buckets(rows.media_map)):
            detail = f"{name!r} is on another store than source.media_root; source.remote_media=true reads it there"
            raise Skip(Reason.MISSING_MEDIA, detail)
        return name

    @property
    def base(self) -> str:
        """Return the folder that names of its media are relative to."""
        return folder_of(self.media_root) if archive_path(self.media_root, "") else self.media_root

    def place(self, part: AnyPart, root: str) -> tuple[str | int, ...]:
        path, key = split_name(_relative_path(root, self.path_of(part.name)))
        return (path,) if key is None else (path, key)


def _relative_path(folder: str, path: str) -> str:
    return path.removeprefix(f"{folder.rstrip('/')}/")


#: One file of a source, of either kind.
Shard = TarShard | JsonlShard
