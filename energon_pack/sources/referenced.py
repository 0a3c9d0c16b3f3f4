"""Media that packs refer to, read where they lie in the source. An offset is believed where what is there is still
what was packed: size, name in the tar, and the bytes at both ends tell.
"""

import os
from typing import NamedTuple
from zlib import crc32

from energon_pack.errors import PackError
from energon_pack.samples.bytes import Bytes, Range
from energon_pack.samples.flavors.references import Reference, is_key
from energon_pack.samples.skip import Skip
from energon_pack.sources.jsonl.lmdb_file import joined_name
from energon_pack.sources.open_files import OpenFiles
from energon_pack.sources.storage import File
from energon_pack.sources.tar import BLOCK, member_of

#: Bytes at each end of a medium that tell whether it is still the same.
END = 1024


class Ends(NamedTuple):
    """What stands before a part of a source, its first and its last bytes."""

    header: bytes  # of the tar; none before a file of its own
    first: bytes
    last: bytes

    @property
    def checksum(self) -> int:
        """What tells it from any other of its size; raises ValueError where the header is none."""
        name = b""
        if self.header:
            member = member_of(self.header)
            if member is None:
                raise ValueError("no header of a tar")
            name = member[0].encode()
        return crc32(self.last, crc32(self.first, crc32(name)))


def ends_of(file: Bytes, offset: int, size: int, lead: int) -> Ends:
    """Two short reads of a part.

    Args:
        lead: bytes of the header before it.
    """
    end = min(size, END)
    head = file.read(offset - lead, lead + end)
    return Ends(head[:lead], head[lead:], file.read(offset + size - end, end))


class _Place(NamedTuple):
    path: str
    offset: int
    lead: int


class SourceMedia:
    """The media of a source.

    Args:
        root: where it lies now.
    """

    def __init__(self, root: str):
        self.root = root
        self._files = OpenFiles()

    def read(self, reference: Reference) -> bytes:
        """The bytes of a medium.

        Raises:
            PackError: it can't be read, or is not what was packed.
        """
        place, size = self._place(reference), reference.size
        data = self._file(place, reference).read(place.offset - place.lead, place.lead + size)
        header, medium = data[: place.lead], data[place.lead :]
        self._check(Ends(header, medium[:END], medium[-END:]), len(medium), place, reference)
        return medium

    def opened(self, reference: Reference) -> Bytes:
        """The bytes of a medium, most of which are not read yet; raises as `read`."""
        place, size = self._place(reference), reference.size
        file = self._file(place, reference)
        self._check(ends_of(file, place.offset, size, place.lead), size, place, reference)
        return Range(file, place.offset, size)

    def _place(self, reference: Reference) -> _Place:
        path, *where = reference.place
        path = os.path.join(self.root, str(path))
        if len(where) == 2:
            return _Place(path, int(where[0]), BLOCK)
        return _Place(joined_name(path, str(where[0])) if is_key(reference.place) else path, 0, 0)

    def _file(self, place: _Place, reference: Reference) -> File:
        try:
            file = self._files.open(place.path)
        except (OSError, KeyError, ValueError, Skip) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise PackError(
                f"{place.path}, where {reference.name} of {reference.sample} lies, can't be read ({why}): packs of"
                f" output.media=reference need their source, and ENERGON_PACK_SOURCE=FOLDER says where it is"
            ) from None
        if place.lead == 0 and file.size != reference.size:
            raise self._changed(place, reference)
        return file

    def _check(self, ends: Ends, size: int, place: _Place, reference: Reference) -> None:
        member = member_of(ends.header) if place.lead else ("", reference.size)
        is_whole = member is not None and size == member[1] == reference.size
        if not is_whole or ends.checksum != reference.checksum:
            raise self._changed(place, reference)

    def _changed(self, place: _Place, reference: Reference) -> PackError:
        where = f" at byte {place.offset:,}" if place.lead else ""
        return PackError(
            f"{place.path}{where} is not {reference.name} of {reference.sample} as it was packed: the source changed,"
            f" or {self.root} is another one (ENERGON_PACK_SOURCE=FOLDER says where it is); put it back, or pack again"
        )
