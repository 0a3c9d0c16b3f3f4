"""Read samples by their places: bytes of shards, and of media in separate files."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, TypeVar
from zlib import crc32

from energon_pack.errors import PackError
from energon_pack.samples.record import Record
from energon_pack.samples.sample import AnyPart, Part
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.media_files import (
    OpenFileCache,
    ends_of,
    explain_missing_medium,
    open_medium,
    split_file_and_key,
)
from energon_pack.sources.shard import Shard
from energon_pack.sources.source_file import MeasuredRow, SampleRow
from energon_pack.sources.storage import File, FileState, read_ahead
from energon_pack.sources.storage import state_of as state_of_file
from energon_pack.sources.store_objects import max_read_ahead_bytes

#: Raise this number when the same shard gets another index.
INDEX_VERSION = 12

Item = TypeVar("Item")
SamplesOf = Callable[[Item], Iterable[tuple[Shard, MeasuredRow]]]
RangesOf = Callable[[int, int], Sequence[tuple[int, int]]]
_RangesByPath = dict[str, tuple[Shard, list[tuple[int, int]]]]  # by path: ranges, as offset and number of bytes
_MAX_RANGES_AHEAD = 50_000  # ranges that are read ahead at a time: memory holds their places
_MAX_BYTES_AHEAD = 32 << 20  # bytes of a file that are read ahead; a larger file is read block by block


class SourceReader:
    """Reads samples and media, and keeps shards and media open; the least recently used are closed first."""

    def __init__(self) -> None:
        self._open_files = OpenFileCache()
        self._files_ahead: dict[str, File] = {}  # shards with ranges that were read ahead

    def iterate_with_read_ahead(
        self, items: Iterable[Item], samples: SamplesOf[Item], of_medium: RangesOf
    ) -> Iterator[Item]:
        """Yield the items in order, in groups; before each group, request the bytes of its samples on object stores.

        Args:
            samples: item → the samples to be read for it.
            of_medium: (offset, size) of a medium in its shard → the (offset, size) ranges of it to be read.
        """
        window: list[Item] = []
        ranges_of: _RangesByPath = {}
        bytes_left = places_left = 0
        for item in items:
            places = [place for shard, row in samples(item) for place in _ranges_ahead(shard, row, of_medium)]
            num_bytes = sum(size for _, _, size in places)
            bytes_left, places_left = bytes_left - num_bytes, places_left - len(places)
            if not places or bytes_left < 0 or places_left < 0:
                self._fetch(ranges_of)
                yield from window
                window, ranges_of = [], {}
                bytes_left, places_left = (max_read_ahead_bytes() - num_bytes, _MAX_RANGES_AHEAD) if places else (0, 0)
            window.append(item)
            for shard, offset, size in places:
                ranges_of.setdefault(shard.path, (shard, []))[1].append((offset, size))
        self._fetch(ranges_of)
        yield from window

    def _fetch(self, ranges_of: "_RangesByPath") -> None:
        """Request these ranges of shards before they are read, and drop those of an earlier call."""
        self._files_ahead = {}
        files = {path: shard.open() for path, (shard, _) in ranges_of.items()}
        read_ahead([(file, ranges_of[path][1]) for path, file in files.items()])
        self._files_ahead = files

    def raw(self, shard: Shard, row: SampleRow, lead: int = 0) -> bytes:
        """Return the bytes of a sample's JSON or text, which `Shard.record` parses.

        `lead`: how many bytes of the tar header before them are returned, too, in front.
        """
        return shard.raw_of(self.open_unchanged_shard(shard), row, lead)

    def media(self, shard: Shard, record: Record, key: str, parts: Sequence[Part]) -> list[Part]:
        """Return the media of a sample, in the order in which it lists them; raises Skip if one is missing.

        `parts`: the parts of the sample in its shard, without its JSON or text.
        """
        return shard.media(record, key, parts, partial(self._part, shard))

    def position_parts(self, shard: Shard, names: Sequence[str], key: str, parts: Sequence[Part]) -> list[Part | None]:
        """Return the .npy files of patch positions that a sample names, in that order; None for an empty name.

        `parts`: as in `media`, or only its patch positions.
        """
        look_up = partial(self._part, shard)
        return [shard.part(name, key, parts, look_up) if name else None for name in names]

    def read(self, shard: Shard, part: AnyPart) -> bytes:
        """Return the bytes of a part."""
        return self.part_file(shard, part).read(part.offset, part.size)

    def checksum(self, shard: Shard, raw: bytes, parts: Sequence[AnyPart]) -> int:
        """Return a CRC-32 that shows whether a sample changed since it was measured.

        Args:
            raw: the sample's JSON or text.
            parts: its media: only the first and last `END_BYTES` of each are read.
        """
        value = crc32(raw)
        for part in parts:
            ends = ends_of(self.part_file(shard, part), part.offset, part.size, lead=0)
            value = crc32(ends.last, crc32(ends.first, value))
        return value

    def media_file_states(
        self, shard: Shard, parts: Sequence[AnyPart], removed: Sequence[str] = ()
    ) -> list[dict[str, Any]] | None:
        """Return `{name, size, version}` of each part that is a separate file; None: the shard itself holds them.

        `removed`: names of pictures that are missing. A run that finds one of them measures the sample again.
        """
        if shard.media_root is None:
            return None
        names = dict.fromkeys(part.name for part in parts if not shard.is_inside(part.name))
        files = {name: (file.size, file.version) for name in names if (file := self._open_medium(shard, name))}

        def note(name: str) -> Part:
            files[name] = state_of_medium(shard.path_of(name)) or NOT_THERE
            return Part(name, 0, 0)

        for name in removed:
            with suppress(Skip):  # nobody may look there
                shard.part(name, "", (), note)
        return [{"name": name, "size": size, "version": version} for name, (size, version) in files.items()]

    def part_file(self, shard: Shard, part: AnyPart) -> File:
        """Return the open file that holds a part: the shard, or the part's own file; raises PackError if it changed."""
        if shard.media_root is None:
            return self.open_unchanged_shard(shard)
        try:
            file = self._open_medium(shard, part.name)
        except Skip as skip:
            raise PackError(f"{shard.path}: {skip}; it was there when it was measured: run again") from None
        if file.size != part.size:
            raise PackError(f"{shard.path_of(part.name)} changed since it was measured: run again")
        return file

    def open_unchanged_shard(self, shard: Shard) -> File:
        """Open a shard, and check that it still has the size and version that were indexed."""
        try:
            file = self._files_ahead.get(shard.path) or self._open_files.open(shard.path, shard.open)
        except OSError as error:
            raise PackError(f"{shard.path}: {error.strerror}") from None
        if (file.size, file.version) != (shard.size, shard.version):
            raise SourceChanged(shard.path)
        return file

    def _part(self, shard: Shard, name: str) -> Part:
        return Part(name, 0, self._open_medium(shard, name).size)

    def _open_medium(self, shard: Shard, name: str) -> File:
        try:
            return self._open_files.open(shard.path_of(name))
        except (FileNotFoundError, NotADirectoryError, KeyError, ValueError):  # ValueError: a zero byte in the name
            raise Skip(Reason.MISSING_MEDIA, explain_missing_medium(name, shard.path_of(name))) from None
        except OSError as error:
            raise Skip(Reason.UNREADABLE_MEDIA, f"{name!r}: {error.strerror}") from None

    def __enter__(self) -> "SourceReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._open_files.__exit__()


