"""Read the media that packs refer to from the source.

Before a medium is used, its size, its name in the tar and the bytes at both ends are compared with the packed values.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from energon_pack.errors import PackError
from energon_pack.run.address import bucket_of
from energon_pack.samples.bytes import ByteRange, Bytes
from energon_pack.samples.sample import Reference
from energon_pack.samples.skip import Skip
from energon_pack.sources.media_files import (
    EndBytes,
    OpenFileCache,
    end_ranges,
    ends_of,
    join_file_and_key,
    name_and_size,
)
from energon_pack.sources.storage import File, path_in
from energon_pack.sources.tar import (
    BLOCK,
    EXTENDED_TYPES,
    MAX_EXTENDED_SIZE,
    MIN_READ_BYTES,
    TarScan,
    parse_tar_header,
    round_up_to_tar_blocks,
)

#: media that are read at the same time: fewer than the files that are kept open
MEDIA_AT_ONCE = 32


class SourceMediaReader:
    """Reads media from the source below `root` by the references in packs; PackError: they changed since packing."""

    def __init__(self, root: str):
        self._root = root
        self._files = OpenFileCache()

    def read(self, references: Sequence[Reference]) -> list[bytes]:
        """Return the bytes of each medium; raises PackError if one has changed or can't be read."""
        media: list[bytes] = []
        for first in range(0, len(references), MEDIA_AT_ONCE):
            batch = references[first : first + MEDIA_AT_ONCE]
            self.read_ahead(batch)
            media += [self.opened(reference).read(0, reference.size) for reference in batch]
        return media

    def read_ahead(self, references: Sequence[Reference], whole_media: bool = True) -> None:
        """Request media of an object store before they are read; those that fail are reported by `read` and `opened`.

        `whole_media`: request all bytes of each; else only the first and last.
        """
        ranges_of: dict[str, tuple[File, list[tuple[int, int]]]] = {}
        for reference in references if bucket_of(self._root) else ():
            path, offset, lead = self._place(reference)
            with suppress(PackError), _readable_errors(path, reference):
                (start, end), last = end_ranges(offset, reference.size)
                ends = [(start - lead, lead + end), last]
                _, ranges = ranges_of.setdefault(path, (self._files.open(path), []))
                ranges += [(offset - lead, lead + reference.size)] if whole_media else ends
        self._files.read_ahead(list(ranges_of.values()))

    def opened(self, reference: Reference) -> Bytes:
        """Open a medium, and compare its first and last bytes with the packed checksum; raises PackError as `read`."""
        path, offset, lead = self._place(reference)
        with _readable_errors(path, reference):
            file = self._files.open(path)
            ends = ends_of(file, offset, reference.size, lead)
            size = _member_size(file, ends.header, offset, reference.size) if lead else file.size
        self._refuse_changed(reference, ends, size)
        return ByteRange(file, offset, reference.size)

    def _place(self, reference: Reference) -> tuple[str, int, int]:
        """Return the path of the file with a medium, its offset there, and the bytes of the tar header before it."""
        name, *where = reference.place
        path = path_in(self._root, str(name))
        if len(where) == 2:
            return path, int(where[0]), BLOCK
        return join_file_and_key(path, str(where[0])) if where else path, 0, 0

    def _refuse_changed(self, reference: Reference, ends: EndBytes, size: int | None) -> None:
        """Raise PackError if the checksum of `ends`, or `size`, the bytes that were found, is not the packed one."""
        if size != reference.size or ends.checksum != reference.checksum:
            path, offset, lead = self._place(reference)
            where = f" at byte {offset:,}" if lead else ""
            raise PackError(
                f"{path}{where} is not {reference.name} of {reference.sample} as it was packed: the source changed, or"
                f" {self._root} is another one (ENERGON_PACK_SOURCE=FOLDER says where it is): put it back or pack again"
            )


def _member_size(file: Bytes, header: bytes, offset: int, expected: int) -> int | None:
    """Return the size of a member of a tar: its header's, or else, if that is not `expected`, `find_tar_member_at`'s.

    None: no member is there, or the file ends in it.
    """
    member = name_and_size(header)
    if member and member[1] != expected:  # an extended header may say what this one does not
        member = find_tar_member_at(file, offset)
    return member[1] if member and offset + member[1] <= file.size else None


def find_tar_member_at(file: Bytes, offset: int) -> tuple[str, int] | None:
    """Return name and size of the member whose bytes begin at `offset`, by its header and the extended ones before it.

    Global headers count where they stand right before it, or before the first member of the tar. None: no member
    begins there.
    """
    start = offset - BLOCK
    if start < 0:
        return None
    while (before := _extended_header_before(file, start)) is not None:
        start = before
    first = TarScan(file)
    next(iter(first), None)
    name, data, size = next(iter(TarScan(file, start, first.global_fields)), ("", -1, 0))
    return (name, size) if data == offset else None


def _extended_header_before(file: Bytes, end: int) -> int | None:
    """Return the offset of the extended header whose content ends at `end`; None: there is none."""
    for most in (MIN_READ_BYTES, MAX_EXTENDED_SIZE):  # few are longer than some blocks
        first = max(0, end - BLOCK - most)
        blocks = file.read(first, end - first)
        for start in range(len(blocks) - 2 * BLOCK, -1, -BLOCK):
            header = blocks[start : start + BLOCK]
            if header[257:262] == b"ustar" and header[156:157] in EXTENDED_TYPES:
                with suppress(ValueError):
                    if start + BLOCK + round_up_to_tar_blocks(parse_tar_header(header)[1]) == len(blocks):
                        return first + start
    return None


@contextmanager
def _readable_errors(path: str, reference: Reference) -> Iterator[None]:
    try:
        yield
    except (OSError, KeyError, ValueError, Skip) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise PackError(
            f"{path}, where {reference.name} of {reference.sample} lies, can't be read ({why}): packs of"
            " output.media=reference need their source, and ENERGON_PACK_SOURCE=FOLDER says where it is"
        ) from None
