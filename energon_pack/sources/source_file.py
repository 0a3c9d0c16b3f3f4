"""One file of a source: its name, its place, and the rows that index, lengths and plan have of its samples."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import pairwise, repeat
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from energon_pack.run.address import bucket_of
from energon_pack.run.seeded_random import Ints
from energon_pack.samples.cut import Cut
from energon_pack.samples.pairs import with_rejected_side
from energon_pack.samples.record import Record, with_use_audio_setting
from energon_pack.samples.sample import MediaPart, Part
from energon_pack.samples.settings import PreferenceTake, ReadSettings
from energon_pack.sources.media_files import split_file_and_key
from energon_pack.sources.mixture import NO_SETTINGS, EntrySettings
from energon_pack.sources.sample_ratio import drawn_rows, remove_copy_mark
from energon_pack.sources.settings import Format
from energon_pack.sources.storage import File, FileState, open_file, real_path, state_of


@dataclass(slots=True)
class SampleRow:
    """A sample's key, and where in its shard its JSON or text lies (offset and size in bytes)."""

    key: str
    record_part: str
    record_offset: int
    record_size: int


@dataclass(slots=True)
class IndexRow(SampleRow):
    """A sample that was indexed, but not read yet: a row of `wds.INDEX_SCHEMA`."""

    parts: list[Part]  # its other parts, in the tar's order
    reason: str | None  # why it can't be read; None: it may be readable
    detail: str | None


@dataclass(slots=True)
class MeasuredRow(SampleRow):
    """A sample that was measured, or a part of one that was cut: the columns that lengths and the plan share."""

    parts: list[MediaPart]  # its media, in the order of their placeholders
    positions: list[Part]  # in a tar, the .npy files of the whole sample's images, and a txt read beside the JSON
    cut: Cut | None  # None: a whole sample
    token_len: int
    num_supervised: int
    num_visual_tokens: int


_Row = TypeVar("_Row", bound=SampleRow)


def rows_of(table: pa.Table, row_class: type[_Row]) -> Iterator[_Row]:
    """Yield the rows of a table as objects of a class, each of whose fields is a column or has a default."""

    def values(field: Field[Any]) -> Iterable[Any]:
        if field.default is not MISSING and field.name not in table.column_names:
            return repeat(field.default)
        return _column_values(table[field.name], field.name)

    return map(row_class, *map(values, fields(row_class)))


def read_parts_column(column: pa.ChunkedArray) -> list[list[Any]]:
    """Return the parts of each row, from a column of lists: `MediaPart`s if they have a kind, else `Part`s."""
    array = column.combine_chunks()
    starts = array.offsets.to_pylist()
    first, values = starts[0], array.values[starts[0] : starts[-1]]  # a slice of a table has the values of all of it
    form: type[Part] | type[MediaPart] = MediaPart if "kind" in values.type.names else Part
    columns = (values.field(number).to_pylist() for number in range(values.type.num_fields))
    parts = list(map(form._make, zip(*columns, strict=True)))
    return [parts[start - first : end - first] for start, end in pairwise(starts)]


def _column_values(column: pa.ChunkedArray, name: str) -> list[Any]:
    if name in ("parts", "positions"):
        return read_parts_column(column)
    values: list[Any] = column.to_pylist()
    return [value and Cut(**value) for value in values] if name == "cut" else values


#: Returns a file beside the shard as a part, by its name in a sample; raises Skip if it can't be read.
LookUp = Callable[[str], Part]


@dataclass(frozen=True)
class SourceFile:
    """One file of a source: indexes its samples, and reads them; its size and version tell whether it has changed."""

    #: the character between its name and the key of a sample in a sample id
    key_separator: ClassVar[str]
    #: bytes of the header before each part of a sample
    lead: ClassVar[int] = 0
    #: the `source.format` that finds such files
    format: ClassVar[Format]

    name: str  # as `name_files_for_ids` returns it, with forward slashes
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
    def is_read_by_place(self) -> bool:
        """Tell whether a sample is a range of bytes."""
        return True

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

    def index(self) -> pa.Table:
        """Index the samples: return a row of `wds.INDEX_SCHEMA` for each."""
        raise NotImplementedError

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
        record = read_record(partial(self.record, raw, part, has_media), self.own.reading or settings)
        return with_use_audio_setting(self.own.add_options_to_record(record), settings)

    def record(self, raw: bytes, part: str, has_media: bool, settings: ReadSettings) -> Record:
        """Parse a sample from the bytes of its JSON or text; Skip: they are not valid. `part`: the file's part name."""
        raise NotImplementedError

    def is_inside(self, name: str) -> bool:
        """Tell whether the medium of this name lies in this file."""
        return split_file_and_key(self.path_of(name))[0] == self.path

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
        return remove_copy_mark(key)

    def sample_id(self, key: str) -> str:
        """Return the name of a sample in packs and ledger: `<shard>/<key>`, `<file>:<line>`."""
        return f"{self.name}{self.key_separator}{key}"


def relative_path(folder: str, path: str) -> str:
    """Return a path as it is called in a folder; unchanged: it lies elsewhere."""
    return path.removeprefix(f"{folder.rstrip('/')}/")


def read_record(read_with_settings: Callable[[ReadSettings], Record], settings: ReadSettings) -> Record:
    """Return the record that `read_with_settings` parses by `settings`; of `source.take=both`, the record of the pair.

    Raises what `read_with_settings` and `with_rejected_side` raise.
    """
    if settings.take != PreferenceTake.both:
        return read_with_settings(settings)
    chosen, rejected = (replace(settings, take=PreferenceTake.chosen) for _ in range(2))
    rejected.takes_rejected = True
    other = read_with_settings(rejected)  # first: it says what is no pair
    return with_rejected_side(read_with_settings(chosen), other)