def whole_medium_range(offset: int, size: int) -> list[tuple[int, int]]:
    """Return (offset, size) of a whole medium as its only range: for `SourceReader.iterate_with_read_ahead`."""
    return [(offset, size)]


def _ranges_ahead(shard: Shard, row: MeasuredRow, of_medium: RangesOf) -> Iterator[tuple[Shard, int, int]]:
    """Yield the ranges to read for a sample, each with the tar header before it; none if the shard is on a disk."""
    if shard.is_stored and shard.is_read_by_place:
        parts: list[AnyPart] = [*row.parts, *row.positions] if shard.media_root is None else []
        media = chain.from_iterable(of_medium(part.offset, part.size) for part in parts)
        for offset, size in ((row.record_offset, row.record_size), *media):
            if size <= _MAX_BYTES_AHEAD:
                yield shard, offset - shard.lead, size + shard.lead


#: size and version of a medium that is missing
NOT_THERE = FileState(-1, "")


def state_of_medium(path: str) -> FileState | None:
    """Return size and version of a medium as it is now; None: it can't be read."""
    try:
        if split_file_and_key(path)[1] is None:
            return state_of_file(path)
        file = open_medium(path)
    except (OSError, KeyError, ValueError, Skip):
        return None
    return FileState(file.size, file.version)


class SourceChanged(PackError):
    """A shard changed since it was measured."""

    def __init__(self, path: str, part: str = ""):
        named = f"{path}: {part}" if part else path
        super().__init__(f"{named} changed since it was measured: run again, it is then measured anew")
        self.path, self.part = path, part

    def __reduce__(self) -> Any:
        return SourceChanged, (self.path, self.part)
