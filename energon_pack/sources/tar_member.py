"""Look at one member of a tar: by its header block, or at a place in the file, with the extended headers before it."""

import struct
from contextlib import suppress

from energon_pack.samples.bytes import Bytes
from energon_pack.sources.tar import (
    BLOCK,
    EXTENDED_TYPES,
    MAX_EXTENDED_SIZE,
    MIN_READ_BYTES,
    TarScan,
    num_blocks_bytes,
    parse_header,
)


def member_at(file: Bytes, offset: int) -> tuple[str, int] | None:
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
                    if start + BLOCK + num_blocks_bytes(parse_header(header)[1]) == len(blocks):
                        return first + start
    return None


def is_header_of(header: bytes, name: str, size: int) -> bool:
    """Say whether a block alone is the header of this member; of a name that it has no room for, it shows the size."""
    if len(header) < BLOCK:
        return False
    if header.startswith(b"%b\0" % name.encode()) and header[124:136] == b"%011o\0" % size:
        return True
    try:
        its_name, its_size, _ = parse_header(header)
    except ValueError:
        return False
    short = name.isascii() and len(name) <= 100
    return 0 <= its_size == size and (not short or its_name == name)


def name_and_size(header: bytes) -> tuple[str, int] | None:
    """Return name and size of the member that a header block describes; None: it is no header. Long names are cut."""
    try:
        name, size, _ = parse_header(header)
    except (ValueError, struct.error):
        return None
    return name, size
